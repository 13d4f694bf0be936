"""Advice: a change is named where it clearly helps, and only where somebody has simulated it."""

import copy
import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import simdp
from simdp.scenario import checked
from simdp.scenario.overrides import override_all
from simdp.strategies import STRATEGIES
from simdp.studies import advice
from simdp.studies.advice import would_help
from simdp.studies.variants import shortened
from tests.for_each import for_each, for_some

SLOW_LINK = {
    "cluster": {
        "world_size": 4,
        "device": "a100-sxm4-80gb",
        "topology": "ring",
        "link": {"alpha": "5 us", "bandwidth": "1 GB/s"},
    },
    "workload": {"model": {"kind": "mlp", "widths": [1024, 1024, 1024, 8]}, "microbatch": 64},
    "numerics": False,
}


def found(tmp_path, **settings):
    scenario = checked(override_all(copy.deepcopy(SLOW_LINK), settings, tmp_path), tmp_path)
    return scenario, would_help(scenario, simdp.simulate(scenario))


def test_each_line_is_true(tmp_path):
    scenario, said = found(tmp_path)
    assert said.num_tried >= len(said.lines) >= 2
    base = simdp.simulate(scenario).metrics["throughput_samples_per_s"]
    for line in said.lines:
        factor, key, value = re.match(
            r"([\d.]+)x samples/s: (\S+): (.+?)(?: \(.*\))?$", line
        ).groups()
        value = int(value) if value.isdecimal() else value
        changed = checked(override_all(copy.deepcopy(SLOW_LINK), {key: value}, tmp_path), tmp_path)
        rate = simdp.simulate(changed).metrics["throughput_samples_per_s"]
        assert rate / base == pytest.approx(float(factor), rel=0.01), line
        assert rate > 1.05 * base
    assert [line for line in said.lines if "16" in line or "grad_accum: 4" in line]


def test_what_changes_more_than_time_is_said(tmp_path):
    _, said = found(tmp_path)
    for line in said.lines:
        assert ("comm_hook" in line) == ("gradients are rounded" in line)
        assert ("grad_accum" in line) == ("4 x the samples" in line)


def test_one_waiting_pass_would_overlap_again(tmp_path, monkeypatch):
    monkeypatch.setattr(advice, "MOST", 10)
    _, said = found(
        tmp_path,
        **{
            "strategy": {"kind": "ddp", "overlap": False, "bucket_cap": "1 MiB"},
            "workload.microbatch": 8192,
        },
    )
    assert any("strategy.overlap: true" in line for line in said.lines)


def test_nothing_is_tried_where_nothing_is_to_be_gained_or_it_would_take_long(
    tmp_path, monkeypatch
):
    assert found(tmp_path, **{"cluster.link": "nvlink3", "workload.microbatch": 65536})[1] is None
    assert found(tmp_path, **{"cluster.world_size": 1})[1] is None
    assert found(tmp_path, **{"workload.mode": "inference"})[1] is None
    monkeypatch.setattr(advice, "MAX_RANKS", 3)
    assert found(tmp_path)[1] is None


def test_a_run_of_times_alone_begins_as_a_run_of_its_first_steps(tmp_path):
    scenario = checked(override_all(copy.deepcopy(SLOW_LINK), {}, tmp_path), tmp_path)
    scenario = scenario.model_copy(
        update={"workload": scenario.workload.model_copy(update={"steps": 6})}
    )
    rate = advice._first_steps(scenario, simdp.simulate(scenario))
    assert rate == advice._samples_per_second(shortened(scenario, advice.STEPS))
    short = scenario.model_copy(
        update={"workload": scenario.workload.model_copy(update={"steps": 2})}
    )
    assert advice._first_steps(short, simdp.simulate(short)) is None


TWO_NODES = {
    "cluster": {"machine": "aws-g4dn", "world_size": 2},
    "workload": {
        "model": {"kind": "bert-base", "sequence_length": 80},
        "optimizer": "adamw",
        "microbatch": 16,
        "grad_accum": 4,
        "precision": {"kind": "amp", "dtype": "float16"},
        "steps": 2,
    },
    "strategy": {"kind": "ddp", "no_sync": False},
    "numerics": False,
}
"""huggingface/accelerate#1153: an exchange after each of four micro-batches, between two nodes."""


def changes(**settings):
    raw = override_all(copy.deepcopy(TWO_NODES), settings, Path())
    scenario = checked(raw, Path())
    return scenario, dict(would_help(scenario, simdp.simulate(scenario)).changes)


@pytest.mark.slow
def test_one_exchange_a_step_comes_first_where_each_micro_batch_has_one():
    _, gains = changes()
    assert next(iter(gains)) == "strategy.no_sync: true"
    assert gains["strategy.no_sync: true"] == pytest.approx(1.41, rel=0.01)
    assert gains["strategy.comm_hook: fp16 (gradients are rounded)"] == pytest.approx(1.4, rel=0.01)
    assert not any("sync" in change for change in changes(**{"strategy.no_sync": True})[1])


@pytest.mark.slow
@for_some("strategy", ["fsdp", "hsdp"], 2)
def test_a_sharded_strategy_may_exchange_once_a_step_where_gradients_fit(strategy):
    nodes = {"strategy": strategy, "cluster.machine": "aws-p4d", "cluster.world_size": 16}
    nodes["workload.model.num_hidden_layers"] = 2
    scenario, gains = changes(**nodes)
    (line,) = (change for change in gains if change.startswith("strategy.sync: last"))
    assert re.search(r"\(\d+ MB more memory\)$", line)
    now = max(simdp.simulate(scenario).metrics["peak_memory_bytes"])
    device = scenario.cluster.devices()[0].model_dump(mode="json", exclude_none=True)
    small = {**device, "memory": f"{int(now * 1.05)} B"}
    _, gains = changes(**nodes, **{"cluster.device": small})
    assert not any("strategy.sync" in change for change in gains)


@pytest.mark.long
@pytest.mark.slow
@for_each(
    "strategy",
    [
        {"kind": "ddp", "overlap": False},
        {"kind": "zero2", "overlap": False},
        {"kind": "fsdp1", "backward_prefetch": "none"},
    ],
)
def test_what_a_strategy_was_kept_from_is_offered(strategy):
    (key,) = {*strategy} - {"kind"}
    nodes = {"cluster.machine": "aws-p4d", "cluster.world_size": 16, "workload.grad_accum": 1}
    _, gains = changes(strategy=strategy, **nodes)
    assert any(change.startswith(f"strategy.{key}: ") for change in gains)


@for_each("kind", list(STRATEGIES))
def test_every_faster_option_is_one_that_its_strategy_has(kind):
    for key, value in {**STRATEGIES[kind].faster_options, **STRATEGIES[kind].sync_once}.items():
        field = STRATEGIES[kind].model_fields[key]
        assert TypeAdapter(field.annotation).validate_python(value) == value
