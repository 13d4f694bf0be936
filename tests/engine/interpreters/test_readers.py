"""Readers know nothing of each other: each says alone what it says beside the others."""

import ast
from pathlib import Path

import numpy as np
import pytest
from every_strategy import EARLY, EVERY, ON_RANKS, run_of, scenario
from for_each import for_each, for_some
from hypothesis import given, settings
from hypothesis import strategies as st

import simdp
from simdp.collectives import Plan
from simdp.engine.interpreters.memory import OBSERVED_STEPS
from simdp.engine.ops import ComputeWork, Feed, Launch, MemoryChange
from simdp.engine.replicas import state_dicts
from simdp.engine.simulate import memory_needed
from simdp.results.memory import MEMORY_PARTS
from simdp.steps import ops
from simdp.steps.program import flat

pytestmark = pytest.mark.slow

SAMPLES = {"dataset": {"kind": "regression", "num_samples": 30}, "steps": 4}
"""Of so few that ranks differ in the last step of an epoch."""

UNEVEN = {"samples_per_rank": [9, 5, 8, 8], **SAMPLES}
ADAM = {"optimizer": {"kind": "adam"}, "grad_accum": 2}
INPUT = {"input": {"workers": 1, "per_sample": "1 ms"}}
INFER = {"mode": "inference", "optimizer": "none"}


def several():
    """Every strategy, the first of each kind with all that changes its memory or its costs."""
    kinds = [strategy["kind"] for strategy in ON_RANKS]
    for number, strategy in enumerate(ON_RANKS):
        options = [SAMPLES, ADAM] if strategy["kind"] != "data_parallel" else [SAMPLES]
        if kinds.index(strategy["kind"]) < number and len(options) == 2:
            options = [options[number % 2]]
        if strategy.get("join"):
            options.append(UNEVEN)
        for option in options:
            yield pytest.param(strategy, option, id=f"{strategy} {option}")
    for kind in ("single", "ddp", "data_parallel"):
        yield pytest.param({"kind": kind}, INFER, id=f"{kind} {INFER}")


some_cases = for_some(("strategy", "options"), list(several()), 4)


def plain(value):
    """A field of what the clocks play, in a form that can be compared."""
    if isinstance(value, Plan):
        return value.collective, value.root, value.num_chunks, value.num_transfers
    return value.tolist() if isinstance(value, np.ndarray) else value


def written(run):
    """The script of a run, without what it holds of memory."""
    found = []
    for op in run.script():
        if isinstance(op, MemoryChange):
            continue
        fields = op._asdict()
        fields.pop("pipeline", None)
        found.append((type(op).__name__, {name: plain(value) for name, value in fields.items()}))
    return found


# Memory ------------------------------------------------------------------------------------------


@some_cases
def test_memory_alone_finds_the_ledger_of_a_whole_run(strategy, options):
    alone, whole, counted = (
        run_of(scenario(strategy, numerics=numerics, **options))
        for numerics in (False, True, False)
    )
    alone.follow_memory()
    for run in (whole, counted):
        list(run.script())
        for name in ("now", "peak", "at_peak"):
            found, wanted = getattr(run.memory.ledger, name), getattr(alone.memory.ledger, name)
            np.testing.assert_array_equal(found, wanted)
    assert alone.memory.ledger.peak.max() > 0


@for_some("strategy", EVERY, 3, first=1, ids=str)
def test_the_memory_question_has_the_answer_of_a_run(strategy):
    chosen = scenario(strategy, **SAMPLES)
    peaks = memory_needed(chosen).peak
    assert peaks.tolist() == simdp.simulate(chosen).metrics["peak_memory_bytes"]


def test_a_second_step_of_fewer_micro_steps_keeps_what_a_run_does():
    samples = {"dataset": {"kind": "regression", "num_samples": 64}, "steps": 3}
    chosen = scenario({"kind": "ddp"}, **samples, microbatch=4, grad_accum=3)
    first, second, *_ = chosen.workload.batches(4, chosen.seed, chosen.base)
    assert (len(first.sizes), len(second.sizes)) == (3, 1)
    peaks = memory_needed(chosen).peak
    assert peaks.tolist() == simdp.simulate(chosen).metrics["peak_memory_bytes"]


def test_what_may_be_left_out_is_followed_too(monkeypatch):
    run = run_of(scenario({"kind": "ddp"}))
    room = ops.Unless((ops.Hold("temporary", 1e9), ops.Hold("temporary", -1e9)))
    plan = run.program.plan
    monkeypatch.setattr(run.program, "plan", lambda *asked: (*plan(*asked), room))
    run.follow_memory()
    assert run.memory.ledger.peak.min() > 1e9


@some_cases
def test_what_steps_take_they_give_back(strategy, options):
    """What is kept from the end of the first step on does not grow."""
    run = run_of(scenario(strategy, **options))
    assert run.scenario.workload.steps > OBSERVED_STEPS or options is INFER
    kept = []
    list(run.setup())
    batches = run.scenario.workload.batches(run.world_size, 0, run.scenario.base)
    for step, of in zip(range(OBSERVED_STEPS), batches, strict=False):
        list(run.step(step, of))
        kept.append(run.memory.ledger.now)
    np.testing.assert_allclose(kept[1], kept[0], atol=1e-6)
    passing = [
        MEMORY_PARTS.index(part) for part in ("activations", "temporary", "gathered", "inputs")
    ]
    if strategy["kind"] == "zero3":  # small parameters stay
        passing.remove(MEMORY_PARTS.index("gathered"))
    if strategy["kind"] != "data_parallel" or options is not INFER:  # its copies stay there
        np.testing.assert_allclose(kept[0][passing], 0, atol=1e-6)


