"""Files of users, opened to be read, and text files, read to a limit and never beyond."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from simdp.errors import ScenarioError

MAX_TEXT_BYTES = 16 * 2**20
"""A log or a table of layer times is never larger; a file that is, is of another kind."""

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: Path) -> BufferedReader:
    """Open a regular file to read its bytes; every reader of a user's file opens it here.

    A device may never end, and a pipe may never begin: both are refused before a byte is read.

    Raises
    ------
    ScenarioError
        If there is no such file, it is a folder, a pipe, a socket or a device, or access to it is
        denied.
    """
    try:
        # Without O_NONBLOCK, to open a pipe waits until another process writes to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    except FileNotFoundError:
        raise ScenarioError([f"{path}: there is no such file."]) from None
    except IsADirectoryError:
        raise _a_folder(path) from None
    except OSError as error:
        kind = special_kind(path)
        why = f"cannot be read: {error.strerror or error}." if not kind else _not_regular(kind)
        raise ScenarioError([f"{path}: {why}"]) from None
    except ValueError as error:  # a null byte in the name
        raise ScenarioError([f"{path}: cannot be read: {error}."]) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise _a_folder(path)
        raise ScenarioError([f"{path}: {_not_regular(_KINDS.get(stat.S_IFMT(mode), 'no file'))}"])
    return os.fdopen(handle, "rb")


_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def refuse_special(path: Path) -> None:
    """Refuse a pipe, a socket or a device before another library opens it, or it is replaced.

    Raises
    ------
    ScenarioError
        If the path is one of them; what does not exist passes.
    """
    kind = special_kind(path)
    if kind:
        raise ScenarioError([f"{path}: {_not_regular(kind)}"])


def special_kind(path: Path) -> str:
    """Name a pipe, a socket or a device as such; empty for files, folders and what is not there."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "")
    except (OSError, ValueError):
        return ""


def _not_regular(kind: str) -> str:
    return f"is {kind}, not a regular file; store its content in a file, and name that."


def _a_folder(path: Path) -> ScenarioError:
    return ScenarioError([f"{path}: is a folder; name a file in it."])


def read_text(path: Path, wanted: str = "a scenario is YAML", limit: int = MAX_TEXT_BYTES) -> str:
    """Read a text file; ``wanted`` says what it should have been.

    No more than ``limit`` [bytes] are read.

    Raises
    ------
    ScenarioError
        As `open_file`; or it is not text, or it is too large to be one of ours.
    """
    try:
        with open_file(path) as stream:
            content = stream.read(limit + 1)
        if len(content) > limit:
            most = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit // 2**10} KiB"
            raise ScenarioError(
                [f"{path}: is larger than {most}, so it is another file; {wanted}."]
            )
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ScenarioError([f"{path}: is not a text file; {wanted}."]) from None
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}."]) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
