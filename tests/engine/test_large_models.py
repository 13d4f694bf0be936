"""A large model's step and memory beside what torchtitan reports, with nothing fitted to it.

torchtitan, benchmarks/llama3_h100_202412: Llama 3.1 8B, FSDP2, 2 samples of 8,192 tokens, every
second product recomputed, on H100 of 500 W. Memory is what its allocator reserves; simulated is
what tensors take.
"""

from pathlib import Path

import pytest

import simdp
from simdp.scenario import checked

pytestmark = pytest.mark.slow

TORCHTITAN = {  # tokens/s of a GPU, GiB
    (8, False): (5762, 82.4),
    (8, True): (6667, 77.0),
    (128, False): (5605, 67.0),
    (128, True): (6514, 62.0),
}


def llama3_8b(world_size, **options):
    raw = {
        "cluster": {"machine": "dgx-h100", "world_size": world_size},
        "workload": {
            "model": "llama3-8b",
            "dataset": {"kind": "tokens", "num_samples": 2048, "sequence_length": 8192},
            "loss": "cross_entropy",
            "optimizer": "adamw",
            "microbatch": 2,
            "recompute": "selective_every_other",
            "compute": "roofline",
            "steps": 2,
            **options,
        },
        "strategy": {
            "kind": "fsdp",
            "units": "torchtitan",
            "param_dtype": "bfloat16",
            "reduce_dtype": "float32",
        },
        "numerics": False,
    }
    return simdp.simulate(checked(raw, Path())).metrics


@pytest.mark.long
def test_tokens_of_torchtitan_within_eight_percent_eager_and_compiled():
    found = {key: llama3_8b(key[0], compile=key[1]) for key in TORCHTITAN}
    for key, (tokens, reserved) in TORCHTITAN.items():
        assert found[key]["tokens_per_s_per_gpu"] == pytest.approx(tokens, rel=0.08), key
        allocated = max(found[key]["peak_memory_bytes"]) / 2**30
        assert 0.85 * reserved < allocated < reserved, key
    for n in (8, 128):  # measured: 1.16
        gained = [found[n, how]["tokens_per_s_per_gpu"] for how in (True, False)]
        assert 1.07 < gained[0] / gained[1] < 1.22


@pytest.mark.long
def test_more_is_kept_where_less_runs_again():
    ways = ("blocks", "selective_every_other", "selective", "none")
    found = [llama3_8b(8, recompute=how) for how in ways]
    peaks = [max(metrics["peak_memory_bytes"]) for metrics in found]
    rates = [metrics["tokens_per_s_per_gpu"] for metrics in found]
    assert peaks == sorted(peaks)
    assert rates == sorted(rates)
    hardware = [metrics["hfu"] / metrics["mfu"] for metrics in found]
    assert hardware == sorted(hardware, reverse=True)
    assert 1.2 < hardware[0] < 1.3  # all but the last product of a block, and what is in no block
    assert hardware[2:] == [1, 1]  # products and attention are stored


def test_flops_of_a_token_are_those_that_torchtitan_counts():
    metrics = llama3_8b(8)
    parameters = 8_030_261_248 - 128_256 * 4096
    per_token = 6 * parameters + 12 * 32 * 4096 * 8192
    assert metrics["model_flops"] == pytest.approx(8 * 2 * 8192 * per_token, rel=1e-4)
    assert metrics["mfu"] == pytest.approx(
        metrics["tokens_per_s_per_gpu"] * per_token / 989.5e12, rel=1e-4
    )
