"""The exceptions that simdp raises on purpose; each knows the exit status of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MAX_LINE = 2_000
"""Characters of a line; the longest of ours lists every layer."""

MAX_SHOWN = 60
"""Characters of a value in a message."""

MIN_PART, MAX_CLOSE, MAX_KNOWN = 3, 10, 10
"""Characters of a part of a name that tell which are meant; how many of them, and of the names that
are known, are listed."""

TYPO = 0.8
"""Similarity from which a name is another one mistyped."""

_SINGULARS = (
    "activation allocator benchmark comm_hook compute cost dataset device failure fault host layer "
    "link machine model optimizer precision scenario straggler target"
)
_COLLECTIVES = (
    "all_gather all_reduce all_to_all barrier broadcast gather reduce reduce_scatter scatter"
)

LISTS = {
    **{noun: f"{noun}s" for noun in _SINGULARS.split()},
    **{noun: noun for noun in (*_COLLECTIVES.split(), "lengths", "recovery")},
    **{"loss": "losses", "lr_schedule": "schedules", "strategy": "strategies"},
    "topology": "topologies",
}
"""Families of ``list`` by the noun of a name."""

DTYPES = {
    **dict.fromkeys(["bf16", "bfloat"], "bfloat16"),
    **dict.fromkeys(["fp16", "f16", "half", "16"], "float16"),
    **dict.fromkeys(["float", "fp32", "f32", "32"], "float32"),
    **dict.fromkeys(["fp64", "f64", "double", "64"], "float64"),
    **dict.fromkeys(["tf32"], "tfloat32"),
    **dict.fromkeys(["fp8", "f8"], "float8"),
}
"""Short names of number types."""

PRECISIONS = {
    **{dtype: f"{{kind: amp, dtype: {dtype}}}" for dtype in ("bfloat16", "float16")},
    "float32": "full",
}
"""The precision that usually trains in a number type."""

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


def joined(problems: Iterable[str]) -> str:
    """Join problems as one sentence: each but the last loses its full stop."""
    *others, last = [*problems] or [""]
    return "; ".join([*(line.removesuffix(".") for line in others), last])


class SimdpError(Exception):
    """Base of every error that simdp raises on purpose."""

    exit_status = 1


class ScenarioError(SimdpError):
    """The input is wrong: every problem that was found, one line each.

    Parameters
    ----------
    problems : str or sequence of str
        One line per problem: place, given value, allowed values, remedy; or the only one.
    """

    exit_status = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        lines = [problems] if isinstance(problems, str) else problems
        self.problems = [one_line(line) for line in lines]
        super().__init__(self.problems)  # so that SimPy and pickle can make the error anew

    def __str__(self) -> str:
        return "\n".join(self.problems)


class UnitError(SimdpError, ValueError):
    """A quantity has no unit, an unknown unit, or the unit of another dimension."""

    exit_status = 2


class LedBy:
    """Lead each problem of a block by its place, as in ``with LedBy("--for "):``.

    A `UnitError` becomes a `ScenarioError`.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ScenarioError | UnitError):
            lines = error.problems if isinstance(error, ScenarioError) else [str(error)]
            raise ScenarioError([f"{self.place}{line}" for line in lines]) from None


class KindError(SimdpError, ValueError):
    """An external class of this kind cannot be loaded, or is no member of the family."""

    exit_status = 2


class PlanError(SimdpError):
    """A collective's plan loses, doubles or misplaces a contribution."""

    exit_status = 2


