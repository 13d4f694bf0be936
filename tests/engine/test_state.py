"""State: a run that stopped and goes on is, to the bit, the run that never stopped."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from every_strategy import EVERY, scenario
from for_each import for_each, for_some, one_in
from small_scenario import CLUSTER
from small_workload import CLASSIFIER

from simdp import simulate
from simdp.engine.state import State
from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.results.trace import Columns
from simdp.scenario import checked
from simdp.studies.sweep import sweep
from simdp.workload.sampling import START, epoch_order

pytestmark = pytest.mark.slow

LATE = [
    {"kind": "slow_rank", "rank": 1, "factor": 1.5},
    {"kind": "lognormal", "sigma": 0.2},
    {"kind": "pause", "rank": 0, "every": 3, "duration": "1 ms"},
    {"kind": "pause", "rank": 1, "every": "100 us", "duration": "20 us"},
]
MIXED = {"kind": "mixed", "dtype": "bfloat16"}
AMP = {"kind": "amp", "dtype": "float16", "growth_interval": 2}
OVERFLOW = {"precision": AMP, "inject": [{"kind": "inf", "rank": 1, "step": 3}]}
OPTIMIZER = {"optimizer": {"kind": "adamw", "lr": 0.01}, "clip_grad_norm": 0.05}
EACH = {"epochs": 2, "steps": None, "dataset": {"kind": "regression", "num_samples": 22}}
NOISY = {
    "kind": "sequential",
    "layers": [
        {"kind": "linear", "in_features": 6, "out_features": 8},
        {"kind": "batch_norm1d", "num_features": 8},
        {"kind": "dropout", "p": 0.3},
        {"kind": "linear", "in_features": 8, "out_features": 3},
    ],
}
PADDED = {**CLASSIFIER, "dropout": 0.2}
SENTENCES = {"kind": "tokens", "num_samples": 16, "sequence_length": 8, "min_length": 2}
PLATEAU = {"kind": "reduce_lr_on_plateau", "patience": 0, "threshold": 0.3}
SERVER = {"kind": "parameter_server"}

RUNS = {
    **{f"{number} {strategy['kind']}": (strategy, {}) for number, strategy in enumerate(EVERY)},
    "uneven epochs": ({"kind": "ddp"}, EACH | {"shuffle": True}),
    "join": (
        {"kind": "ddp", "join": True},
        EACH | {"samples_per_rank": [9, 4, 6, 3], "grad_accum": 2},
    ),
    "adamw, clipped": ({"kind": "ddp"}, OPTIMIZER),
    "adamw in pieces": ({"kind": "fsdp"}, OPTIMIZER),
    "a rate that changes": (
        {"kind": "zero1"},
        {
            "lr_schedule": {"kind": "cosine_warmup", "warmup_steps": 2, "total_steps": 6},
            "grad_accum": 2,
        },
    ),
    "a rate that follows the loss": (
        {"kind": "fsdp"},
        {"lr_schedule": PLATEAU, "optimizer": {"kind": "sgd", "lr": 2.0}},
    ),
    "a rate that follows the loss of epochs": (
        {"kind": "ddp"},
        EACH | {"lr_schedule": PLATEAU | {"per": "epoch"}},
    ),
    "adafactor of owners": ({"kind": "zero1"}, {"optimizer": "adafactor"}),
    "asgd in pieces": (
        {"kind": "fsdp"},
        {"lr_schedule": {"kind": "exponential_lr", "gamma": 0.5}, "optimizer": "asgd"},
    ),
    "lamb in pieces": ({"kind": "fsdp"}, {"optimizer": "lamb"}),
    "a momentum that changes": (
        {"kind": "zero2"},
        {
            "lr_schedule": {"kind": "one_cycle_lr", "max_lr": 0.1, "total_steps": 5},
            "optimizer": {"kind": "adam"},
        },
    ),
    "torch's shuffle": ({"kind": "ddp"}, EACH | {"shuffle": {"torch": "random_sampler"}}),
    "overflow": ({"kind": "ddp"}, OVERFLOW),
    "overflow of one rank's own": ({"kind": "local_sgd", "local_steps": 2}, OVERFLOW),
    "overflow in pieces": ({"kind": "fsdp"}, OVERFLOW),
    "overflow in one process": ({"kind": "data_parallel"}, OVERFLOW),
    "mixed": ({"kind": "ddp"}, {"precision": MIXED}),
    "mixed zero1": ({"kind": "zero1"}, {"precision": MIXED}),
    "mixed zero2": ({"kind": "zero2"}, {"precision": MIXED}),
    "mixed fsdp": ({"kind": "fsdp"}, {"precision": MIXED, "clip_grad_norm": 0.05}),
    "mixed hsdp": ({"kind": "hsdp", "shard_size": 2}, {"precision": MIXED}),
    "power_sgd later": (
        {"kind": "ddp", "comm_hook": {"kind": "power_sgd", "start_step": 3, "rank": 1}},
        {},
    ),
    "power_sgd, cold": (
        {
            "kind": "ddp",
            "comm_hook": {
                "kind": "power_sgd",
                "start_step": 1,
                "min_compression_rate": 1,
                "warm_start": False,
            },
        },
        {},
    ),
    "asynchronous": (SERVER | {"updates": "asynchronous"}, {}),
    "asynchronous, mixed": (SERVER | {"updates": "asynchronous"}, OPTIMIZER | {"precision": MIXED}),
    "with a backup": (SERVER | {"backup": 1}, {}),
    "inference": ({"kind": "ddp"}, {"mode": "inference", "optimizer": "none"}),
    "inference in one process": (
        {"kind": "data_parallel"},
        {"mode": "inference", "optimizer": "none"},
    ),
    "no numbers": ({"kind": "ddp"}, {"numerics": False}),
    "input": ({"kind": "ddp"}, {"input": {"workers": 2, "per_sample": "50 us"}}),
    "padded": ({"kind": "zero1"}, {"model": PADDED, "dataset": SENTENCES, "shuffle": True}),
    "batch norm and dropout": ({"kind": "ddp"}, {"model": NOISY}),
    "batch norm and dropout of a server": (SERVER | {"updates": "asynchronous"}, {"model": NOISY}),
}
"""Strategies and options, on four ranks that are late, for five steps or two epochs."""


def made(strategy, options, **cluster):
    late = LATE[1:3] if strategy["kind"] == "single" else LATE
    run = {"steps": 5, "numerics": True, "cluster": {"stragglers": late, **cluster}}
    return scenario(strategy, **(run | options))


def facts(result):
    """All that a run told, to the bit."""
    trace = result.trace
    return {
        "metrics": json.dumps(dict(result.metrics)),
        "network": result.network,
        "server": result.server,
        "names": trace.names,
        "spans": {name: getattr(trace, name).tobytes() for name in Columns._fields},
        "memory": [np.hstack(list(map(np.ravel, held))).tobytes() for held in trace.memory],
        "weights": [bits(own) for own in result.replicas or ()],
        "outputs": [[out.tobytes() for out in several] for several in result.outputs or ()],
    }


def bits(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def stopped(chosen, path, stop_after, past=None, **more):
    """The state of a run that stops, once it has been to the disk."""
    result = simulate(chosen, stop_after=stop_after, resume=past, keep_state=True, **more)
    result.state.save(path)
    return State.load(path)


# The same run ------------------------------------------------------------------------------------


def assert_goes_on(name, tmp_path):
    """Every third run stops twice, the others once."""
    chosen, path, past = made(*RUNS[name]), tmp_path / "state.npz", None
    for stop in (1, 3) if list(RUNS).index(name) % 3 == 0 else (2,):
        past = stopped(chosen, path, stop, past)
        assert past.num_steps == len(past.records) == stop
    whole, again = facts(simulate(chosen, keep_trace=True)), facts(simulate(chosen, resume=past))
    assert [key for key in whole if again[key] != whole[key]] == []


ANOTHER_OF_ITS_KIND = [
    f"{number} {strategy['kind']}"
    for number, strategy in enumerate(EVERY)
    if strategy["kind"] in [before["kind"] for before in EVERY[:number]] and number % 3
]


@for_some("name", [name for name in RUNS if name not in ANOTHER_OF_ITS_KIND], 7)
def test_a_run_that_stopped_goes_on_as_if_it_never_had(name, tmp_path):
    assert_goes_on(name, tmp_path)


@pytest.mark.long
@for_each("name", ANOTHER_OF_ITS_KIND)
def test_with_other_options_of_its_strategy_it_goes_on_too(name, tmp_path):
    assert_goes_on(name, tmp_path)


@pytest.mark.parametrize("fabric", ["event", "vector"])
def test_both_clocks_go_on(fabric, tmp_path):
    chosen = made({"kind": "zero1"}, {})
    past = stopped(chosen, tmp_path / "state.npz", 2, fabric=fabric)
    whole = facts(simulate(chosen, fabric=fabric))
    assert whole["network"]["fabric"] == fabric
    assert facts(simulate(chosen, fabric=fabric, resume=past)) == whole


def test_a_job_among_neighbours_goes_on(tmp_path):
    workload = {
        "model": {"kind": "mlp", "widths": [256, 256, 256]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "microbatch": 4,
    }
    nodes = {"devices_per_node": 2, "topology": "switch", "inter_node": {"link": "10gbe"}}
    raw = {
        "cluster": {**CLUSTER, **nodes},
        "workload": workload | {"steps": 4},
        "neighbours": [{"world_size": 4, "workload": workload}],
        "placement": "interleaved",
    }
    chosen = checked(raw, Path())
    past = stopped(chosen, tmp_path / "state.npz", 2)
    assert facts(simulate(chosen, resume=past)) == facts(simulate(chosen))


@for_each("kind", ["ddp", "parameter_server"])
def test_a_run_that_stops_is_the_beginning_of_the_whole(kind):
    chosen = made({"kind": kind}, {})
    whole, part = simulate(chosen), simulate(chosen, stop_after=3)
    for key in ("loss", "loss_per_rank", "lr", "grad_norm"):
        assert part.metrics[key] == whole.metrics[key][:3]
    assert part.state is None
    within = {step: whole.trace.step == step for step in (0, 1)}
    for step, of_whole in within.items():
        of_part = part.trace.step == step
        assert part.trace.end[of_part].tolist() == whole.trace.end[of_whole].tolist()


def test_a_run_may_go_on_for_longer_than_it_was_to_be(tmp_path):
    past = stopped(made({"kind": "ddp"}, {"steps": 3}), tmp_path / "state.npz", 3)
    longer = made({"kind": "ddp"}, {"steps": 5})
    assert facts(simulate(longer, resume=past)) == facts(simulate(longer))


def test_the_state_of_a_finished_run_is_its_weights():
    result = simulate(made({"kind": "ddp"}, {}), keep_state=True)
    for name, weight in result.replicas[0].items():
        assert result.state.arrays[f"0/weights/{name}"].tobytes() == weight.tobytes()


# On another cluster ------------------------------------------------------------------------------

ELASTIC = [
    {"kind": "ddp"},
    {"kind": "zero1"},
    {"kind": "zero2"},
    {"kind": "fsdp"},
    {"kind": "hsdp", "shard_size": 2},
    {"kind": "horovod"},
]
EXACT = {
    "dtype": "float64",
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "global_batch": 16,
    "epochs": 2,
    "steps": None,
    "shuffle": True,
}


def elastic(strategy, world_size, **options):
    return scenario(strategy, world_size, **({"numerics": True} | options))


def segments(strategy, options, sizes=(4, 2, 8), stops=(3, 5, None)):
    """A run whose world changes: every segment's scenario, start and result."""
    past, found = None, []
    for world_size, stop in zip(sizes, stops, strict=True):
        chosen = elastic(strategy, world_size, **options)
        result = simulate(chosen, resume=past, stop_after=stop, keep_state=True)
        found.append((chosen, past.start if past else START, result))
        past = result.state
    return found


