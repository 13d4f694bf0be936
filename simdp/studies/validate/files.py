"""Files: the scenarios below some paths that say what a real machine did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simdp.errors import ScenarioError
from simdp.files import read_text
from simdp.scenario import Scenario, load_scenario
from simdp.scenario.shipped import find

_MEASURED = re.compile(r"^measured\s*:", re.MULTILINE)


def load_measured(paths: Sequence[Path]) -> dict[Path, Scenario]:
    """Load every scenario that has ``measured:``.

    Parameters
    ----------
    paths : sequence of Path
        Files, each of which must have it; and folders, of which those that have it are taken.
        Either may be of those that simdp brings: ``validation/nvidia``.

    Returns
    -------
    dict of Path to Scenario
        In the order of the paths, and by name in a folder.

    Raises
    ------
    ScenarioError
        If any of them is wrong, with the problems of all; or two have the same name.
    """
    found: dict[Path, Scenario] = {}
    first: dict[str, Path] = {}
    lines: list[str] = []
    for file in dict.fromkeys(_files(paths)):
        try:
            scenario = load_scenario(file)
        except ScenarioError as error:
            lines += error.problems
            continue
        if scenario.measured is None:
            lines.append(
                f"{file}: has no measured: key; add measured: {{source: ..., points: [...]}}, "
                "what a real machine did."
            )
        other = first.setdefault(scenario.name, file)
        if other.resolve() != file.resolve():
            lines.append(f"{file}: has the name of {other}, {scenario.name}; add another name: ...")
        elif other == file:
            found[file] = scenario
    if lines:
        raise ScenarioError(lines)
    return found


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in (find(path, folders=True) for path in paths):
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.rglob("*.yaml"))
        having = [file for file in inside if _MEASURED.search(read_text(file))]
        if not having:
            raise ScenarioError([f"{path}: holds no scenario with measured: ... in it."])
        yield from having


def cluster_name(scenario: str, point: Scenario) -> str:
    """Name what a point was measured on: its machine, else the scenario that it belongs to."""
    machine = point.cluster.machine
    return Path(machine).stem if machine else scenario
