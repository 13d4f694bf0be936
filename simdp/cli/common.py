"""What several commands need: reading scenarios, printing, writing."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simdp.cli.completion import SCENARIOS

if TYPE_CHECKING:
    from simdp.scenario import Scenario

CHECK_FAILED = 3

ScenarioPath = Annotated[
    Path,
    typer.Argument(
        help="A YAML file, a saved result.json, or a name of `list scenarios`.",
        autocompletion=SCENARIOS,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key before validation."),
]


def complain(line: str) -> None:
    """Print a line on standard error, if that takes it, broken between words on a terminal."""
    from simdp.errors import one_line

    line = one_line(line)
    if sys.stderr.isatty():
        from shutil import get_terminal_size
        from textwrap import fill

        width = get_terminal_size().columns
        line = fill(line, width, break_long_words=False, break_on_hyphens=False)
    with suppress(OSError):
        print(line, file=sys.stderr)


def say(renderable: Any) -> None:
    """Print what Rich can render."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with status 1, which says that we failed

    Output(highlight=False).print(renderable, soft_wrap=True)


def load(path: Path, settings: list[str] | None) -> Scenario:
    """Read a scenario with what ``--set`` says."""
    from simdp.scenario import load_scenario

    return load_scenario(path, overrides_of(settings))


def overrides_of(settings: list[str] | None) -> dict[str, Any]:
    """Read what ``--set`` says: dotted keys and YAML values."""
    from simdp.errors import ScenarioError
    from simdp.files import parse_yaml

    overrides = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ScenarioError(
                [f"--set {setting}: is not KEY=VALUE; write for example cluster.world_size=4."]
            )
        overrides[key] = parse_yaml(value, f"--set {key}")
    return overrides


def put(stream: Any, text: str) -> None:
    """Write text to a binary stream."""
    stream.write(text.encode())