@pytest.mark.parametrize("strategy", one_in(3, ELASTIC), ids=lambda strategy: strategy["kind"])
def test_what_is_learned_does_not_depend_on_how_many_ranks_learn_it(strategy):
    whole = simulate(elastic(strategy, 4, **EXACT))
    *_, (_, _, last) = segments(strategy, EXACT)
    for key in ("loss", "lr", "grad_norm"):
        np.testing.assert_allclose(last.metrics[key], whole.metrics[key], rtol=1e-12)
    for own in last.replicas:
        for name, weight in whole.replicas[0].items():
            np.testing.assert_allclose(own[name], weight, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "strategy", one_in(3, [*ELASTIC, {"kind": "local_sgd", "local_steps": 2}]), ids=str
)
def test_times_go_on_from_where_the_last_segment_stopped(strategy):
    *_, before, last = (result for _, _, result in segments(strategy, EXACT))
    assert before.metrics["simulated_s"] > 0
    assert last.metrics["simulated_s"] > before.metrics["simulated_s"]
    (waited,) = {span.end for span in last.trace.spans if span.name == "earlier segments"}
    assert waited == before.metrics["simulated_s"]
    assert len(last.metrics["loss"]) == 8
    assert set(last.trace.step.tolist()) == {-1, 0, 1, 2}


