"""DiLoCo: equal to torch; and the same strategy written as one class outside of simdp."""

import json
import runpy
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import yaml
from every_strategy import run_of
from for_each import for_each
from small_scenario import FAST

import simdp
from simdp.engine.simulate import memory_needed
from simdp.engine.state import State
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.steps.ops import Average, OuterUpdate, ScaleLoss, StartOuter, Update, Wait
from simdp.steps.passes import backward, forward
from simdp.strategies import STRATEGIES
from simdp.strategies.base import Strategy
from simdp.strategies.ddp import DDP
from simdp.strategies.memory import checkpoint_nbytes
from simdp.studies.compare import compare
from simdp.studies.plan.request import LearningSettings
from simdp.studies.sweep import sweep
from simdp.workload.optimizers.sgd import SGD

FOLDER = Path(__file__).parents[1] / "golden"
MAKER = runpy.run_path(str(FOLDER / "real_diloco.py"))
GOLDEN = json.loads((FOLDER / "real_diloco.json").read_text())
CASES, KEPT = MAKER["CASES"], MAKER["KEPT"]
NAMES = [f"layers.{layer}.{kind}" for layer in range(3) for kind in ("weight", "bias")]
SIZE = (6 + 1) * 8 + (8 + 1) * 5 + (5 + 1) * 3
NESTEROV = SGD(lr=0.7, momentum=0.9, nesterov=True)


class Outer(Strategy):
    """AdamW on every rank, and Nesterov SGD on the average of weights every so many steps."""

    averages_parameters: ClassVar[bool] = True

    kind: Literal["outer"] = "outer"
    every: int = 4

    @property
    def steps_together(self):
        return self.every

    def with_period(self, steps):
        return self.model_copy(update={"every": steps})

    def averaging(self):
        return f"weights every {self.every} steps, updated by SGD"

    def setup(self, facts):
        yield from DDP(broadcast_buffers=False).setup(facts)
        yield StartOuter(NESTEROV)

    def train_step(self, facts, step):
        yield ScaleLoss(by_shard=False)
        for micro in range(step.num_micro_steps):
            yield from forward(facts, micro)
            yield from backward(facts, micro)
        yield Update()
        if step.ends_period(self.every, since=0):
            elements = sum(parameter.num_elements for parameter in facts.parameters)
            yield Average(0, "weights", float(elements * facts.itemsize))
            yield Wait((0,))
            yield OuterUpdate(NESTEROV)


OWN = {"kind": "outer", "every": 4}
SHIPPED = {"kind": "diloco", "local_steps": 4, "charge_copies": False}
BOTH = [OWN, SHIPPED]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(STRATEGIES._homes, "outer", (__name__, Outer.__name__))


def raw_of(strategy, **more):
    return {
        "cluster": {**FAST, "world_size": 4, "stragglers": []},
        "workload": {
            "model": {"kind": "mlp", "widths": [6, 8, 5, 3]},
            "dataset": {"kind": "regression", "num_samples": 64},
            "optimizer": {"kind": "adamw", "lr": 0.01},
            "microbatch": 2,
            "steps": 9,
            **more,
        },
        "strategy": strategy,
    }


def made(strategy, **more):
    return checked(raw_of(strategy, **more), Path())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(raw_of(OWN)))
    return path


# Numbers ------------------------------------------------------------------------------------------


def of_golden(case, steps, tmp_path):
    world_size, local_steps, inner, outer = CASES[case]
    np.savez(tmp_path / "weights.npz", **dict(zip(NAMES, MAKER["first_weights"](), strict=True)))
    x, y = MAKER["data"]()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    optimizers = [{"kind": kind.lower(), **options} for kind, options in (inner, outer)]
    raw = {
        "cluster": {**FAST, "world_size": world_size},
        "workload": {
            "model": {"kind": "mlp", "widths": list(MAKER["WIDTHS"]), "activation": "tanh"},
            "weights": "weights.npz",
            "dataset": {"kind": "npz", "path": "data.npz"},
            "optimizer": optimizers[0],
            "global_batch": 12,
            "dtype": "float64",
            "steps": steps,
        },
        "strategy": {
            "kind": "diloco",
            "local_steps": local_steps,
            "outer_optimizer": optimizers[1],
        },
    }
    return checked(raw, tmp_path)


