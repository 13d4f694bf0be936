"""Audits of scenarios: each planted option is found by its experiment, and clean ones pass."""

from pathlib import Path

from every_strategy import EVERY, scenario
from for_each import for_each, for_some

from simdp.results.audit import LEGITIMATE
from simdp.studies.audit.experiments import audit_point

ROOT = Path(__file__).parents[2]

BATCH_NORM = {
    "kind": "sequential",
    "layers": [
        {"name": "l1", "kind": "linear", "in_features": 6, "out_features": 5},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 5},
        {"kind": "tanh"},
        {"name": "l2", "kind": "linear", "in_features": 5, "out_features": 3},
    ],
}
DROPOUT = {
    "kind": "sequential",
    "layers": [
        {"name": "l1", "kind": "linear", "in_features": 6, "out_features": 5},
        {"kind": "dropout", "p": 0.5},
        {"name": "l2", "kind": "linear", "in_features": 5, "out_features": 3},
    ],
}
UNEVEN = {"global_batch": 10, "dtype": "float64"}
AMP = {"precision": {"kind": "amp", "dtype": "float16", "init_scale": 256}}
TOP_K = {"kind": "top_k", "ratio": 0.2}


def audited(strategy="ddp", world_size=4, cluster=None, exact=False, **workload):
    """The audit of a small scenario."""
    strategy = {"kind": strategy} if isinstance(strategy, str) else strategy
    made = scenario(strategy, world_size, cluster, numerics=True, **workload)
    return audit_point("", made, "mine.yaml", {}, exact, (), None)


def causes(audit):
    return [finding.cause for finding in audit.findings]


# Planted ------------------------------------------------------------------------------------------

PLANTED = {
    "uneven batches": (["loss_mean_of_rank_means"], "ddp", UNEVEN),
    "uneven batches of zero": (["loss_mean_of_rank_means"], "zero1", UNEVEN),
    "uneven batches of fsdp": (["loss_mean_of_rank_means"], "fsdp", UNEVEN),
    "uneven batches of a server": (["loss_mean_of_rank_means"], "parameter_server", UNEVEN),
    "a sum": (
        ["loss_sum_not_averaged"],
        "ddp",
        {"loss": {"kind": "mse", "reduction": "sum"}},
    ),
    "gradients that are summed": (
        ["loss_sum_not_averaged"],
        {"kind": "apex", "gradient_average": False},
        {},
    ),
    "batch norm": (["batchnorm_local_statistics"], "ddp", {"model": BATCH_NORM}),
    "batch norm of micro-batches": (
        ["batchnorm_local_statistics"],
        "ddp",
        {"model": BATCH_NORM, "grad_accum": 2},
    ),
    "batch norm of a server": (
        ["batchnorm_local_statistics"],
        "parameter_server",
        {"model": BATCH_NORM},
    ),
    "16 bits": (["compressed_gradients"], {"kind": "ddp", "comm_hook": "fp16"}, {}),
    "top-k": (["compressed_gradients"], {"kind": "ddp", "comm_hook": TOP_K}, {}),
    "horovod's 16 bits": (["compressed_gradients"], {"kind": "horovod", "compression": "fp16"}, {}),
    "no communication": (["bypassed_ddp"], {"kind": "ddp", "comm_hook": "noop"}, {}),
    "an asynchronous server": (
        ["stale_gradients"],
        {"kind": "parameter_server", "updates": "asynchronous"},
        {},
    ),
    "a server's backups": (["dropped_ranks"], {"kind": "parameter_server", "backup": 1}, {}),
    "backup ranks": (["dropped_ranks"], {"kind": "ddp", "backup_ranks": 1}, {}),
    "local steps": (["local_updates"], {"kind": "local_sgd", "local_steps": 2}, {}),
    "diloco": (["local_updates"], {"kind": "diloco", "local_steps": 2}, {}),
    "unused parameters": (
        ["unused_parameters"],
        {"kind": "ddp", "find_unused_parameters": True},
        {"unused": {1: ["layers.0.bias"]}},
    ),
    "join": (
        ["last_batch_smaller"],
        {"kind": "ddp", "join": True},
        {"samples_per_rank": [2, 4, 6, 4], "steps": None, "epochs": 1},
    ),
    "a loss in forward": (
        ["loss_mean_of_rank_means"],
        {"kind": "data_parallel", "loss_in_forward": True},
        UNEVEN,
    ),
    "padding": (
        ["sampler_padding_duplicates"],
        "ddp",
        {"dataset": {"kind": "regression", "num_samples": 62}},
    ),
    "batch norm and compression": (
        ["compressed_gradients", "batchnorm_local_statistics"],
        {"kind": "ddp", "comm_hook": TOP_K},
        {"model": BATCH_NORM},
    ),
    "uneven batches and dropped ranks": (
        ["loss_mean_of_rank_means", "dropped_ranks"],
        {"kind": "ddp", "backup_ranks": 1},
        UNEVEN,
    ),
    "an asynchronous server and batch norm": (
        ["stale_gradients", "batchnorm_local_statistics"],
        {"kind": "parameter_server", "updates": "asynchronous"},
        {"model": BATCH_NORM},
    ),
    "uneven batches and local steps": (
        ["local_updates", "loss_mean_of_rank_means"],
        {"kind": "local_sgd", "local_steps": 2},
        UNEVEN,
    ),
    "uneven batches and an asynchronous server": (
        ["stale_gradients", "loss_mean_of_rank_means"],
        {"kind": "parameter_server", "updates": "asynchronous"},
        UNEVEN,
    ),
}
"""What is planted: the causes, the strategy, and the workload."""


