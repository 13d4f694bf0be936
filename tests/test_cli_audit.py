"""``python -m simdp audit``: the table, the document, the exit status, and what it refuses."""

import pytest
from for_each import for_each

from simdp.cli import run_command_line
from simdp.cli.completion import CAUSES


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        status = run_command_line(["audit", *map(str, arguments)])
        found = capsys.readouterr()
        return status, found.out, found.err

    return command


@for_each(
    ("given", "said"),
    [
        (("--batch-arg", "--b {per_rank}"), "--batch-arg: is for scripts, but seed_mlp is a"),
        (("--save-arg", "--save {checkpoint}"), "--save-arg: is for scripts, but seed_mlp is a"),
        (("--resume-arg", "--r {checkpoint}"), "--resume-arg: is for scripts, but seed_mlp is a"),
        (("--at-step", 3), "--at-step: is for scripts, but seed_mlp is a scenario; leave it out."),
        (("--ranks", "1,x"), "--ranks 1,x: is no list of numbers of ranks; write for example 1,2"),
        (("--ranks", "4:2"), "--ranks 4:2: is no list of numbers of ranks; write for example 1,2"),
        (("--allow", "roundin"), "--allow: unknown cause 'roundin'; known: collectives_differ, "),
    ],
)
def test_what_is_not_for_a_scenario_is_refused_in_one_line(command, given, said):
    status, out, err = command(*given, "seed_mlp")
    assert (status, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_an_unknown_cause_gets_a_hint(command):
    assert command("--allow", "roundin", "seed_mlp")[2].endswith("Did you mean 'rounding'?\n")


def test_arguments_behind_a_scenario_are_refused(command):
    status, _, err = command("seed_mlp", "--epochs", "3")
    assert status == 2
    assert err == (
        "--epochs 3: arguments are for scripts, but seed_mlp is a scenario; options stand before "
        "it, keys are set by --set.\n"
    )


def test_keys_are_set_in_scenarios_only(command):
    status, _, err = command("--set", "seed=1", "train.py")
    assert status == 2
    assert err == ("--set seed=1: is for scenarios; give a script its own arguments behind it.\n")


def test_causes_are_completed():
    assert CAUSES("resume") == ["resume_optimizer_state", "resume_sampler_position"]