class OperationError(SimdpError, TypeError):
    """An interpreter has no handler of an operation.

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
            f"{self.interpreter} does not handle the operation "
            f"{self.operation.__module__}.{self.operation.__qualname__}; add a handler there, or "
            f"yield operations of simdp.steps.ops only."
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
    what: str,
    given: object,
    known: Sequence[str],
    close: Sequence[str] | None = None,
    hint: str | None = None,
    lead: str | None = None,
) -> str:
    """Report an unknown name: first the name that was probably meant, then those that are known.

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
    hint : str, optional
        What to write instead, in place of ``close``.
    lead : str, optional
        How the line begins, by default with the kind and the given name.

    Returns
    -------
    str
        One line without the place of the error.
    """
    lead = lead or f"unknown {what} {shown(given)}"
    if not known:
        return f"{lead}; none are known here."
    if what == "precision":
        hint = hint or PRECISIONS.get(full_dtype(str(given)))
    if what == "model" and str(given).endswith(".json"):
        hint = hint or f"{{kind: transformers, path: {given}}}"
    if hint is None:
        names = close_names(given, known) if close is None and isinstance(given, str) else close
        hint = either(map(repr, names or ()))
    return f"{lead}{choices(known, what, hint)}"


def choices(known: Sequence[str], what: str = "", hint: str = "") -> str:
    """End an error about a name: with the hint first, then the first `MAX_KNOWN` of what is known.

    Parameters
    ----------
    known : sequence of str
        Every name.
    what : str
        Kind of the names; of those of `LISTS` the command is named that lists all.
    hint : str
        What was probably meant.
    """
    left_out, names = len(known) - MAX_KNOWN, ", ".join(known)
    if left_out > 0:
        command = f": simdp list {LISTS[what]}" if what in LISTS else ""
        names = f"{', '.join(known[:MAX_KNOWN])}, ... and {left_out} more{command}"
    return f". Did you mean {hint}? Known: {names}." if hint else f"; known: {names}."


def either(names: Iterable[str]) -> str:
    """Write alternatives: ``a, b or c``."""
    *others, last = [*names] or [""]
    return f"{', '.join(others)} or {last}" if others else last


def close_names(given: str, known: Sequence[str]) -> list[str]:
    """Similar names: those that begin with the given name, contain it or its words, or resemble it.

    Case, spaces and underscores make no difference: ``A100`` matches ``a100-sxm4-40gb`` and all
    other devices of that name. An organisation in front is left out, and a version is also its
    first number: ``meta-llama/Llama-3.1-8B`` matches ``llama3-8b``.
    """
    given = given[:MAX_SHOWN].rpartition("/")[2] or given[:MAX_SHOWN]
    dtype = full_dtype(given)
    if dtype in DTYPES.values():
        return [name for name in known if full_dtype(name) == dtype]
    plain, plainly = _plain(given), {name: _plain(name) for name in known}
    words, long = _words(plain), len(plain) >= MIN_PART
    for matching in (
        [name for name in known if long and plainly[name].startswith(plain)],
        [name for name in known if long and plain in plainly[name]],
        [name for name in known if (long or len(words) > 1) and words <= _words(plainly[name])],
        [name for name in known if re.search(r"\d[bm]$", plain) and words <= _words(plainly[name])],
    ):
        if 0 < len(matching) <= MAX_CLOSE:
            return matching
    known = [name for name in known if _sizes(_words(plainly[name])) in (set(), _sizes(words))]
    close = get_close_matches(given, known, n=1, cutoff=TYPO)
    close = close or get_close_matches(plain, known, n=1, cutoff=TYPO) or _within(plain, known)
    return close or get_close_matches(given, known, n=1) or get_close_matches(plain, known, n=1)


def _within(plain: str, known: Sequence[str]) -> list[str]:
    """The longest name whose words are all in a longer one, or with which that begins."""
    words = _words(plain)
    inside = [
        name
        for name in known
        if len(name) >= MIN_PART
        and (_words(_plain(name)) <= words or plain.startswith(_plain(name)))
    ]
    return [max(inside, key=len)] if inside else []


def _sizes(words: set[str]) -> set[str]:
    """Words that give a number of parameters: 7b, 350m."""
    return {word for word in words if re.fullmatch(r"\d.*[bm]", word)}


def full_dtype(name: str) -> str:
    """Spell out a number type such as bf16; return other names in lower case."""
    plain = name.strip().lower().removeprefix("torch.")
    return DTYPES.get(plain, plain)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _words(plain: str) -> set[str]:
    """Words and numbers of a name; ``3.1`` is also ``3``."""
    words = re.findall(r"\d+(?:\.\d+)?[bm](?![a-z])|\d+(?:\.\d+)?|[a-z]+", plain)
    return {*words, *(word.partition(".")[0] for word in words if word[-1].isdigit())}


def shown(given: object) -> str:
    """Write a given value, shortened but distinguishable."""
    text = repr(given)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
