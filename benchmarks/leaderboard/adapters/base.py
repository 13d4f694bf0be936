"""What an entrant is: something that reads what it may see and answers times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from benchmarks.leaderboard.folds import Asked


class Answer(NamedTuple):
    """A time, and the ends of its 90 % interval where the entrant gives one [s]."""

    seconds: float
    low: float | None = None
    high: float | None = None

    @property
    def is_sound(self) -> bool:
        """Whether these are times: finite, above 0, and the interval around the time."""
        ends = [end for end in (self.low, self.high) if end is not None]
        if len(ends) == 1 or not all(isfinite(one) for one in (self.seconds, *ends)):
            return False
        return self.seconds > 0 and (not ends or 0 <= ends[0] <= self.seconds <= ends[1])


class AdapterError(Exception):
    """An entrant that gave no answers; says why in one line."""


class Adapter(ABC):
    """An entrant.

    Attributes
    ----------
    name : str
        In the tables.
    about : str
        What it does and whose rules these are.
    missing : str
        What it does not model.
    """

    name: str
    about: str
    missing: str

    @abstractmethod
    def answers(self, asked: Asked) -> Sequence[Answer | None]:
        """Answer the questions of a fold, in their order; None where it has nothing to say.

        Raises
        ------
        AdapterError
            If it cannot.
        """


def checked(adapter: Adapter, asked: Asked) -> list[Answer | None]:
    """What an entrant answers, as many as there are questions, and each of them a time.

    Raises
    ------
    AdapterError
        If that is not so.
    """
    given = list(adapter.answers(asked))
    if len(given) != len(asked.questions):
        raise AdapterError(
            f"fold {asked.fold}: gave {len(given)} answers to {len(asked.questions)} questions."
        )
    for point, answer in zip(asked.questions, given, strict=True):
        if answer is not None and not answer.is_sound:
            said = " ".join(f"{one:g}" for one in answer if one is not None)
            raise AdapterError(
                f"{point['id']}: answered {said}; a time must be above 0, inside its interval."
            )
    return given
