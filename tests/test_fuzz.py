"""Changed scenarios and damaged files: status 2, one line each, nothing half written, in bounds.

A few of each at every run of the tests; `tests/fuzz/many.py` plays thousands.
"""

import json
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fuzz.border import outcome
from fuzz.cases import fault_of, file_case, prepare, scenario_case
from fuzz.damage import damaged, mutated, places
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

few = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
chances = st.randoms(use_true_random=False)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with whole files."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)


@pytest.mark.slow
@few
@given(chance=chances)
def test_a_changed_scenario_is_refused_in_one_line_or_runs(here, chance):
    assert fault_of(scenario_case(chance)) is None


@pytest.mark.slow
@few
@given(chance=chances)
def test_a_damaged_file_is_refused_in_one_line_or_read(here, chance):
    assert fault_of(file_case(chance)) is None


def test_the_fuzzer_sees_what_must_not_be(here, monkeypatch):
    """A traceback, a status that is ours, a line without an end, and a file that is left."""
    assert outcome("check", "small.yaml").fault is None

    def fails(*arguments):
        raise ZeroDivisionError("division by zero")

    def leaves(*arguments):
        Path("left").write_text("half of it")
        return 2

    def says(text):
        return lambda *arguments: print(text, file=sys.stderr) or 2

    for command, fault in {
        fails: "ZeroDivisionError: division by zero",
        leaves: "status 2 without a word",
        says("x" * 9999): "a line of 9999 characters",
        says("a\x1bb"): "a line of 3 characters",
        lambda *arguments: 1: "status 1",
    }.items():
        monkeypatch.setattr("fuzz.border.run_command_line", command)
        assert outcome("check", "small.yaml").fault.startswith(fault)


@given(chance=chances)
def test_a_change_leaves_the_original_alone_and_a_damage_can_be_had_again(chance):
    raw = {"cluster": {"world_size": 2, "stragglers": [{"rank": 0}]}}
    text = json.dumps(raw)
    mutated(raw, chance, [raw])
    assert json.dumps(raw) == text
    assert list(places({"a": [1]})) == [("a",), ("a", 0)]
    damaged(b"a 1 2\nb 3", chance)


@pytest.mark.slow
def test_a_changed_scenario_never_holds_itself():
    """Its own sweep may be what is swept."""
    raw = {"sweep": {"x": [1]}}
    for number in range(600):
        json.dumps(mutated(raw, Random(number), [raw]))


def test_limits_hold(here, monkeypatch):
    """What takes more memory, or more time, than it may is found."""
    monkeypatch.setattr("fuzz.border.run_command_line", lambda *_: len(np.ones(2**29)))
    assert outcome("check").fault.startswith("numpy")
    monkeypatch.setattr("fuzz.border.MAX_SECONDS", 0.05)

    def forever(*arguments):
        while True:
            pass

    monkeypatch.setattr("fuzz.border.run_command_line", forever)
    assert outcome("check").fault == "takes longer than 0.05 s"
