"""What the model says of our own arrays is what a run with numerics takes on this machine."""

import tracemalloc

import pytest

from benchmarks import memory
from simdp.engine import threads

SMALLER = {
    "mlp": {"model": {"kind": "mlp", "widths": [256, 512, 512, 256]}},
    "transformer": {"dataset": {"kind": "tokens", "num_samples": 64, "sequence_length": 32}},
}


@pytest.fixture
def one_core(monkeypatch):
    """Ranks are served one after the other, whatever machine this is."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(threads, "_limit", 1)


@pytest.mark.parametrize("name", [name for name in memory.CASES if name != "resnet18"])
def test_the_model_is_right_within_15_percent(name, one_core):
    kind, _, _ = name.partition(",")
    chosen = memory.scenario(name, **SMALLER.get(kind, {}))
    taken = memory.traced(chosen)
    assert not tracemalloc.is_tracing()
    assert memory.needed(chosen) == pytest.approx(taken, rel=memory.LIMITS["traced"])


def test_convolutions_are_counted_too(one_core):
    chosen = memory.scenario("resnet18", steps=1)
    assert memory.needed(chosen) == pytest.approx(memory.traced(chosen), rel=0.15)


def test_a_row_says_by_how_much_the_model_is_off():
    name, figure, target, reached = memory.row("mlp", 115e6, 100e6, "traced")
    assert (name, figure) == ("mlp", "115 MB against 100 MB traced, +15.0%")
    assert (target, reached) == ("15%", True)
    assert not memory.row("mlp", 116e6, 100e6, "traced")[-1]


def test_a_resident_set_grows_by_what_is_new():
    assert memory.resident(memory.scenario("mlp", **SMALLER["mlp"])) >= 0
