"""Audits of scenarios: each planted option is found by its experiment, and clean ones pass."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from every_strategy import EVERY, scenario
from for_each import for_each, for_some

import simdp
from simdp.engine.stepwise import steps_of
from simdp.errors import ScenarioError
from simdp.files import format_yaml
from simdp.results.audit import CAUSES, LEGITIMATE
from simdp.studies.audit import audit_scenario
from simdp.studies.audit.experiments import audit_point, short, within
from simdp.studies.audit.sides import joined, num_compared, one_device

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


@pytest.mark.slow
@for_some("name", PLANTED, every=4)
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


@pytest.mark.slow
@for_some("name", CLEAN, every=2)
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


@pytest.mark.slow
@for_some("strategy", [one for one in EVERY if one["kind"] != "single"], every=12)
def test_every_strategy_is_audited(strategy):
    assert set(causes(audited(strategy, steps=4))) == wanted_of(strategy)


ACTING = {
    "batchnorm_local_statistics": {"model": BATCH_NORM},
    "loss_mean_of_rank_means": UNEVEN,
    "loss_sum_not_averaged": {"loss": {"kind": "mse", "reduction": "sum"}},
    None: {
        "clip_grad_norm": 0.1,
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "grad_accum": 2,
    },
}
"""Workloads by the cause that they add to a strategy's own."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cause", ACTING)
def test_causes_of_the_workload_and_of_the_strategy_are_found_together(cause):
    for strategy in EVERY:
        rounds = cause == "loss_mean_of_rank_means" and strategy.get("mixed_precision")
        if strategy["kind"] == "single" or rounds:  # which is in float64
            continue
        gathers = strategy["kind"] == "data_parallel" and not strategy.get("loss_in_forward")
        added = set() if gathers and cause != "batchnorm_local_statistics" else {cause}
        wanted = wanted_of(strategy) | (added - {None})
        assert set(causes(audited(strategy, **ACTING[cause]))) == wanted, strategy


def test_the_steps_that_are_compared_hold_faults_periods_and_smaller_batches():
    def steps(**workload):
        made = scenario({"kind": "ddp"}, numerics=True, **{"steps": 99, **workload})
        return num_compared(made, None)

    assert steps() == 16
    assert steps(inject=[{"kind": "nan", "rank": 0, "step": 40}]) == 41
    wide = {"kind": "mlp", "widths": [6, 4096, 4096, 3]}
    assert steps(model=wide, microbatch=16) == 6
    assert num_compared(scenario({"kind": "ddp"}, numerics=True, steps=3), 9) == 3
    local = scenario({"kind": "local_sgd", "local_steps": 40}, numerics=True, steps=99)
    assert num_compared(local, None) == 41


def test_every_departure_of_a_strategy_has_a_cause_of_audits():
    for strategy in EVERY:
        made = scenario(strategy, numerics=True)
        for one in made.strategy.departures(made.workload):
            assert one.cause in CAUSES


# Shipped ------------------------------------------------------------------------------------------

DIFFERING = {
    "async_staleness": {"stale_gradients"},
    "backup_ranks": {"dropped_ranks"},
    "compression": {"compressed_gradients"},
    "diloco": {"local_updates"},
    "local_sgd": {"local_updates"},
    "local_sgd_time_to_loss": {"compressed_gradients", "local_updates"},
    "resnet_small": {"batchnorm_local_statistics"},
    "seed_mlp": {"loss_mean_of_rank_means"},
    "seq2seq_noam": {"loss_mean_of_rank_means"},
    "sync_batchnorm": {"batchnorm_local_statistics"},
    "uneven_shards": {"loss_mean_of_rank_means"},
}
"""Shipped scenarios that do not train as one device does, and why."""

EQUAL = {"8gpu_ring", "amp_skip", "bert_mnli_small", "einsum_2gpu", "llama_small"}
EQUAL |= {"msccl_all_pairs"}

QUICK = {"amp_skip", "msccl_all_pairs", "seed_mlp", "uneven_shards"}

FEW = {"resnet_small": 2}
FEW |= dict.fromkeys(("8gpu_ring", "async_staleness", "bert_mnli_small", "compression"), 4)
FEW |= dict.fromkeys(("einsum_2gpu", "llama_small", "local_sgd_time_to_loss", "seq2seq_noam"), 4)
"""Scenarios whose steps take long, and how many are compared."""

