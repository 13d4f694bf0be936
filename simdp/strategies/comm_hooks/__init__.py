"""Comm hooks: what becomes of a bucket of gradients on its way to every rank, by kind.

The names are those of torch.distributed.algorithms.ddp_comm_hooks, shortened. This table is the one
place of registration.
"""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.strategies.comm_hooks.base import CommHook, Sent
from simdp.strategies.comm_hooks.none import NoHook

COMM_HOOKS: Family[CommHook] = Family(
    "comm_hooks",
    CommHook,
    __name__,
    {
        "batched_power_sgd": "batched_power_sgd:BatchedPowerSGD",
        "bf16": "bf16:Bf16",
        "bf16_wrapper": "wrapper:Bf16Wrapper",
        "fp16": "fp16:Fp16",
        "fp16_wrapper": "wrapper:Fp16Wrapper",
        "none": "none:NoHook",
        "noop": "none:Noop",
        "power_sgd": "power_sgd:PowerSGD",
        "python": "python:Python",
        "quantization_perchannel": "quantization_perchannel:QuantizationPerChannel",
        "quantization_pertensor": "quantization_pertensor:QuantizationPerTensor",
        "top_k": "top_k:TopK",
    },
)
AnyCommHook = Annotated[CommHook, one_of("comm_hook", COMM_HOOKS)]

__all__ = ["COMM_HOOKS", "AnyCommHook", "CommHook", "NoHook", "Sent"]
