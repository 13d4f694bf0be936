"""The exceptions that simdp raises on purpose; each knows the exit status of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

MAX_LINE = 2_000
"""Characters of a line; the longest of ours lists every layer."""

MAX_SHOWN = 60
"""Characters of a value in a message."""

MIN_PART, MAX_CLOSE = 3, 12
"""Characters of a part of a name that tell which are meant; how many of them are listed."""

_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""What ends a line on some screen, or does worse there."""


def one_line(text: str) -> str:
    """Make a message one line of bounded length, whatever a value in it holds.

    The beginning gives the place, and the end the remedy, so that a long one is cut in the middle.
    """
    if len(text) > MAX_LINE:
        cut = len(text) - MAX_LINE
        begin = 2 * MAX_LINE // 3
        text = f"{text[:begin]} ... {text[begin + cut + 5 :]}"
    return text if text.isprintable() else text.translate(_ESCAPED)


class SimdpError(Exception):
    """Base of every error that simdp raises on purpose."""

    exit_status = 1


class ScenarioError(SimdpError):
    """The input is wrong: every problem that was found, one line each.

    Parameters
    ----------
    problems : sequence of str
        One line per problem: place, given value, allowed values, remedy.
    """

    exit_status = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = [one_line(line) for line in problems]
        super().__init__(self.problems)  # so that SimPy and pickle can make the error anew

    def __str__(self) -> str:
        return "\n".join(self.problems)


class UnitError(SimdpError, ValueError):
    """A quantity has no unit, an unknown unit, or the unit of another dimension."""

    exit_status = 2


class KindError(SimdpError, ValueError):
    """An external class of this kind cannot be loaded, or is no member of the family."""

    exit_status = 2


class PlanError(SimdpError):
    """A collective's plan loses, doubles or misplaces a contribution."""

    exit_status = 2


class OperationError(SimdpError, TypeError):
    """An interpreter got an operation that it neither handles nor ignores.

    Parameters
    ----------
    interpreter : str
        The module, and the class or function in it.
    operation : type
        Class of the operation.
    """

    def __init__(self, interpreter: str, operation: type) -> None:
        super().__init__(interpreter, operation)
        self.interpreter, self.operation = interpreter, operation

    def __str__(self) -> str:
        return (
            f"{self.interpreter} neither handles nor ignores the operation "
            f"{self.operation.__module__}.{self.operation.__qualname__}; add it to one of the two "
            f"there, or yield operations of simdp.steps.ops only."
        )


class DeadlockError(SimdpError):
    """Nothing can move any more while ranks still wait.

    Parameters
    ----------
    waiting : sequence of str
        One line per waiting rank, with the event that it waits for.
    """

    exit_status = 4

    def __init__(self, waiting: Sequence[str]) -> None:
        self.waiting = list(waiting)
        super().__init__(self.waiting)  # so that SimPy and pickle can make the error anew

    def __str__(self) -> str:
        return "deadlock: " + "; ".join(self.waiting)


class ProgramError(SimdpError):
    """A rank program makes an invalid call, or raises: its exception follows, with the rank."""

    exit_status = 2


def unknown_name(
    what: str, given: object, known: Sequence[str], close: Sequence[str] | None = None
) -> str:
    """Say that a name is unknown, which names are known, and which one was probably meant.

    Parameters
    ----------
    what : str
        Kind of the name, for example ``"all_reduce"``.
    given : object
        Given name.
    known : sequence of str
        Every name that is allowed.
    close : sequence of str, optional
        Those that were probably meant; by default the `close_names`.

    Returns
    -------
    str
        One line without the place of the error.
    """
    said = shown(given)
    if not known:
        return f"unknown {what} {said}; none are known here."
    listed = ", ".join(known)
    close = [repr(name) for name in (close_names(str(given), known) if close is None else close)]
    last = f"{', '.join(close[:-1])} or {close[-1]}" if close[1:] else "".join(close)
    hint = f" Did you mean {last}?" if close else ""
    return f"unknown {what} {said}; known: {listed}.{hint}"


def close_names(given: str, known: Sequence[str]) -> list[str]:
    """Similar names: those that begin with the given name, contain it, or resemble it.

    Case, spaces and underscores make no difference: ``A100`` matches ``a100-sxm4-40gb`` and all
    other devices of that name.
    """
    given = given[:MAX_SHOWN]
    plain, plainly = _plain(given), {name: _plain(name) for name in known}
    beginning = [name for name in known if plainly[name].startswith(plain)]
    holding = [name for name in known if plain in plainly[name]]
    for found in (beginning, holding):
        if len(plain) >= MIN_PART and 0 < len(found) <= MAX_CLOSE:
            return found
    close = get_close_matches(given, known, n=1)
    return close or get_close_matches(plain, known, n=1)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def shown(given: object) -> str:
    """Write a given value, shortened but distinguishable."""
    text = repr(given)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