LONG = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long])
    for name in sorted({*DIFFERING, *EQUAL})
]


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_shipped_scenario_passes_or_differs_as_its_comment_says(name):
    found = audit_scenario(name, max_steps=FEW.get(name))
    assert {finding.cause for finding in found.findings} == DIFFERING.get(name, set())
    wrong = {finding.cause for finding in found.findings if finding.wrong}
    assert found.same is not bool(wrong)
    lines = (ROOT / f"scenarios/{name}.yaml").read_text().splitlines()
    for finding in found.findings:
        key = lines[finding.line - 1]
        assert any(word in key for word in ("weight_by_shard", "strategy", "local_steps")) or (
            finding.cause in ("batchnorm_local_statistics", "loss_mean_of_rank_means")
        )


def test_the_comment_of_a_shipped_scenario_names_the_causes():
    for path in (ROOT / "scenarios").glob("*.yaml"):
        lines = path.read_text().splitlines()
        comment = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
        named = {cause for cause in CAUSES if re.search(rf"\b{cause}\b", " ".join(comment))}
        assert named - {"rounding"} == DIFFERING.get(path.stem, set()), path.stem


SHIPPED = sorted((ROOT / "scenarios").glob("*.yaml"))
WITHOUT = [p for p in SHIPPED if p.stem not in DIFFERING and p.stem not in EQUAL]


@pytest.mark.slow
@for_some("path", WITHOUT, every=9, ids=lambda path: path.stem)
def test_a_shipped_scenario_without_numbers_is_refused(path):
    with pytest.raises(ScenarioError) as error:
        audit_scenario(path)
    (line,) = error.value.problems
    assert line.startswith(f"{path}: numerics: false: without numbers") or "inference" in line


# Scenarios as files -------------------------------------------------------------------------------

JOB = {
    "cluster": {"world_size": 4, "device": "t4-16gb", "link": "pcie3-x16", "topology": "ring"},
    "workload": {
        "model": {"kind": "mlp", "widths": [6, 8, 3]},
        "dataset": {"kind": "regression", "num_samples": 60},
        "microbatch": 4,
        "steps": 3,
    },
}


@pytest.fixture
def job(tmp_path):
    def write(**strategy):
        path = tmp_path / "job.yaml"
        path.write_text(format_yaml({**JOB, "strategy": {"kind": "ddp", **strategy}}))
        return path

    return write


def test_a_finding_has_the_line_of_its_key(job):
    path = job(comm_hook="fp16")
    (finding,) = audit_scenario(path).findings
    assert (finding.file, finding.legitimate) == (str(path), True)
    assert "comm_hook" in path.read_text().splitlines()[finding.line - 1]


def test_a_cause_that_is_allowed_is_not_wrong(job):
    path, uneven = job(), {"workload.microbatch": None, "workload.global_batch": 10}
    found = audit_scenario(path, uneven)
    assert not found.same
    assert {check.status for check in found.checks} == {"ok", "differ"}
    allowed = audit_scenario(path, uneven, allow=["loss_mean_of_rank_means"])
    assert allowed.same
    assert [(one.allowed, one.wrong) for one in allowed.findings] == [(True, False)]
    assert {check.status for check in allowed.checks} == {"ok", "allowed"}


def test_other_numbers_of_ranks_share_the_global_batch(job):
    found = audit_scenario(job(), ranks=[1, 2, 8])
    assert found.ranks == (1, 2, 8)
    assert found.batch == 16
    assert {check.point for check in found.checks} == {
        "cluster.world_size=2",
        "cluster.world_size=8",
    }
    with pytest.raises(ScenarioError, match="--ranks 3: 16 samples of a micro-step do not divide"):
        audit_scenario(job(), ranks=[3])


def test_one_rank_has_nothing_to_be_compared_with(job):
    with pytest.raises(ScenarioError, match="world_size: 1 rank has nothing to be compared with"):
        audit_scenario(job(), {"cluster.world_size": 1})
    with pytest.raises(ScenarioError, match="inference trains nothing to compare"):
        audit_scenario(job(), {"workload.mode": "inference", "workload.dataset.num_samples": 64})


def test_the_exact_run_is_in_float64_where_rounding_is_small(job):
    written, exact = audit_scenario(job()), audit_scenario(job(), exact=True)
    sizes = [
        float(next(c.text for c in found.checks if c.topic == "gradients").split()[2])
        for found in (written, exact)
    ]
    assert sizes[0] > 1e-8
    assert sizes[1] < 1e-14


