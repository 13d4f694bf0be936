"""Shipped scenarios by name: those of the folder ``scenarios`` of the repository.

An installed package holds a copy of that folder in this package; in a checkout, also after ``pip
install -e``, the folder is next to the package. A name is the path in it without its suffix:
``8gpu_ring``, ``validation/nvidia/dgx-1_resnet50``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from simdp.errors import ScenarioError, close_names, unknown_name

PACKAGE = Path(__file__).parents[1]
PLACES = (PACKAGE / "scenarios", PACKAGE.parent / "scenarios")
"""Of an installed package, and of a checkout."""

FOR_EDITORS = "# yaml-language-server: $schema="
"""Begin of a file's first line with the schema for editors."""

SCENARIO, PROGRAM = ".yaml", ".py"


@cache
def folder() -> Path:
    """Return the folder of the scenarios."""
    return next((place for place in PLACES if place.is_dir()), PLACES[0])


@cache
def names(suffix: str = SCENARIO) -> tuple[str, ...]:
    """Return names of the lesson scenarios, sorted, or of the rank programs next to them."""
    return tuple(sorted(path.stem for path in folder().glob(f"*{suffix}")))


def question(name: str) -> str:
    """Return the question of a scenario: the first comment of its file after the editor line."""
    with (folder() / f"{name}{SCENARIO}").open(encoding="utf-8") as lines:
        comment = []
        for line in lines:
            if not line.startswith("#"):
                break
            if not line.startswith(FOR_EDITORS):
                comment.append(line.strip("# \n"))
    return " ".join(comment)


def find(path: Path, suffix: str = SCENARIO, folders: bool = False) -> Path:
    """Find the file of a path or of a scenario's name.

    Files in the current folder have precedence: the path, then the path with the suffix added; then
    the shipped scenarios.

    Parameters
    ----------
    path : Path
        As typed.
    suffix : str
        Of scenarios, or of rank programs.
    folders : bool
        Whether folders are found as well: ``validation``, ``validation/nvidia``.

    Returns
    -------
    Path
        Of an existing file or folder; or the path as typed, if it looks like a file's: opening it
        reports the error.

    Raises
    ------
    ScenarioError
        If there is no such file or scenario, with the known names.
    """
    for candidate in (path, Path(f"{path}{suffix}"), *_brought(path, suffix, folders)):
        if _is(candidate.is_file) or (folders and _is(candidate.is_dir)):
            return candidate
    if _is(path.exists):
        return path
    if path.suffix == suffix and path.stem in names(suffix):
        line = f"{path}: there is no such file; simdp brings one by the name of {path.stem}."
        raise ScenarioError([line])
    stem = path.stem if path.suffix == suffix else path.name
    close = close_names(stem, names(suffix))
    if len(path.parts) != 1 or (path.suffix and not close):
        return path
    what = "scenario" if suffix == SCENARIO else "program"
    lead = f"{path}: there is no such file or {what}"
    raise ScenarioError([unknown_name(what, stem, names(suffix), close, lead=lead)])


def _brought(path: Path, suffix: str, folders: bool) -> Iterator[Path]:
    """Return the place of a shipped file."""
    if path.name and not path.is_absolute() and ".." not in path.parts:
        yield folder() / f"{path}{suffix}"
        if folders:
            yield folder() / path


def _is(exists: Callable[[], bool]) -> bool:
    """Return whether a path exists; False if it cannot be looked up, as with a name too long."""
    try:
        return exists()
    except (OSError, ValueError):
        return False
