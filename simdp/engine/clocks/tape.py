"""Tape: one script for many readers."""

from __future__ import annotations

from collections.abc import Iterator

from simdp.engine.ops import Op


class Tape:
    """Each operation of a script is made once, when the first reader needs it.

    Parameters
    ----------
    script : iterator of Op
        What every reader plays.
    """

    def __init__(self, script: Iterator[Op]) -> None:
        self._script, self._ops = script, list[Op]()

    def read(self) -> Iterator[Op]:
        """Read from the beginning."""
        position = 0
        while True:
            if position == len(self._ops):
                op = next(self._script, None)
                if op is None:
                    return
                self._ops.append(op)
            yield self._ops[position]
            position += 1
