"""What the model says of our own arrays is what a run with numerics takes on this machine."""

import subprocess
import sys
import tracemalloc

import pytest
from for_each import for_each

from benchmarks import memory
from simdp.engine import threads
from simdp.engine.replicas import Replicas
from simdp.engine.samples import BatchSamples
from simdp.engine.simulate import simulate

SMALLER = {
    "mlp": {"model": {"kind": "mlp", "widths": [256, 512, 512, 256]}},
    "transformer": {"dataset": {"kind": "tokens", "num_samples": 64, "sequence_length": 32}},
}


@pytest.fixture
def one_core(monkeypatch):
    """Ranks are served one after the other, whatever machine this is."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(threads, "_limit", 1)


BRIEF = ["mlp, single", "mlp, two micro-steps", "mlp, autocast", "mlp, parameter_server"]
BRIEF += ["mlp, zero2", "mlp, hsdp, Adam", "transformer, fsdp"]


@pytest.mark.long
@pytest.mark.slow
@for_each("name", BRIEF)
def test_the_model_is_right_within_15_percent(name, one_core):
    assert_the_model_is_right(name)


@pytest.mark.long
@for_each("name", [name for name in memory.CASES if name not in (*BRIEF, "resnet18")])
def test_the_model_is_right_in_all_other_cases_of_the_benchmark(name, one_core):
    assert_the_model_is_right(name)


def assert_the_model_is_right(name):
    kind, _, _ = name.partition(",")
    chosen = memory.scenario(name, **SMALLER.get(kind, {}))
    simulate(memory.scenario(name, steps=1, **SMALLER.get(kind, {})))  # modules come and stay
    taken = memory.traced(chosen)
    assert not tracemalloc.is_tracing()
    assert memory.needed(chosen) == pytest.approx(taken, rel=memory.LIMITS["traced"])


@pytest.mark.long
def test_convolutions_are_counted_too(one_core):
    chosen = memory.scenario("resnet18", steps=1)
    simulate(chosen)
    assert memory.needed(chosen) == pytest.approx(memory.traced(chosen), rel=0.15)


def test_a_row_says_by_how_much_the_model_is_off():
    name, figure, target, reached = memory.row("mlp", 115e6, 100e6, "traced")
    assert (name, figure) == ("mlp", "115 MB against 100 MB traced, +15.0%")
    assert (target, reached) == ("15%", True)
    assert not memory.row("mlp", 116e6, 100e6, "traced")[-1]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not memory.CLEAR.exists(), reason="only Linux can forget a peak")
def test_a_resident_set_grows_by_what_the_model_says():
    command = [sys.executable, "-m", "benchmarks.memory", "mlp, fsdp", "resident"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = memory.needed(memory.scenario("mlp, fsdp"))
    assert said == pytest.approx(int(done.stdout), rel=memory.LIMITS["resident"])


def test_room_for_gradients_is_there_from_the_first_backward_on():
    scenario = memory.scenario("mlp", **SMALLER["mlp"])
    replicas = Replicas(scenario, BatchSamples(scenario))
    assert replicas._own == [{}] * scenario.cluster.world_size
    room = replicas._room(1)
    assert [array.shape for array in room.values()] == list(replicas.shapes.values())
    assert replicas._room(1) is room
    replicas.forget_room()
    assert not replicas._room(1)
