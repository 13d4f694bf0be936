"""Percentiles, noise, intervals of layers, and the share of a machine that others use."""

import numpy as np
import pytest

from simdp.probes import figures
from simdp.probes.figures import LayerEvent, backward_of, forward_of


def test_percentiles_are_quantities():
    found = figures.percentiles([k / 1e3 for k in range(101)])
    assert found == {"p10": "10 ms", "p50": "50 ms", "p75": "75 ms", "p90": "90 ms"}


def test_noise_is_how_much_rounds_differ():
    assert figures.noise([[1.0, 1.0], [1.0]]) == 0.0
    assert figures.noise([[1.0, 5.0, 1.0]]) == 0.0
    assert figures.noise([[0.9], [1.1]]) == pytest.approx(np.std([0.9, 1.1], ddof=1))
    assert figures.percent(0.0123) == "1.23 %"
    assert figures.microseconds(1.5e-6) == "1.5 us"


def test_forward_goes_from_call_to_call():
    calls = [
        LayerEvent("a", "call", 0.5),
        LayerEvent("b", "call", 2.0),
        LayerEvent("c", "call", 3.0),
    ]
    assert forward_of(calls, 7.0) == {"a": 2.0, "b": 1.0, "c": 4.0}


def test_a_layer_that_is_called_twice_takes_both_times():
    calls = [
        LayerEvent("a", "call", 0.0),
        LayerEvent("b", "call", 2.0),
        LayerEvent("a", "call", 3.0),
    ]
    assert forward_of(calls, 7.0) == {"a": 6.0, "b": 1.0}


def test_backward_goes_from_output_to_output_and_is_cut_where_gradients_are_ready():
    events = [
        LayerEvent("b", "output", 11.0),
        LayerEvent("b", "ready", 12.0),
        LayerEvent("b", "ready", 13.0),
        LayerEvent("a", "output", 15.0),
        LayerEvent("a", "ready", 18.0),
    ]
    to_weight, to_input = backward_of(events, 10.0, 20.0)
    assert to_weight == {"b": 3.0, "a": 3.0}
    assert to_input == {"b": 2.0, "a": 2.0}
    assert sum(to_weight.values()) + sum(to_input.values()) == 10.0


def test_gradients_that_come_after_their_layers_turn_are_ready_at_its_end():
    events = [
        LayerEvent("b", "output", 11.0),
        LayerEvent("b", "ready", 12.0),
        LayerEvent("a", "output", 15.0),
        LayerEvent("b", "ready", 16.0),
        LayerEvent("a", "ready", 18.0),
    ]
    assert backward_of(events, 10.0, 20.0) == ({"b": 5.0, "a": 3.0}, {"b": 0.0, "a": 2.0})


def test_foreign_is_what_others_used_of_all_cores(monkeypatch):
    monkeypatch.setattr(figures.os, "cpu_count", lambda: 4)
    before, after = figures.CpuUsage(10.0, 1.0, 100.0), figures.CpuUsage(12.0, 2.0, 105.0)
    assert figures.foreign(before, after, own=3.0) == (5.0 - 3.0) / 2.0 / 4
    assert figures.foreign(before, after, own=6.0) == 0.0


def test_linux_counts_what_all_processes_use(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    monkeypatch.setattr(figures, "STAT", stat)
    assert figures.usage().all == 0.0
    stat.write_text("cpu  200 100 300 4000 5 6 7\ncpu0 1 2 3\n")
    assert figures.usage().all == 600 / figures.os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("shares", "tries", "rounds", "wanted"),
    [
        ([0.0, 0.02], 5, 1, ("round 1", 0.02)),  # the look before the round, and the round
        ([0.5, 0.3, 0.04, 0.05], 5, 1, ("round 1", 0.05)),  # it waits while others work
        ([0.0, 0.5, 0.0, 0.2, 0.0, 0.3], 3, 3, ("round 2", 0.2)),  # disturbed rounds are repeated
        ([0.0, 0.5, 0.9, 0.9], 3, 1, ("round 1", 0.5)),  # and the quietest one counts
        ([0.9, 0.9, 0.6], 3, 1, ("round 1", 0.6)),  # there is one in any case
        ([0.6], 1, 1, ("round 1", 0.6)),
    ],
)
def test_a_round_waits_for_quiet_and_is_repeated_if_it_was_disturbed(
    shares, tries, rounds, wanted, monkeypatch
):
    left, taken = list(shares), []
    monkeypatch.setattr(figures, "PAUSE", 0.0)
    monkeypatch.setattr(figures, "foreign", lambda before, after, own: left.pop(0))

    def work():
        taken.append(f"round {len(taken) + 1}")
        return taken[-1]

    assert figures.undisturbed(lambda value: [value], work, 0.05, tries) == wanted
    assert len(taken) == rounds
    assert left == []