@for_each("case", CASES)
def test_every_rank_has_the_weights_of_torch_over_gloo(case, tmp_path):
    for number, steps in enumerate(KEPT):
        result = simdp.simulate(of_golden(case, steps, tmp_path))
        for own, ranks in zip(result.replicas, GOLDEN[case], strict=True):
            found = np.concatenate([own[name].reshape(-1) for name in NAMES])
            np.testing.assert_allclose(found, ranks[number], rtol=0, atol=1e-12)


def test_the_class_of_this_file_computes_the_same_to_the_bit():
    own, shipped = (simdp.simulate(made(strategy)) for strategy in BOTH)
    assert own.metrics == shipped.metrics
    for first, second in zip(own.replicas, shipped.replicas, strict=True):
        assert {name: one.tobytes() for name, one in first.items()} == {
            name: one.tobytes() for name, one in second.items()
        }
    assert not own.metrics["replicas_identical"]
    assert simdp.simulate(made(OWN, steps=8)).metrics["replicas_identical"]


def test_plain_sgd_outside_is_an_average():
    outer = {"kind": "sgd", "lr": 1.0}
    own = simdp.simulate(made({**SHIPPED, "outer_optimizer": outer}, dtype="float64"))
    local = simdp.simulate(made({"kind": "local_sgd", "local_steps": 4}, dtype="float64"))
    for name, weight in local.replicas[1].items():
        np.testing.assert_allclose(own.replicas[1][name], weight, rtol=0, atol=1e-12)


def test_master_weights_are_updated_and_frozen_ones_stay():
    mixed = {"precision": {"kind": "mixed", "dtype": "bfloat16"}, "steps": 8}
    first, *others = simdp.simulate(made(SHIPPED, **mixed)).replicas
    assert all(np.array_equal(one["layers.0.weight"], first["layers.0.weight"]) for one in others)
    frozen = {"frozen": ["layers.0.*"]}
    before, after = (simdp.simulate(made(SHIPPED, steps=n, **frozen)) for n in (1, 8))
    names = "layers.0.weight", "layers.1.weight"
    same = [np.array_equal(before.replicas[0][n], after.replicas[0][n]) for n in names]
    assert same == [True, False]


# Studies ------------------------------------------------------------------------------------------


@for_each("strategy", BOTH, ids=lambda strategy: strategy["kind"])
def test_it_goes_on_from_a_saved_state_to_the_bit(strategy, tmp_path):
    chosen, path = made(strategy), tmp_path / "state.npz"
    simdp.simulate(chosen, stop_after=6, keep_state=True).state.save(path)
    whole, again = simdp.simulate(chosen), simdp.simulate(chosen, resume=State.load(path))
    assert again.metrics == whole.metrics
    for own, other in zip(again.replicas, whole.replicas, strict=True):
        assert all(own[name].tobytes() == other[name].tobytes() for name in own)


@pytest.mark.long
def test_it_is_swept_and_compared(file):
    swept = sweep(simdp.load_scenario(file, {"sweep": {"strategy.every": [1, 2, 4]}}))
    sent = [point.metrics["bytes_sent_per_rank"][0] for point in swept.points]
    assert sent[0] == pytest.approx(2 * sent[1]) == pytest.approx(4 * sent[2])
    compared = compare(file, {"strategy": ["ddp", OWN, SHIPPED]})
    _, own, shipped = (point.metrics for point in compared.points)
    assert own == shipped
    assert not [note for note in compared.notes if "averages weights every" in note]
    few = compare(file, {"strategy": ["ddp", OWN]}, {"workload.steps": 8})
    assert any(
        "outer averages weights every 4 steps; steps counted here: 7, averages among them: 2; set "
        "workload.steps: 9" in note
        for note in few.notes
    )