def test_repeated_and_missed_samples_are_counted(job):
    found = audit_scenario(job(), {"workload.dataset.num_samples": 62})
    assert (found.seen_twice, found.missed, found.samples) == (2, 0, 62)
    assert [one.cause for one in found.findings] == ["sampler_padding_duplicates"]
    assert found.same
    dropped = audit_scenario(
        job(), {"workload.dataset.num_samples": 62, "workload.drop_last": True}
    )
    assert (dropped.seen_twice, dropped.missed) == (0, 14)
    assert "14 missed (drop_last)" in dropped.checks[0].text


def test_the_document_has_its_keys_and_the_ledger_every_sample(job):
    found = audit_scenario(job(comm_hook="top_k"), max_steps=2)
    document = json.loads(found.to_json())
    for key in ("same", "ranks", "findings", "samples", "resume"):
        assert key in document
    assert document["samples"] == {"seen_twice": 0, "missed": 0, "of": 60}
    assert document["resume"] == {"same": None, "step": None}
    assert len(document["ledger"]) == 4 * 2
    first = [row["samples"] for row in document["ledger"] if row["step"] == 1]
    assert sorted(itertools.chain(*first)) == list(range(16))
    assert found.notes == ("differences and experiments are in float64",)
    assert all(row["size"] > row["bound"] for row in document["tensors"])


# Rounding -----------------------------------------------------------------------------------------


def test_a_difference_that_vanishes_in_float64_is_rounding(monkeypatch):
    """With the bound of float64, float32 differs."""
    monkeypatch.setattr("simdp.studies.audit.sides.unit", lambda scenario: 2.0**-52)
    audit = audited()
    (finding,) = audit.findings
    assert (finding.cause, finding.legitimate) == ("rounding", True)
    assert finding.text == "rounding of float32"
    assert finding.proof.startswith("with workload.dtype: float64, 1 and 4 ranks agree to ")
    assert all(one.explains for one in audit.experiments)


def test_low_precision_does_not_hide_a_cause():
    """Rounding to 16 bits would explain the difference of unequal shards; float64 does not."""
    audit = audited(global_batch=42, **AMP, dataset={"kind": "regression", "num_samples": 84})
    assert causes(audit) == ["loss_mean_of_rank_means"]
    assert audit.notes[-1] == "differences and experiments are in float64"
    assert causes(audited(**AMP)) == []


def test_what_no_option_explains_is_unexplained(monkeypatch):
    monkeypatch.setattr("simdp.studies.audit.experiments.suspects_of", lambda *given: [])
    audit = audited(**UNEVEN)
    (finding,) = audit.findings
    assert (finding.cause, finding.legitimate, finding.wrong) == ("unexplained", False, True)
    assert finding.proof == "nothing to be undone"
    assert (finding.file, finding.line) == (None, None)


def test_one_device_has_all_samples_of_a_step_in_one_micro_batch():
    made = scenario({"kind": "ddp"}, numerics=True, grad_accum=3)
    first = next(iter(made.workload.batches(4, 0, Path())))
    whole = joined(first)
    assert whole.sizes.tolist() == [[24]]
    assert sorted(whole.micro[0][0].tolist()) == sorted(
        sample for parts in first.micro for part in parts for sample in part.tolist()
    )
    alone = one_device(made, 24)
    assert (alone.cluster.world_size, alone.strategy.kind) == (1, "single")
    assert (alone.workload.microbatch, alone.workload.grad_accum) == (24, 1)


def test_one_device_learns_what_a_run_of_single_learns():
    """The numbers without a clock are those of `simulate`."""
    made = scenario({"kind": "single"}, numerics=True, microbatch=8)
    steps = list(steps_of(made, made.workload.batches(1, 0, Path())))
    result = simdp.simulate(made)
    assert [step.loss for step in steps] == result.metrics["loss"]
    for name, weight in result.replicas[0].items():
        np.testing.assert_array_equal(steps[-1].weights[name], weight)


def test_rounding_is_written_as_the_power_of_ten_above_it():
    assert [within(value) for value in (0.0, 3e-16, 1e-7, 0.2, 13.0)] == [
        *("0", "1e-15", "1e-7", "1e0", "1e2")
    ]


@for_each("value", [(4.2e-3, "4e-3"), (0.0, "0"), (0.56, "0.56"), (2.4, "2.4"), (np.inf, "inf")])
def test_sizes_are_short(value):
    assert short(value[0]) == value[1]