# Costs -------------------------------------------------------------------------------------------


@some_cases
def test_costs_without_numbers_are_those_with_them(strategy, options):
    scripts = [
        written(run_of(scenario(strategy, numerics=numerics, **options)))
        for numerics in (True, False)
    ]
    assert scripts[0] == scripts[1]
    assert any(kind == "ComputeWork" for kind, _ in scripts[0])


@settings(max_examples=8)
@given(st.sampled_from(ON_RANKS), st.booleans(), st.integers(0, 3))
def test_stragglers_input_and_overheads_need_no_numbers_either(strategy, copies, rank):
    world_size = 1 if strategy["kind"] == "single" else 4
    slow = [{"kind": "slow_rank", "rank": rank % world_size, "factor": 1.7}]
    slow += [{"kind": "lognormal", "sigma": 0.2}]
    cluster = {"stragglers": slow, "overheads": {"hook": "2 us", "launch": "3 us"}}
    cluster["overheads"]["copies"] = copies
    scripts = [
        written(run_of(scenario(strategy, cluster=cluster, numerics=numerics, **INPUT)))
        for numerics in (True, False)
    ]
    assert scripts[0] == scripts[1]
    assert any(kind == "Feed" for kind, _ in scripts[0])


@pytest.mark.parametrize("fault", ["inf", "nan"])
def test_what_a_skipped_step_costs_is_foretold(fault):
    """A forecast leaves out what numbers would."""
    amp = {"precision": {"kind": "amp", "dtype": "float16", "init_scale": 1024.0}, "steps": 4}
    amp["inject"] = [{"kind": fault, "rank": 1, "step": 2}]
    for strategy in ({"kind": "ddp"}, {"kind": "zero1"}, {"kind": "zero2"}, {"kind": "fsdp"}):
        scripts = [
            written(run_of(scenario(strategy, numerics=numerics, **amp)))
            for numerics in (True, False)
        ]
        assert scripts[0] == scripts[1]
        steps = [
            sum(kind == "Launch" and fields["step"] == step for kind, fields in scripts[0])
            for step in range(1, 4)
        ]
        assert (steps[0] < steps[1]) == (strategy["kind"] in ("zero1", "zero2"))
        assert steps[1] == steps[2]


@for_each("strategy", ON_RANKS, ids=str)
def test_every_collective_of_a_plan_is_launched_once_and_in_its_order(strategy):
    chosen = scenario(strategy)
    run = run_of(chosen)
    script = list(run.script())
    assert not any(isinstance(op, Feed) for op in script)
    assert all(op.seconds.min() >= 0 for op in script if isinstance(op, ComputeWork))
    batches = chosen.workload.batches(run.world_size, chosen.seed, chosen.base)
    for number, of in enumerate(batches):
        asked = [op.label for op in flat(run.program.plan(number, of)) if hasattr(op, "tag")]
        found = [op for op in script if isinstance(op, Launch) and op.step == number]
        copied = {"losses", "outputs", "output gradients", "x", "y"}
        assert [op.name for op in found if op.name not in copied] == asked


# Numbers -----------------------------------------------------------------------------------------


@for_some("strategy", [s for s in ON_RANKS if s["kind"] != "data_parallel"], 3, ids=str)
def test_numbers_alone_are_those_of_a_whole_run(strategy):
    chosen = scenario(strategy, numerics=True, **SAMPLES)
    alone, numbers = run_of(chosen), None
    numbers = alone.numbers
    for op in alone.program.setup:
        numbers.read(op)
    batches = chosen.workload.batches(alone.world_size, chosen.seed, chosen.base)
    for number, of in enumerate(batches):
        numbers.begin(number, of)
        for op in flat(alone.program.plan(number, of)):
            numbers.read(op)
        numbers.end()
    result = simdp.simulate(chosen)
    assert [record.loss for record in numbers.records] == result.metrics["loss"]
    for own, kept in zip(state_dicts(numbers.replicas), result.replicas, strict=True):
        for name, weights in kept.items():
            assert own[name].tobytes() == weights.tobytes()


def test_a_hook_that_begins_late_is_read_when_it_begins():
    chosen = scenario({"kind": "ddp", "comm_hook": EARLY}, numerics=True)
    run = run_of(chosen)
    kinds = {type(op) for plan in run.program.plans for op in plan}
    assert {ops.SplitBucket, ops.Join, ops.AllReduce} <= kinds
    names = [fields["name"] for kind, fields in written(run) if kind == "Launch"]
    assert any(name.endswith(" Q") for name in names)


# Independence ------------------------------------------------------------------------------------

READERS = {"costs", "memory", "numbers"}
ROOM = Path(simdp.__file__).parent / "engine" / "interpreters"


@for_each("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_nothing_in_their_room_imports_a_reader(path):
    found = {
        node.module.rpartition(".")[2]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("simdp.engine.interpreters")
    }
    assert not found & READERS
    assert {other.stem for other in ROOM.glob("*.py")} >= READERS
