"""Shelter: what a rank does to the process, which it shares with all others, ends with that rank.

In torch every rank is a process. One that closes its standard output closes its own, and one that
calls ``os._exit`` leaves alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn


class Left(BaseException):
    """Unwinds a rank that has called ``os._exit`` or ``os.abort``; no `Exception`, as `Ended`."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(call, status)
        self.call, self.status = call, status


class _Open:
    """A stream that stays open when it is closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def sheltered() -> Iterator[None]:
    """Keep standard streams open, and the process alive, while a program runs."""
    streams, leave, abort, process = (sys.stdout, sys.stderr), os._exit, os.abort, os.getpid()

    def leave_alone(status: int) -> NoReturn:
        if os.getpid() != process:  # a fork of the program's own
            leave(status)
        raise Left(f"os._exit({status!r})", status)

    def abort_alone() -> NoReturn:
        if os.getpid() != process:
            abort()
        raise Left("os.abort()", 134)

    sys.stdout, sys.stderr = _Open(streams[0]), _Open(streams[1])
    os._exit, os.abort = leave_alone, abort_alone
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        os._exit, os.abort = leave, abort
