"""Counts on the command line: those that would exhaust memory or time are refused."""

import typing

import pytest
import typer

from simdp.cli import run_command_line
from tests.test_cli_outputs import (
    COMPARE,
    DIAGNOSE,
    EXTRAPOLATE,
    INIT,
    JOB,
    OF_SWEEP,
    RUN,
    VALIDATE,
    functions,
    here,
    with_option,
)

__all__ = ["here"]

HUGE = 10**11
FITS = ["fits", "gpt2", "--gpus", "8", "--device", "a100-sxm4-80gb"]

COUNTS = {
    ("run", "--stop-after"): RUN,
    ("run", "--gpus"): RUN,
    ("run", "--workers"): OF_SWEEP,
    ("compare", "--workers"): COMPARE,
    ("job", "--runs"): JOB,
    ("job", "--workers"): JOB,
    ("plan", "--workers"): ["plan", "box.yaml"],
    ("plan", "--global-batch"): ["plan", "box.yaml", "--choose", "nodes=1,2"],
    ("extrapolate", "--workers"): EXTRAPOLATE,
    ("extrapolate", "--microbatch"): ["extrapolate", "rank0.json", "--gpus", "2"],
    ("validate", "--workers"): VALIDATE,
    ("diagnose", "--gpus"): DIAGNOSE,
    ("diagnose", "--microbatch"): DIAGNOSE,
    ("diagnose", "--grad-accum"): DIAGNOSE,
    ("diagnose", "--node-size"): DIAGNOSE,
    ("diagnose", "--sequence-length"): DIAGNOSE,
    ("replay", "--microbatch"): ["replay", "rank0.json"],
    ("exec", "--world-size"): ["exec", "program.py"],
    ("exec", "--nnodes"): ["exec", "program.py"],
    ("exec", "--nproc-per-node"): ["exec", "program.py"],
    ("fits", "--node-size"): FITS,
    ("fits", "--sequence-length"): FITS,
    ("init", "--gpus"): INIT,
    ("init", "--node-size"): INIT,
    ("init", "--sequence-length"): INIT,
    ("probe", "--steps"): ["probe"],
    # Written as text
    ("run", "--ranks"): [*RUN, "--traces"],
    ("fits", "--gpus"): FITS[:2] + FITS[4:],
    ("extrapolate", "--gpus"): ["extrapolate", "one.yaml", "--on", "dgx-a100"],
    ("collective", "--world-size"): ["collective", "all_reduce", "--cluster", "one.yaml"],
    ("audit", "--ranks"): ["audit", "train.py"],
    ("probe", "--minutes"): ["probe"],
}
"""Words of a command, by the command and a count."""

HARMLESS = {
    "--seed",
    "--root",
    "--max-steps",  # of a run that ends by itself
    "--at-step",
    *("--node-rank", "--master-port"),
    *[("init", "--microbatch"), ("fits", "--microbatch")],  # does not fit
    ("calibrate baseline", "--ranks"),  # chooses among the measurements
    ("calibrate nccl-tests", "--links-per-node"),  # divides a bandwidth
}
"""Options that count nothing, or nothing that is computed."""


def whole_numbers(function):
    """Options of a command that take a number."""
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        notes = getattr(hint, "__metadata__", ())
        if not any(isinstance(note, typer.models.OptionInfo) for note in notes):
            continue
        if {int, float} & {hint.__origin__, *typing.get_args(hint.__origin__)}:
            yield f"--{name.replace('_', '-')}"


def test_every_count_is_tried_here():
    found = {(name, option) for name, made in functions() for option in whole_numbers(made)}
    found = {(name, option) for name, option in found if not {option, (name, option)} & HARMLESS}
    assert found <= set(COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "option"),
    [pytest.param(*pair, marks=() if "--runs" in pair else pytest.mark.long) for pair in COUNTS],
)
def test_a_count_that_is_too_large_is_refused_at_once(command, option, here, capsys):
    if (command, option) == ("audit", "--ranks"):
        pytest.importorskip("torch")
    words = COUNTS[command, option]
    if command in ("audit", "exec"):
        words = with_option(command, words, option, HUGE)
    else:
        words = [*words, option, str(HUGE)]  # of two values the last one counts
    assert run_command_line(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "range" in err or option in err
    assert "No such option" not in err
