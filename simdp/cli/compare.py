"""``compare``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from simdp.cli.common import Overrides, ScenarioPath, overrides_of, put, say


def compare(
    scenario: ScenarioPath,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2",
            help="What to compare, as strategy=single,ddp; several make a grid.",
        ),
    ],
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME-compare].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
) -> int:
    """Lay strategies, or any values, side by side: a table here, and a picture in a folder."""
    from simdp.files import whole_files
    from simdp.scenario.overrides import move_paths
    from simdp.scenario.shipped import find
    from simdp.studies import compare as study

    file = find(scenario)
    with _spinner(quiet) as progress:
        found = study.compare(file, _values(over), overrides_of(settings), progress=progress)
    folder = out or Path("runs") / f"{found.scenario['name']}-compare"
    found.scenario = move_paths(found.scenario, file.parent.resolve(), folder.resolve())
    with whole_files(folder) as add:
        add("comparison.json", lambda stream: put(stream, found.to_json()))
        if not no_plots:
            from simdp.reports.plots import fitting, render

            for kind in fitting(found):
                add(f"{kind}.png", partial(render, found, kind))
    if as_json:
        sys.stdout.write(found.to_json())
    elif not quiet:
        from simdp.reports import compare_table

        say(compare_table.table(found))
        say(f"files in {folder}")
    return 0


def _values(over: list[str]) -> dict[str, list[Any]]:
    """Read ``KEY=V1,V2``, whose right side is a YAML list without its brackets."""
    from simdp.errors import ScenarioError
    from simdp.files import parse_yaml

    found: dict[str, list[Any]] = {}
    for text in over:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise ScenarioError(
                [f"--over {text}: is not KEY=V1,V2; write for example strategy=single,ddp."]
            )
        if key in found:
            raise ScenarioError(
                [f"--over {text}: {key} is compared already; give all its values at once."]
            )
        found[key] = parse_yaml(f"[{values}]", f"--over {text}")
    return found


@contextmanager
def _spinner(silent: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Say on standard error which point is played; nothing where nobody looks."""
    if silent or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda number, count: status.update(f"point {number + 1} of {count}")
