"""The options of a parameter server, and what it says of workloads that it cannot train."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from small_scenario import FAST, MINIMAL, WORKLOAD

from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.strategies.parameter_server import ParameterServer

BATCH_NORM = [
    {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 5},
    {"name": "bn", "kind": "batch_norm1d", "num_features": 5},
    {"name": "l2", "kind": "linear", "in_features": 5, "out_features": 2},
]


def refused(strategy, **workload):
    raw = {**MINIMAL, "strategy": {"kind": "parameter_server", **strategy}}
    raw["workload"] = {**WORKLOAD, **workload}
    with pytest.raises(ScenarioError) as error:
        checked(raw, Path())
    (line,) = error.value.problems
    return line


def test_the_default_is_synchronous_without_backup_on_rank_0():
    strategy = ParameterServer()
    assert (strategy.updates, strategy.server, strategy.backup) == ("synchronous", 0, 0)
    assert strategy.max_staleness is None


def test_a_backup_needs_steps_that_all_share():
    with pytest.raises(ValidationError) as error:
        ParameterServer(updates="asynchronous", backup=1)
    (found,) = error.value.errors()
    assert found["msg"] == (
        "backup drops the slowest gradients of a step, but updates: asynchronous applies each one "
        "when it arrives; leave backup out, or write updates: synchronous."
    )


def test_bounded_staleness_needs_asynchronous_updates():
    with pytest.raises(ValidationError) as error:
        ParameterServer(max_staleness=2)
    (found,) = error.value.errors()
    assert found["msg"] == (
        "max_staleness delays workers that are ahead, but under updates: synchronous none is; "
        "leave it out, or write updates: asynchronous."
    )


def test_a_server_lives_on_a_rank():
    assert refused({"server": 4}) == (
        "strategy.server: rank 4 does not exist; the ranks are 0 ... 3."
    )
    assert "server" in refused({"server": -1})


def test_a_backup_leaves_a_gradient():
    assert refused({"backup": 4}) == (
        "strategy.backup: 4 dropped gradients of 4 leave none; use at most 3."
    )


def test_workers_share_no_statistics():
    model = {"kind": "sequential", "layers": BATCH_NORM}
    assert refused({}, model=model, sync_batchnorm=True) == (
        "strategy.kind: the workers of a parameter_server exchange no messages, but "
        "sync_batchnorm needs the statistics of all of them; use ddp, or a batch norm that is not "
        "synchronised."
    )


def test_a_loss_scale_is_refused():
    line = refused({"updates": "asynchronous"}, precision={"kind": "amp", "dtype": "float16"})
    assert line == (
        "strategy.kind: parameter_server keeps no loss scale, which precision amp needs with "
        "float16; use bfloat16 without init_scale, or precision: full, or ddp."
    )


def test_ranks_that_run_out_of_samples_are_refused():
    assert "use {kind: ddp, join: true}" in refused({}, samples_per_rank=[8, 8, 8, 16])


def test_it_knows_no_neighbours():
    cluster = {**FAST, "world_size": 2, "devices_per_node": 1}
    cluster["inter_node"] = {"topology": "switch", "link": "10gbe"}
    job = {"world_size": 2, "workload": WORKLOAD}
    raw = {"cluster": cluster, "workload": WORKLOAD, "neighbours": [job]}
    said = (
        "strategy.kind: parameter_server knows no other jobs on the network; use ddp, or leave out "
        "neighbours."
    )
    for where, strategies in (
        ("", ("parameter_server", "ddp")),
        ("neighbours.0.", ("ddp", "parameter_server")),
    ):
        job["strategy"] = strategies[1]
        with pytest.raises(ScenarioError) as error:
            checked({**raw, "strategy": strategies[0]}, Path())
        assert error.value.problems == [where + said]


def test_the_schedule_must_last_for_every_update():
    schedule = {
        "kind": "one_cycle_lr",
        "max_lr": 0.1,
        "total_steps": 5,
        "cycle_momentum": False,
    }
    options = {"lr_schedule": schedule, "steps": 5}
    raw = {**MINIMAL, "strategy": "parameter_server", "workload": {**WORKLOAD, **options}}
    assert checked(raw, Path()).workload.steps == 5
    line = refused({"updates": "asynchronous"}, **options)
    assert line.startswith("workload.lr_schedule: ")
    assert "20" in line


def test_every_gradient_by_itself_is_an_update():
    assert ParameterServer().num_updates(4, 10) == 10
    assert ParameterServer(updates="asynchronous").num_updates(4, 10) == 40