@for_each("strategy", BOTH, ids=lambda strategy: strategy["kind"])
def test_a_plan_reads_how_it_averages(strategy):
    found = LearningSettings(made(strategy), 8).traits["averaging"]
    assert found.startswith("weights every 4 steps, updated by ")
    assert made(strategy).strategy.with_period(2).steps_together == 2


@for_each("strategy", BOTH, ids=lambda strategy: strategy["kind"])
def test_gradient_noise_and_replica_groups_are_refused(strategy):
    with pytest.raises(ScenarioError, match=r"have no gradients of the same weights; use ddp"):
        made(strategy, gradient_noise=True)
    wrong = made(strategy).strategy.problem_with_groups(2, 4, made(strategy).workload)
    assert "does not support replica groups" in wrong


def test_the_outer_optimizer_must_suit_every_parameter():
    with pytest.raises(ScenarioError, match=r"strategy\.outer_optimizer: "):
        made({**SHIPPED, "outer_optimizer": "muon"})
    with pytest.raises(ScenarioError, match=r"strategy\.outer_optimizer: unknown optimizer"):
        made({**SHIPPED, "outer_optimizer": "sgdd"})


# Memory and times ---------------------------------------------------------------------------------


@for_each("strategy", BOTH, ids=lambda strategy: strategy["kind"])
def test_global_weights_and_their_momentum_stay_in_memory(strategy):
    chosen, ddp = made(strategy), made({"kind": "ddp"})
    state = [
        simdp.simulate(one).metrics["memory_bytes"]["optimizer_state"] for one in (chosen, ddp)
    ]
    assert state[0] - state[1] == 2 * 4 * SIZE
    assert memory_needed(chosen).peak[0] > memory_needed(ddp).peak[0]
    outer = chosen.program.outer_optimizer
    assert outer == NESTEROV
    saved = checkpoint_nbytes(chosen.workload, outer) - checkpoint_nbytes(chosen.workload)
    assert saved == 2 * 4 * SIZE


@for_each("strategy", BOTH, ids=lambda strategy: strategy["kind"])
def test_an_outer_update_moves_ten_times_the_weights(strategy):
    """Reads both weights, writes the gradient; momentum SGD; reads and writes the new weights."""
    device = {"memory": "16 GB", "peak": {"float32": "10 TFLOP/s"}, "memory_bandwidth": "1 kB/s"}
    raw = raw_of(strategy)
    raw["cluster"]["device"] = device
    spans = simdp.simulate(checked(raw, Path())).trace.spans
    found = [s for s in spans if s.rank == 1 and s.name == "outer optimizer"]
    assert [(s.step, s.activity) for s in found] == [(3, "update"), (7, "update")]
    assert found[0].end - found[0].start == pytest.approx(10 * 4 * SIZE / 1e3, rel=1e-3)
    device |= {"memory_efficiency": 0.4, "stream_efficiency": 0.8}  # an update streams
    spans = simdp.simulate(checked(raw, Path())).trace.spans
    (first, _) = [s for s in spans if s.rank == 1 and s.name == "outer optimizer"]
    assert first.end - first.start == pytest.approx(10 * 4 * SIZE / 0.8e3, rel=1e-3)


@for_each("strategy", BOTH, ids=lambda strategy: strategy["kind"])
def test_its_clocks_agree_and_a_period_calls_one_all_reduce(strategy):
    results = [
        simdp.simulate(made(strategy), fabric=fabric).metrics["step_time_s"]
        for fabric in ("event", "vector")
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-12)
    calls = [called for called in run_of(made(strategy)).program.called if called.nbytes]
    assert ("all_reduce", 4.0 * SIZE) in [(one.collective, one.nbytes) for one in calls]