@for_each("name", PLANTED)
def test_a_planted_option_is_named_by_its_experiment(name):
    wanted, strategy, workload = PLANTED[name]
    audit = audited(strategy, **workload)
    assert causes(audit) == wanted
    for finding in audit.findings:
        assert finding.legitimate is (finding.cause in LEGITIMATE)
        if finding.cause != "sampler_padding_duplicates":
            assert finding.size > 1e-6
            assert "1 and 4 ranks agree" in finding.proof
            assert finding.step >= 1
    assert any(one.explains for one in audit.experiments) or wanted[0].startswith("sampler")


# Clean --------------------------------------------------------------------------------------------

CLEAN = {
    "weighted shards": ({"kind": "ddp", "weight_by_shard": True}, UNEVEN),
    "a weighted sum": (
        {"kind": "ddp", "weight_by_shard": True},
        {"loss": {"kind": "mse", "reduction": "sum"}},
    ),
    "synchronised batch norm": ("ddp", {"model": BATCH_NORM, "sync_batchnorm": True}),
    "dropout": ("ddp", {"model": DROPOUT}),
    "clipping": ("ddp", {"clip_grad_norm": 0.01}),
    "accumulation": ("ddp", {"grad_accum": 3}),
    "scaled learning rate": ("ddp", {"lr_scaling": "linear"}),
    "a skipped step": ("ddp", {**AMP, "inject": [{"kind": "inf", "rank": 1, "step": 2}]}),
    "a step that is lost": ("ddp", {"inject": [{"kind": "nan", "rank": 1, "step": 2}]}),
    "16-bit compute": ("zero2", AMP),
    "a policy of precision": ({"kind": "fsdp", "param_dtype": "bfloat16"}, {}),
    "master weights": ("fsdp", {"precision": {"kind": "mixed", "dtype": "bfloat16"}}),
    "one local step": ({"kind": "local_sgd", "local_steps": 1}, {}),
    "other shares": (
        {"kind": "ddp", "weight_by_shard": True},
        {"global_batch": 16, "rebalance": {"shares": [1, 2, 3, 2]}},
    ),
    "a schedule by plateaus": (
        "ddp",
        {"lr_schedule": {"kind": "reduce_lr_on_plateau", "patience": 0, "per": "step"}},
    ),
    "frozen parameters": ("fsdp", {"frozen": ["layers.0.*"]}),
}


@for_each("name", CLEAN)
def test_what_is_equal_passes(name):
    strategy, workload = CLEAN[name]
    audit = audited(strategy, **workload)
    assert audit.findings == []
    assert {check.status for check in audit.checks} == {"ok"}
    assert audit.tensors == []


def wanted_of(strategy):
    """Causes by which a strategy of `EVERY` differs on equal shards."""
    if strategy["kind"] == "diloco" or strategy.get("local_steps") or "period" in str(strategy):
        return {"local_updates"}
    hook = str(strategy.get("comm_hook", "")) + str(strategy.get("compression", ""))
    return {"compressed_gradients"} if hook else set()


@for_some("strategy", [one for one in EVERY if one["kind"] != "single"], every=6)
def test_every_strategy_is_audited(strategy):
    assert set(causes(audited(strategy, steps=4))) == wanted_of(strategy)
