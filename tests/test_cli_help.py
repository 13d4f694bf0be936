"""Command-line help with examples, the version, and completion."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import simdp
from simdp.cli import run_command_line
from simdp.cli.commands import COMMANDS
from simdp.cli.completion import (
    FAMILIES,
    MACHINES,
    MODELS,
    PRECISIONS,
    SCENARIOS,
    STRATEGIES,
    clusters,
)


def said(capsys, *arguments):
    assert run_command_line(list(arguments)) == 0
    return capsys.readouterr().out


def test_help_lists_every_command_with_the_first_line_of_its_documentation(capsys):
    text = " ".join(said(capsys, "-h").split())
    assert text == " ".join(said(capsys, "--help").split())
    for name, command in COMMANDS.items():
        assert (f"{name} {command.summary}" in text) is not command.hidden
        module, _, function = command.home.partition(":")
        found = getattr(importlib.import_module(f"simdp.cli.{module}"), function)
        if callable(found) and found.__doc__ and not hasattr(found, "registered_commands"):
            assert found.__doc__.splitlines()[0] == command.summary


def test_every_command_has_short_help_with_examples(capsys):
    parts = [[name] for name in COMMANDS]
    parts += [["calibrate", kind] for kind in ("baseline", "ddp", "nccl-tests", "rows")]
    for words in parts:
        text = said(capsys, *words, "-h")
        assert "Examples:" in text, words
        assert f"  python -m simdp {' '.join(words)}" in text


def test_help_leaves_out_the_command_that_redraws_the_pictures_of_the_repository(capsys):
    assert "gallery" not in said(capsys, "--help")
    assert "--out" in said(capsys, "gallery", "--help")


def test_options_of_torchrun_without_an_effect_are_listed_apart(capsys):
    """What changes a run is above the heading, what is accepted and ignored below it."""
    above, heading, below = said(capsys, "torchrun", "--help").partition("Accepted and ignored")
    assert heading
    for option in ("--nnodes", "--nproc-per-node", "--cluster", "--tee", "--role", "--fake"):
        assert option in above
        assert option not in below.partition("Examples:")[0]
    ignored = ("--standalone", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--max-restarts")
    for option in (*ignored, "--node-rank", "--master-addr", "--master-port"):
        assert f"\n  {option}" not in above
        assert f"\n  {option}" in below


def test_the_examples_are_commands_that_exist():
    """Their options and the scenarios that they name; what they do is tested command by command."""
    import typer

    from simdp.cli import app

    group = typer.main.get_command(app)
    for command in COMMANDS.values():
        for example in command.examples:
            words = shlex.split(example.partition(" > ")[0])
            made = group.get_command(None, words[0])
            if words[0] == "calibrate":
                made = made.commands[words[1]]
            options = {option for parameter in made.params for option in parameter.opts}
            own = words[: words.index("--")] if "--" in words else words
            assert {word for word in own if word.startswith("--")} <= options, example


def test_the_version_is_printed(capsys):
    assert said(capsys, "--version") == f"simdp {simdp.__version__}\n"


def test_a_command_that_is_none_is_refused_with_a_hint(capsys):
    assert run_command_line(["runn"]) == 2
    assert capsys.readouterr().err == "No such command 'runn'. Did you mean 'run'?\n"


def test_only_the_command_that_is_asked_for_is_loaded(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("simdp.cli.")]:
        if name.removeprefix("simdp.cli.") in ("validate", "collective", "gallery", "listing"):
            monkeypatch.delitem(sys.modules, name)
    said(capsys, "--help")
    said(capsys, "list", "faults")
    assert "simdp.cli.listing" in sys.modules
    assert "simdp.cli.validate" not in sys.modules


def test_names_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scale_mine.yaml").write_text("")
    Path("scale.txt").write_text("")
    Path("scales").mkdir()
    Path("scales/one.yaml").write_text("")
    assert SCENARIOS("scal") == ["scaling", "scale_mine.yaml", "scales/"]
    assert SCENARIOS("scales/") == ["scales/one.yaml"]
    assert MACHINES("dgx-h") == ["dgx-h100", "dgx-h200"]
    assert MODELS("bert") == ["bert-base", "bert-large"]
    assert STRATEGIES("zero") == ["zero1", "zero2", "zero3"]
    assert PRECISIONS("f") == ["full"]
    assert "strategies" in FAMILIES("stra")
    assert clusters("two_") == ["two_jobs", "two_nodes"]
    assert clusters("dgx-h1") == ["dgx-h100"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_gets_the_names(shell, monkeypatch, capsys):
    """As the script of ``--install-completion`` asks for them."""
    from simdp.cli import app

    monkeypatch.setenv("_SIMDP_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "simdp run 8gpu")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "simdp run 8gpu")
    with pytest.raises(SystemExit) as left:
        app([], prog_name="simdp")
    assert left.value.code == 0
    assert re.search(r"\b8gpu_ring\b", capsys.readouterr().out)