def dealt(chosen, start, done):
    """Samples of each rank, step by step, in a segment that ends after ``done`` steps."""
    n = chosen.cluster.world_size
    batches = chosen.workload.batches(n, chosen.seed, chosen.base, start)
    return [
        [[int(i) for parts in step.micro for i in parts[rank]] for rank in range(n)]
        for step in islice(batches, done - start.num_steps)
    ]


SIZES = [((4, 2, 8), (1, 3, None)), ((2, 4, 2), (2, 3, None)), ((8, 4), (1, None))]


@for_each("drop_last", [False, True])
@for_each("batch", [{"microbatch": 1, "grad_accum": 3}, {"global_batch": 10}])
@for_each(("sizes", "stops"), SIZES)
def test_segments_deal_every_sample_of_an_epoch_once(sizes, stops, batch, drop_last):
    options = {"epochs": 1, "steps": None, "shuffle": True, "numerics": False}
    options |= {"drop_last": drop_last, "dataset": {"kind": "regression", "num_samples": 53}}
    steps = []
    for chosen, start, result in segments({"kind": "ddp"}, batch | options, sizes, stops):
        found = dealt(chosen, start, result.state.num_steps)
        if "microbatch" in batch:  # by torchelastic's ElasticDistributedSampler
            left = epoch_order(True, 53, 0, chosen.seed, chosen.base)[start.num_samples :].tolist()
            n = chosen.cluster.world_size
            left += left[: -len(left) % n]
            for rank in range(n):
                own = [i for step in found for i in step[rank]]
                assert own == left[rank::n][: len(own)]
        steps += [[i for own in step for i in own] for step in found]
    assert result.state.start.epoch == 1
    *others, last = steps
    before = [i for step in others for i in step]
    assert len(set(before)) == len(before)
    every = before + last
    if drop_last:
        assert len(set(every)) == len(every) > 53 - len(last)
    else:
        assert set(every) == set(range(53))
        assert len(every) - 53 < sizes[-1]


