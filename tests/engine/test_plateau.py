"""Schedules in whole runs: what follows the loss, the epoch, and what moves the momentum."""

import numpy as np
import pytest
from for_each import for_each
from small_scenario import FAST

import simdp
from simdp.engine.trainer import STATE, Plateau
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.workload.schedules.base import ReduceLROnPlateau, Seen
from simdp.workload.schedules.lr_scheduler import StepLR


def play(folder, world_size, **more):
    workload = {
        "model": {"kind": "mlp", "widths": [4, 2]},
        "dataset": {"kind": "regression", "num_samples": 24},
        "microbatch": 4,
        "dtype": "float64",
        **more,
    }
    raw = {"cluster": {"world_size": world_size, **FAST}, "workload": workload, "strategy": "ddp"}
    return simdp.simulate(checked(raw, folder))


def test_rates_per_epoch_stay_for_an_epoch(tmp_path):
    schedule = {"kind": "step_lr", "step_size": 2, "gamma": 0.5, "per": "epoch"}
    played = play(tmp_path, 2, epochs=5, lr_schedule=schedule, optimizer={"kind": "sgd", "lr": 0.1})
    each = [0.1, 0.1, 0.05, 0.05, 0.025]
    assert played.metrics["lr"] == [rate for rate in each for _ in range(3)]


@for_each("per", ["step", "epoch"])
def test_the_rate_falls_when_the_loss_no_longer_does(tmp_path, per):
    schedule = {"kind": "reduce_lr_on_plateau", "patience": 0, "factor": 0.5, "per": per}
    optimizer = {"kind": "sgd", "lr": 1.5}
    played = play(tmp_path, 2, epochs=6, lr_schedule=schedule, optimizer=optimizer)
    losses, steps = np.array(played.metrics["loss"]), 1 if per == "step" else 3
    chosen, seen, wanted = ReduceLROnPlateau(patience=0, factor=0.5), Seen(), []
    for value in losses.reshape(-1, steps).mean(axis=1):
        wanted += [chosen.lr(1.5, seen.reductions + 1)] * steps
        seen = chosen.seen(seen, value)
    assert played.metrics["lr"] == wanted
    assert seen.reductions > 0


def test_one_cycle_moves_the_momentum(tmp_path):
    """As a loop by hand that gives SGD the momentum of each step."""
    schedule = {"kind": "one_cycle_lr", "max_lr": 0.1, "total_steps": 12}
    optimizer = {"kind": "sgd", "momentum": 0.95}
    cycled = play(tmp_path, 2, epochs=4, lr_schedule=schedule, optimizer=optimizer)
    still = {**schedule, "cycle_momentum": False}
    stayed = play(tmp_path, 2, epochs=4, lr_schedule=still, optimizer=optimizer)
    bounds = {"base_momentum": 0.95, "max_momentum": 0.95}
    moved_by_nothing = play(
        tmp_path, 2, epochs=4, lr_schedule=schedule | bounds, optimizer=optimizer
    )
    assert moved_by_nothing.metrics["loss"] == stayed.metrics["loss"]
    assert cycled.metrics["loss"][2:] != stayed.metrics["loss"][2:]
    assert cycled.metrics["lr"] == stayed.metrics["lr"]


def test_a_plateau_that_nobody_asked_for_keeps_nothing():
    plateau = Plateau(StepLR(step_size=1))
    plateau.look(1.0, True)
    plateau.look(1.0, True)
    plateau.load_state_dict({})
    assert plateau.reductions == 0
    assert plateau.state_dict() == {}


def test_a_state_without_it_is_refused():
    plateau = Plateau(ReduceLROnPlateau())
    with pytest.raises(ScenarioError, match=f"the state has no {STATE}, which this run keeps"):
        plateau.load_state_dict({})
