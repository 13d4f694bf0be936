"""Witness: what a simulated job went through, a small run goes through with its numbers."""

import numpy as np
import pytest
from small_scenario import FAST

from simdp import simulate
from simdp.engine.job.history import History, _Recorded, history_of, train_through
from simdp.engine.job.training import ProgressMark
from simdp.errors import ScenarioError
from simdp.scenario import checked

NODES = {**FAST, "world_size": 4, "devices_per_node": 1, "topology": "switch"}
INTER = {"topology": "switch", "link": {"alpha": "5 us", "bandwidth": "10 GB/s"}}


def scenario(tmp_path, events, recovery, strategy="ddp", **options):
    """A job of 12 steps of a second, with a checkpoint after each 4 that takes no time."""
    lines = ["time_s,node,effect,repair_s", *events]
    (tmp_path / "events.csv").write_text("\n".join(lines) + "\n")
    raw = {
        "cluster": {
            **NODES,
            "inter_node": INTER,
            "failures": [{"kind": "trace", "path": "events.csv"}],
            "stragglers": [],
        },
        "workload": {
            "model": {"kind": "mlp", "widths": [6, 3]},
            "dataset": {"kind": "regression", "num_samples": 96},
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "host": {"step": "1 s"},
            "dtype": "float64",
            "microbatch": 2,
            "steps": 12,
            **options,
        },
        "strategy": strategy,
        "checkpoint": {"every": 4, "write": "1 us"},
        "recovery": recovery,
    }
    return checked(raw, tmp_path)


def fates(history: History):
    return [(a.first, a.stop, a.fate[0]) for a in history.attempts]


def test_a_restarted_job_ends_with_the_bits_of_one_that_never_failed(tmp_path):
    case = scenario(tmp_path, ["6.5,0,,", "12.8,job,,"], {"kind": "restart", "restart": "1 s"})
    history = history_of(case)
    assert fates(history) == [(0, 4, "k"), (4, 5, "l"), (4, 8, "k"), (8, 9, "l"), (8, 12, "k")]
    result, whole = train_through(case, history), simulate(case)
    assert result.metrics["loss"] == whole.metrics["loss"]
    for name, value in whole.replicas[0].items():
        assert result.replicas[0][name].tobytes() == value.tobytes()
    assert result.participation["repeated"] == 2 * 8


def test_an_elastic_job_goes_on_with_fewer_nodes_and_then_with_more(tmp_path):
    recovery = {"kind": "elastic", "rejoin": "at_once"}
    case = scenario(tmp_path, ["5.5,1,,5.3"], recovery)
    history = history_of(case)
    assert fates(history) == [(0, 4, "k"), (4, 5, "l"), (4, 8, "k"), (8, 9, "l"), (8, 12, "k")]
    assert [a.world_size for a in history.attempts] == [None, None, 3, 3, None]
    result = train_through(case, history)
    assert result.metrics["replicas_identical"]
    assert result.participation["counted"] == 4 * 8 + 4 * 6 + 4 * 8


def test_a_replica_group_drops_out_and_comes_back(tmp_path):
    recovery = {"kind": "replica_groups", "timeout": "1 s", "restart": "3 s"}
    case = scenario(tmp_path, ["5.5,1,,"], recovery)
    history = history_of(case)
    assert history.num_groups == 4
    assert fates(history)[:2] == [(0, 2, "k"), (2, 3, "u")]
    away, healing, after = history.attempts[2:]
    assert away.groups == (0, 2, 3)
    assert healing[:3] == (away.stop, away.stop + 1, "kept")
    assert (healing.groups, healing.silent) == ((0, 1, 2, 3), (1,))
    assert (after.stop, after.groups, after.silent) == (12, (0, 1, 2, 3), ())
    result = train_through(case, history)
    assert result.metrics["replicas_identical"]
    assert result.participation["uncommitted"] == 8
    np.testing.assert_array_equal(np.flatnonzero(result.participation["dropped"]), [1])


def test_a_job_of_epochs_counts_no_steps(tmp_path):
    case = scenario(tmp_path, ["2.5,1,,"], {"kind": "restart"}, steps=None, epochs=1)
    with pytest.raises(ScenarioError) as caught:
        history_of(case)
    assert caught.value.problems == [
        "workload.epochs: a history counts steps, but steps per epoch depend on the number of "
        "ranks; write workload.steps."
    ]


# Marks -------------------------------------------------------------------------------------------


def told(marks, num_groups=1):
    return fates(_Recorded(num_groups, 4, 1).history([ProgressMark(*mark) for mark in marks], 12))


def test_what_an_older_checkpoint_lacks_is_lost_though_it_was_kept_once():
    assert told([(6, "back", (4,)), (9, "back", (2,))]) == [
        (0, 2, "k"),
        (2, 6, "l"),
        (2, 9, "l"),
        (2, 12, "k"),
    ]


def test_attempts_from_one_checkpoint_are_told_apart():
    marks = [(6, "back", (4,)), (7, "back", (4,)), (4, "back", (4,))]
    assert told(marks) == [(0, 4, "k"), (4, 6, "l"), (4, 7, "l"), (4, 12, "k")]


def test_groups_that_are_all_gone_go_back_together():
    marks = [
        (2, "dropped", ()),
        (2, "absent", (1,)),
        (3, "dropped", ()),
        (3, "back", (0,)),
        (0, "absent", ()),
    ]
    assert told(marks, num_groups=2) == [(0, 4, "l"), (0, 1, "k"), (1, 12, "k")]


def test_a_step_that_moves_to_another_node_is_done_again_by_itself():
    assert told([(3, "dropped", ())]) == [(0, 12, "k")]


def test_no_failures_are_one_attempt(tmp_path):
    case = scenario(tmp_path, ["999999,1,,"], {"kind": "restart"})
    assert fates(history_of(case)) == [(0, 12, "k")]