def test_a_segment_that_stops_goes_on_from_where_it_stopped(tmp_path):
    options, path = {"steps": 9, "shuffle": True}, tmp_path / "state.npz"
    four = scenario({"kind": "ddp"}, numerics=True, **options)
    two = scenario({"kind": "ddp"}, numerics=True, cluster={"world_size": 2}, **options)
    first = simulate(four, stop_after=3, keep_state=True).state
    simulate(two, resume=first, stop_after=6, keep_state=True).state.save(path)
    stopped, whole = simulate(two, resume=State.load(path)), simulate(two, resume=first)
    assert stopped.metrics["loss"] == whole.metrics["loss"]
    assert bits(stopped.replicas[0]) == bits(whole.replicas[0])


def test_an_epoch_ends_where_a_larger_world_would_drop_what_is_left():
    options = {"epochs": 2, "steps": None, "drop_last": True, "numerics": False}
    options |= {"dataset": {"kind": "regression", "num_samples": 45}}
    chosen, start, result = segments({"kind": "ddp"}, options)[-1]
    assert start == (0, 32, 5)  # 13 are left; a step of 8 ranks has 16
    first, second = ({i for own in step for i in own} for step in dealt(chosen, start, 7))
    assert (first, second) == (set(range(16)), set(range(16, 32)))
    assert result.state.start == (2, 0, 7)


def test_ranks_that_were_not_there_go_on_as_the_first():
    strategy = {"kind": "local_sgd", "local_steps": 4}
    chosen = elastic(strategy, 2, **EXACT)
    past = simulate(chosen, stop_after=2, keep_state=True).state
    assert past.arrays["1/weights/layers.0.weight"].any()  # ranks have gone their own ways
    short = EXACT | {"optimizer": {"kind": "sgd", "lr": 1e-300}, "epochs": None, "steps": 3}
    past = replace(past, scenario=elastic(strategy, 2, **short).resolved())
    first, second, third, _ = simulate(elastic(strategy, 4, **short), resume=past).replicas
    assert bits(first) == bits(third) != bits(second)


