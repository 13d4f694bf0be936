"""``init``: a first scenario, from flags or from answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.common import complain, put
from simdp.cli.completion import MACHINES, MODELS, PRECISIONS, STRATEGIES

if TYPE_CHECKING:
    from simdp.studies.first_scenario import Answers

NEEDED = {"--machine": "dgx-h100", "--model": "bert-large", "--gpus": "32"}
"""Flags without which there is no scenario, and examples of them."""


def init(
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml", help="See `list machines`.", autocompletion=MACHINES
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="See `list models`.", autocompletion=MODELS)
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="The largest number of ranks.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="See `list strategies` [ddp].", autocompletion=STRATEGIES),
    ] = None,
    microbatch: Annotated[
        int | None, typer.Option(min=1, help="Samples per rank and micro-step [what fits].")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="full, amp, mixed [amp, where devices have it].", autocompletion=PRECISIONS
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> int:
    """Write a commented scenario of your model on your cluster; asks for what is not given."""
    from simdp.errors import ScenarioError
    from simdp.files import write_whole
    from simdp.studies.first_scenario import first_scenario

    if out.exists() and not force:
        raise ScenarioError([f"{out}: is there already; add --force, or --out another file."])
    given = {"--machine": machine, "--model": model, "--gpus": gpus}
    missing = [option for option, value in given.items() if value is None]
    if missing and not sys.stdin.isatty():
        example = " ".join(f"{option} {NEEDED[option]}" for option in missing)
        raise ScenarioError(
            [f"{', '.join(missing)}: must be given where nobody can be asked; add {example}."]
        )
    text = first_scenario(
        _answers(machine, model, gpus, strategy, microbatch, precision, len(missing)), out
    )
    write_whole(out, lambda stream: put(stream, text))
    print(f"wrote {out}; next: python -m simdp run {out}")
    return 0


def _answers(
    machine: str | None,
    model: str | None,
    gpus: int | None,
    strategy: str | None,
    microbatch: int | None,
    precision: str | None,
    num_missing: int,
) -> Answers:
    """Ask for what is missing; where nothing was given, for the strategy too."""
    from simdp.files import parse_yaml
    from simdp.studies import first_scenario as study

    if machine is None:
        machine = _ask("Machine (list machines)", NEEDED["--machine"], study.known_machine)
    if model is None:
        model = _ask("Model (list models)", NEEDED["--model"], _value("--model"))
    if gpus is None:
        usual, named = str(study.usual_size(machine)), machine
        gpus = int(_ask("GPUs", usual, lambda text: study.known_size(named, _whole(text))))
    if num_missing == len(NEEDED) and strategy is None:
        strategy = _ask("Strategy (list strategies)", "ddp", _value("--strategy"))
    return study.Answers(
        machine,
        parse_yaml(model, "--model"),
        gpus,
        parse_yaml(strategy, "--strategy") if strategy else "ddp",
        microbatch,
        parse_yaml(precision, "--precision") if precision else None,
    )


def _ask(question: str, usual: str, check: Callable[[str], object]) -> str:
    """Ask until the answer is one; an empty one is the usual."""
    from simdp.errors import ScenarioError

    while True:
        text = str(typer.prompt(question, default=usual))
        try:
            check(text)
        except ScenarioError as error:
            for line in error.problems:
                complain(line)
        else:
            return text


def _value(option: str) -> Callable[[str], object]:
    """Check what is written as in YAML."""
    from simdp.files import parse_yaml
    from simdp.studies.first_scenario import known_value

    return lambda text: known_value(option, parse_yaml(text, option))


def _whole(text: str) -> int:
    from simdp.errors import ScenarioError

    if not text.isascii() or not text.isdecimal():
        raise ScenarioError([f"--gpus {text}: is not a whole number; write for example 32."])
    return int(text)
