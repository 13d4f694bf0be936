"""The guides on the command line and on members from outside: what they show works."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import simdp
from simdp.cli import run_command_line
from simdp.cli.commands import COMMANDS
from simdp.collectives import FAMILIES
from simdp.scenario import checked
from simdp.studies.families import tables

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
PLUGINS = (GUIDES / "plugins.md").read_text()
COMMAND_LINE = (GUIDES / "command-line.md").read_text()


def blocks(text, language):
    return re.findall(rf"```{language}(?: title=\S+)?\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The guide's module and scenario in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module, check = blocks(PLUGINS, "python")
    Path("last_minute.py").write_text(module)
    Path("last_minute.yaml").write_text(blocks(PLUGINS, "yaml")[0])
    yield check
    sys.modules.pop("last_minute", None)


def test_the_strategy_of_the_guide_runs_and_compares(example, capsys):
    for line in blocks(PLUGINS, "bash")[0].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "simdp"
        assert run_command_line([*arguments, "--no-plots"]) == 0
    assert run_command_line(["check", "runs/last_minute/result.json"]) == 0
    out = capsys.readouterr().out
    assert "2 (" in out  # messages


def test_the_strategy_of_the_guide_learns_what_training_alone_does(example):
    exec(compile(example, "plugins.md", "exec"), {})


@pytest.mark.slow
def test_it_passes_what_our_own_strategies_pass(example, monkeypatch):
    """Equal weights as DDP on models of every sort; equal instants on both clocks."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "engine"))
    from every_strategy import scenario
    from test_identities import CONVOLUTIONS, MLP, TRANSFORMER
    from test_identities_of_methods import DDP, learned, play

    from simdp.engine.simulate import prove_plans

    kind = {"kind": "last_minute:LastMinute", "messages": 2}

    for model in (MLP, CONVOLUTIONS, TRANSFORMER):
        workload = {**model, "global_batch": 12, "grad_accum": 2, "drop_last": True}
        ours, theirs = (play(strategy, 3, workload) for strategy in (kind, DDP))
        assert ours.metrics["replicas_identical"]
        for name, array in learned(theirs.replicas[0]).items():
            np.testing.assert_allclose(ours.replicas[0][name], array, rtol=1e-9, atol=1e-12)
    chosen = scenario(kind)
    prove_plans(chosen)
    clocks = [simdp.simulate(chosen, fabric=fabric) for fabric in ("event", "vector")]
    times = [clock.metrics["simulated_s"] for clock in clocks]
    assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_every_family_has_its_group_in_the_guide():
    groups = set(re.findall(r"`simdp\.(\w+)`", PLUGINS))
    assert {table.name for table in tables()} <= groups
    for table in tables():
        if table.name not in FAMILIES:
            home = f"{table.base.__module__}.{table.base.__name__}"
            assert f"`{home}`" in PLUGINS, home


def test_the_commands_of_the_guide_exist():
    for line in "".join(blocks(COMMAND_LINE, "bash")).splitlines():
        program, command, *_ = shlex.split(line, comments=True)
        assert program == "simdp"
        assert command in COMMANDS


def test_the_guide_names_the_options_of_init():
    from simdp.cli.init import init

    for name in set(init.__annotations__) - {"return"}:
        assert f"`--{name.replace('_', '-')}`" in COMMAND_LINE


def test_the_example_scenario_is_valid_by_itself(example):
    from simdp.files import parse_yaml

    raw = parse_yaml(blocks(PLUGINS, "yaml")[0], "plugins.md")
    assert checked(raw, Path()).strategy.messages == 2
