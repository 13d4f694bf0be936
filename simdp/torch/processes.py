"""Processes: what a rank has of Python for itself: environment, arguments, streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from simdp.torch.parts import Part
from simdp.torch.ranks import Rank, current


class Processes(Part):
    """Each rank's ``os.environ``, ``sys.argv``, ``__main__`` and ``sys.excepthook``.

    ``os.environ`` stays the same object, whose contents change, so that whoever has it sees those
    of the rank that runs.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        before, folder = _seen(), Path.cwd()
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = Lines(streams[0], "stdout"), Lines(streams[1], "stderr")
        try:
            yield
        finally:
            sys.stdout.rest()
            sys.stderr.rest()
            sys.stdout, sys.stderr = streams
            _show(before)
            os.chdir(folder)

    def begin(self, rank: Rank) -> None:
        data = {_bytes(key): _bytes(value) for key, value in rank.environ.items()}
        rank.state["process"] = data, rank.arguments, rank.state.pop("main", None), sys.excepthook
        self.enter(rank)

    def enter(self, rank: Rank) -> None:
        if "process" in rank.state:
            _show(rank.state["process"])

    def leave(self, rank: Rank) -> None:
        rank.state["process"] = _seen()

    def end(self, rank: Rank) -> None:
        rank.state.pop("process", None)


def _bytes(text: str) -> Any:
    return os.environ.encodekey(text)


def _seen() -> tuple[Any, ...]:
    return cast(Any, os.environ)._data, sys.argv, sys.modules["__main__"], sys.excepthook


def _show(seen: tuple[Any, ...]) -> None:
    cast(Any, os.environ)._data, sys.argv, main, sys.excepthook = seen
    if main is not None:
        sys.modules["__main__"] = main


class Lines:
    """A stream that ranks write to: whole lines, marked with who writes them if asked to.

    Parameters
    ----------
    stream : file object
        Where they go.
    name : {"stdout", "stderr"}
        Which it is.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._begun: dict[Rank, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text; what is no line yet waits for its end."""
        rank = current()
        if rank is None:
            return int(self._stream.write(text))
        mark = rank.state.get("marks", {}).get(self._name, "")
        if mark is None:
            return len(text)
        whole, newline, rest = (self._begun.pop(rank, "") + text).rpartition("\n")
        if newline:
            lines = whole.split("\n")
            self._stream.write("".join(f"{mark}{line}\n" for line in lines))
        if rest:
            self._begun[rank] = rest
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def rest(self) -> None:
        """Write what never came to the end of its line."""
        for rank, text in self._begun.items():
            mark = rank.state.get("marks", {}).get(self._name, "")
            self._stream.write(f"{mark}{text}")
        self._begun.clear()

    def close(self) -> None:
        """Leave the stream open, which is everybody's."""
        self._stream.flush()
