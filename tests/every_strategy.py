"""Every strategy with options that change what it sends or keeps, on small scenarios."""

from pathlib import Path

from small_scenario import FAST

from simdp.engine.collective import Planner
from simdp.engine.ops import Launch
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario import checked

WIDTHS = [6, 8, 5, 3]
EARLY = {"kind": "power_sgd", "start_step": 1, "min_compression_rate": 1}
WARM = {"kind": "local_sgd", "local_steps": 2, "warmup_steps": 2}
SMALL = {"reduce_bucket_size": 40, "param_persistence_threshold": 5, "prefetch_bucket_size": 30}
OWN = {"kind": "python", "path": str(Path(__file__).with_name("own_hooks.py"))}
PIECES = {"kind": "zero1", "communication": "reduce_scatter"}

EVERY = [
    {"kind": "single"},
    {"kind": "ddp"},
    {"kind": "ddp", "bucket_cap": "0 B", "overlap": False, "charge_copies": True},
    {"kind": "ddp", "gradient_as_bucket_view": True, "no_sync": False},
    {"kind": "ddp", "find_unused_parameters": True, "broadcast_buffers": False},
    {"kind": "ddp", "join": True},
    {"kind": "ddp", "join": True, "divide_by_initial_world_size": False},
    {"kind": "ddp", "comm_hook": "fp16", "version": "1.4"},
    {"kind": "ddp", "comm_hook": EARLY},
    {"kind": "ddp", "comm_hook": {"kind": "top_k", "ratio": 0.2}},
    {"kind": "ddp", "comm_hook": "quantization_perchannel", "static_graph": True, "no_sync": False},
    {"kind": "ddp", "comm_hook": {"kind": "batched_power_sgd", "start_step": 1}},
    {"kind": "ddp", "comm_hook": {**OWN, "name": "first_half"}, "bucket_cap": "100 B"},
    {"kind": "ddp", "mixed_precision": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}},
    {"kind": "apex", "message_size": 40},
    {"kind": "apex", "delay_allreduce": True, "retain_allreduce_buffers": True},
    {"kind": "horovod", "cycle_time": "10 us"},
    {"kind": "horovod", "merge": "mg_wfbp", "compression": "fp16", "overlap": False},
    {"kind": "local_sgd", "local_steps": 3},
    WARM,
    {**WARM, "average_at": "begin", "averager_warmup_steps": 1},
    {**WARM, "subgroup": 2},
    {"kind": "local_sgd", "period_group_size_dict": {2: 2, 6: "world"}, "average_at": "begin"},
    {"kind": "diloco", "local_steps": 2},
    {"kind": "zero1"},
    {"kind": "zero1", "parameters_as_bucket_view": True},
    {**PIECES, "bucket_cap": "100 B"},
    {"kind": "zero2", "bucket_cap": "0 B"},
    {"kind": "zero1", "communication": "deepspeed", "reduce_bucket_size": 40},
    {"kind": "zero2", "communication": "deepspeed", "overlap_comm": True},
    {"kind": "zero3"},
    {"kind": "zero3", **SMALL, "max_reuse_distance": 0},
    {"kind": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
    {"kind": "zero2", "communication": "deepspeed", "offload_optimizer": "cpu"},
    {"kind": "fsdp"},
    {"kind": "fsdp", "units": "whole", "reshard_after_forward": True},
    {"kind": "fsdp", "forward_prefetch": 3, "backward_prefetch": 2, "sync": "last"},
    {"kind": "fsdp", "reshard_after_forward": 2, "units": "torchtitan"},
    {"kind": "hsdp", "shard_size": 2},
    {"kind": "hsdp", "shard_size": 2, "offload": "cpu", "sync": "last"},
    {"kind": "fsdp1"},
    {"kind": "fsdp1", "units": "whole", "sharding_strategy": "SHARD_GRAD_OP"},
    {"kind": "fsdp1", "forward_prefetch": True, "backward_prefetch": "none"},
    {"kind": "fsdp1", "sharding_strategy": "HYBRID_SHARD", "shard_size": 2},
    {"kind": "data_parallel"},
    {"kind": "data_parallel", "loss_in_forward": True, "output_device": 1},
    {"kind": "parameter_server"},
]
"""As they are written in a scenario. Those of several ranks can be played by 2 and by 4."""

ON_RANKS = [strategy for strategy in EVERY if strategy["kind"] != "parameter_server"]
"""Those whose ranks are on one clock, without a server."""


def scenario(strategy, world_size=4, cluster=None, collectives=None, numerics=False, **workload):
    """A small scenario of a strategy, on one rank or with one batch where it must be."""
    kind = strategy["kind"]
    world_size = 1 if kind == "single" else world_size
    samples = workload.pop("microbatch", 2)
    if kind == "data_parallel" and "global_batch" not in workload:
        workload["global_batch"] = samples * world_size
    if workload.get("global_batch") is None:
        workload["microbatch"] = samples
    raw = {
        "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
        "workload": {
            "model": {"kind": "mlp", "widths": WIDTHS},
            "dataset": {"kind": "regression", "num_samples": 64},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "steps": 3,
            **workload,
        },
        "strategy": strategy,
        "collectives": collectives or {},
        "numerics": numerics,
    }
    return checked(raw, Path())


def run_of(chosen):
    """Its ranks, before they begin."""
    return Run(chosen, Slowdown(chosen.cluster, chosen.seed), Planner(chosen.cluster))


def launches(run):
    """All collectives of a run, as the clocks get them."""
    return [op for op in run.script() if isinstance(op, Launch)]
