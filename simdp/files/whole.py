"""Whole files or nothing: what is written appears when all of it is there.

What is not whole yet has a name that begins with a dot and ends with `PART`, and is locked by who
writes it. So what a killed process has left is told from what another one is writing, and goes when
the folder is next written to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from simdp.errors import ScenarioError
from simdp.files.text import special_kind

PART = ".simdp-part"
"""How the name of a file ends that is not whole yet."""


@contextmanager
def whole_files(folder: Path) -> Iterator[Callable[[str, Callable[[BinaryIO], None]], None]]:
    """Write several files into a folder: all of them appear, or none.

    Parameters
    ----------
    folder : Path
        Made, with its parents; gone again if the files do not come about.

    Yields
    ------
    callable
        ``add(name, write)`` where ``write`` fills a binary stream.

    Raises
    ------
    ScenarioError
        If the folder cannot be written to.
    """
    written: list[tuple[Path, Path, int]] = []
    made: list[Path] = []
    complete = False
    try:
        made = [place for place in (folder, *folder.parents) if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ScenarioError([f"{folder}: is no folder; name one to write to."]) from None
        _remove_left_over(folder)

        def add(name: str, write: Callable[[BinaryIO], None]) -> None:
            target = folder / name
            if target.is_dir():
                raise ScenarioError([f"{target}: is a folder; name a file to write to."])
            if kind := special_kind(target):
                raise ScenarioError([f"{target}: is {kind}; name a regular file to write to."])
            handle, temporary = _part(folder)
            written.append((target, temporary, handle))
            with os.fdopen(handle, "wb", closefd=False) as stream:
                write(stream)
            temporary.chmod(0o644)

        yield add
        for target, temporary, _ in written:
            temporary.replace(target)
        complete = True
    except OSError as error:
        why = error.strerror or error
        raise ScenarioError([f"{folder}: cannot be written to: {why}."]) from None
    finally:
        for _, temporary, handle in written:
            temporary.unlink(missing_ok=True)
            os.close(handle)
        if not complete:
            for place in made:
                with suppress(OSError):
                    place.rmdir()


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write one file, whole or not at all; errors as in `whole_files`."""
    with whole_files(path.parent) as add:
        add(path.name, write)


def _part(folder: Path) -> tuple[int, Path]:
    """Make a file that is locked, for as long as this process has it open."""
    while True:
        handle, name = tempfile.mkstemp(prefix=".", suffix=PART, dir=folder)
        # Between the two lines another process may have taken it for one that is left over.
        if _lock(handle) is not False and os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)


def _remove_left_over(folder: Path) -> None:
    """Remove what processes that are no more have left half written."""
    for path in folder.glob(f".*{PART}"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                if _lock(handle):
                    path.unlink()
            finally:
                os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock a file; False where another process has it, None on a disk that knows no locks."""
    try:
        import fcntl  # which not every system has

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True