# What is refused ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def past():
    """The state of a small run after two of its five steps."""
    return simulate(made({"kind": "ddp"}, {}), stop_after=2, keep_state=True).state


def refused(chosen, state, **part):
    with pytest.raises(ScenarioError) as caught:
        simulate(chosen, resume=state, **part)
    (line,) = caught.value.problems
    return line


@for_each(
    ("options", "difference"),
    [
        ({"microbatch": 4}, "workload.microbatch: is 4, but was 2"),
        (
            {"optimizer": {"kind": "sgd", "lr": 0.1}},
            "workload.optimizer.momentum: is 0.0, but was 0.9",
        ),
        ({"global_batch": 8}, "workload.microbatch: is not given, but was 2"),
        (
            {"collectives": {"all_reduce": "tree"}},
            "collectives.all_reduce.kind: is 'tree', but was 'ring'",
        ),
    ],
)
def test_the_first_difference_of_a_foreign_scenario_is_named(past, options, difference):
    assert refused(made({"kind": "ddp"}, options), past) == (
        f"{difference} in the stopped run; resume with the same scenario, or leave --resume out."
    )


def test_a_state_of_another_strategy_is_refused(past):
    assert refused(made({"kind": "zero1"}, {}), past).startswith("strategy.kind: is 'zero1', but")


@for_each("stop", [-1, 0, 1, 2, 6])
def test_a_run_stops_among_the_steps_that_are_left(past, stop):
    assert refused(made({"kind": "ddp"}, {}), past, stop_after=stop) == (
        f"--stop-after: {stop} is not among the remaining steps; the run has 5, of which 2 "
        "are done."
    )


def test_a_run_of_which_nothing_is_left_does_not_go_on():
    chosen = made({"kind": "ddp"}, {})
    state = simulate(chosen, keep_state=True).state
    assert refused(chosen, state) == (
        "--resume: all 5 steps are done; set workload.steps or workload.epochs to more."
    )


def test_a_server_goes_on_on_the_same_cluster_only():
    state = simulate(made(SERVER, {}), stop_after=2, keep_state=True).state
    assert refused(made(SERVER, {}, stragglers=[]), state) == (
        "cluster: a run with a server cannot resume on another cluster, since messages in flight "
        "depend on it; use the same one."
    )


def test_parts_of_the_ranks_own_go_on_on_the_same_cluster_only():
    uneven, join = EACH | {"samples_per_rank": [9, 4, 6, 3]}, {"kind": "ddp", "join": True}
    state = simulate(made(join, uneven), stop_after=2, keep_state=True).state
    assert refused(made(join, uneven, stragglers=[]), state) == (
        "workload.samples_per_rank: each rank has samples of its own, so that a run cannot resume "
        "on another cluster; use the same one."
    )


def test_groups_by_length_are_of_the_same_number_of_ranks():
    options = {"model": PADDED, "dataset": SENTENCES, "group_by_length": True, "steps": 6}
    options |= {"numerics": False}
    past = simulate(elastic({"kind": "ddp"}, 2, **options), stop_after=2, keep_state=True).state
    assert refused(elastic({"kind": "ddp"}, 4, **options), past) == (
        "workload.group_by_length: groups are whole steps, and their size depends on the number "
        "of ranks; stop at the end of an epoch, or use workload.global_batch."
    )
    ended = simulate(elastic({"kind": "ddp"}, 2, **options), stop_after=4, keep_state=True).state
    assert ended.start == (1, 0, 4)
    simulate(elastic({"kind": "ddp"}, 4, **options), resume=ended)
    options |= {"global_batch": 4}
    past = simulate(elastic({"kind": "ddp"}, 2, **options), stop_after=2, keep_state=True).state
    simulate(elastic({"kind": "ddp"}, 4, **options), resume=past)


def test_a_run_without_numbers_has_nothing_to_learn_from(past):
    timed = simulate(made({"kind": "ddp"}, {"numerics": False}), stop_after=2, keep_state=True)
    assert refused(made({"kind": "ddp"}, {}), timed.state) == (
        "the state has no weights/layers.0.weight, which this run keeps from step to step."
    )


