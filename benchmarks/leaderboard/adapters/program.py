"""Any program: it reads one JSON document and prints a line for each question.

On standard input it finds ``{"rule": ..., "fold": ..., "shown": [...], "questions": [...]}``. Each
line that it prints is a time in seconds, or a time and the ends of its 90 % interval, or ``-``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from benchmarks.leaderboard.adapters.base import Adapter, AdapterError, Answer
from benchmarks.leaderboard.folds import Asked

LIMIT = 60.0
"""How long it may take for a fold, unless told [s]."""


class Program(Adapter):
    """An entrant that is a program.

    Parameters
    ----------
    name : str
        In the tables.
    command : sequence of str
        What to run, once for each fold.
    limit : float
        How long that may take [s].
    """

    about = "a program"
    missing = "its author tells"

    def __init__(self, name: str, command: Sequence[str], limit: float = LIMIT) -> None:
        self.name = name
        self.command, self.limit = list(command), limit

    def answers(self, asked: Asked) -> list[Answer | None]:
        """Run it; what it prints is checked line by line."""
        try:
            done = subprocess.run(
                self.command,
                input=json.dumps(asked._asdict()),
                capture_output=True,
                text=True,
                timeout=self.limit,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise AdapterError(
                f"fold {asked.fold}: had not answered after {self.limit:g} s; allow more by "
                "--limit, or answer faster."
            ) from None
        except OSError as error:
            raise AdapterError(f"{self.command[0]}: cannot be run: {error.strerror}.") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise AdapterError(f"fold {asked.fold}: ended with {done.returncode}: {last}")
        lines = done.stdout.strip().splitlines()
        return [_read(line, number) for number, line in enumerate(lines, 1)]


def _read(line: str, number: int) -> Answer | None:
    if line.strip() == "-":
        return None
    try:
        figures = [float(word) for word in line.split()]
    except ValueError:
        figures = []
    if len(figures) not in (1, 3):
        raise AdapterError(
            f"line {number}: {line[:40]!r} is not a time in seconds, a time with the two ends of "
            "its interval, or -."
        )
    return Answer(*figures)