def test_a_sweep_does_not_stop(past):
    chosen = made({"kind": "ddp"}, {})
    swept = chosen.model_copy(update={"sweep": {"workload.microbatch": [1, 2]}})
    for part in ({"stop_after": 2}, {"resume": past}, {"keep_state": True}):
        with pytest.raises(ValueError, match=f"{next(iter(part))}: a sweep has many runs; stop"):
            sweep(swept, **part)
        with pytest.raises(ValueError, match="the scenario has a sweep"):
            simulate(swept, **part)


# Files -------------------------------------------------------------------------------------------


def unreadable(path):
    with pytest.raises(ScenarioError) as caught:
        State.load(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


@for_each("kept", [0, 10, 0.5, -1])
def test_a_file_that_is_cut_short_is_refused(past, tmp_path, kept):
    path = tmp_path / "state.npz"
    past.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    assert unreadable(path) == "is not an npz file of arrays."


def test_a_file_with_a_flipped_byte_is_refused(past, tmp_path):
    path = tmp_path / "state.npz"
    past.save(path)
    damaged = bytearray(path.read_bytes())
    place = damaged.find(b"layers.0.weight") + 200
    damaged[place] ^= 1
    path.write_bytes(damaged)
    assert unreadable(path) == "is not an npz file of arrays."


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert unreadable(tmp_path / "state.npz") == "there is no such file."


def changed(path, past, about, arrays):
    """Write a state with some of its facts and arrays replaced; None leaves one out."""
    past.save(path)
    kept = read_npz(path)
    facts = json.loads(kept.pop("state").tobytes()) | dict(about)
    facts = {key: value for key, value in facts.items() if value is not None}
    kept["state"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    kept |= arrays
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})
    return path


@for_each(
    ("about", "arrays", "why"),
    [
        ({}, {"state": None}, "it has no array of that name"),
        ({}, {"state": np.frombuffer(b"{", np.uint8)}, "Expecting property name"),
        ({}, {"state": np.frombuffer(b"\xff\xff\xff\xff", np.uint8)}, "'utf-"),
        ({}, {"state": np.frombuffer(b"[]", np.uint8)}, "list indices must be"),
        ({"format": 2}, {}, "its format is 2, not 1"),
        ({"clock": None}, {}, "has no 'clock'"),
        ({"num_steps": 3}, {}, "it has 2 steps of 3"),
        ({"records": [[1], [1]]}, {}, "StepRecord.__new__() missing"),
        ({"start": [0, 1]}, {}, "Expected 3 arguments, got 2"),
        (
            {},
            {"0/weights/layers.0.weight": None},
            "0/weights/layers.0.weight is missing, not float32 of shape (48,)",
        ),
        (
            {},
            {"0/weights/layers.0.weight": np.zeros((8, 6), np.float32)},
            "0/weights/layers.0.weight is float32 of shape (8, 6), not float32 of shape (48,)",
        ),
        (
            {},
            {"0/taken": np.array("two")},
            "0/taken is <U3 of shape (), not int64 of shape ()",
        ),
    ],
)
def test_a_file_that_is_none_of_a_state_is_refused(past, tmp_path, about, arrays, why):
    path = changed(tmp_path / "state.npz", past, about, arrays)
    lead = "is not a state written by run --save-state: state: "
    assert unreadable(path).startswith(lead + why)


def test_a_state_without_what_a_run_keeps_is_refused(past):
    chosen, name = made({"kind": "ddp"}, {}), "momentum_buffer/layers.0.weight"
    arrays = {key: kept for key, kept in past.arrays.items() if not key.endswith(name)}
    assert refused(chosen, replace(past, arrays=arrays)) == (
        f"the state has no {name}, which this run keeps from step to step."
    )
    arrays = {**past.arrays, f"0/{name}": np.zeros(7)}
    assert refused(chosen, replace(past, arrays=arrays)) == (
        f"{name} of the state has the shape (7,), but that of this run is (48,)."
    )


def test_a_state_is_written_whole_or_not_at_all(past, tmp_path):
    path = tmp_path / "state.npz"
    past.save(path)
    before = path.read_bytes()
    broken = replace(past, arrays={**past.arrays, "0/taken": np.array(object())})
    with pytest.raises(ValueError, match="bject"):
        broken.save(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["state.npz"]
