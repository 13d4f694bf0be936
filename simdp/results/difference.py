"""Difference: what changed between two results, or a result and a real run, and by what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from simdp.results.inline import Inline
from simdp.results.result import as_json

Unit = Literal["s", "bytes", "USD", "kWh", "per_s", "share", "number"]


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes
    ----------
    name : str
        File or folder, or the scenario's name.
    source : str
        ``"result"``; of traces ``"kineto"`` or ``"simdp"``.
    version : str or None
        Of simdp that wrote it; None of a trace.
    num_points : int
        Of a sweep; of a trace 1.
    world_size : int or None
        Ranks, where all its points have as many.
    """

    name: str
    source: str
    version: str | None
    num_points: int
    world_size: int | None


@dataclass(frozen=True)
class KeyChange:
    """A key of the scenario that differs, and what it alone does to a step.

    Attributes
    ----------
    key : str
        Dotted; of a kind with other options, or a machine with what it brings, its own.
    a, b : value
        As resolved; None where a scenario has none.
    seconds : float or None
        What it adds to a step, mean of both ways [s]; None where it was not simulated.
    from_a, to_b : float or None
        A with the value of B less A; B less B with the value of A [s].
    parts : dict of str to float
        ``seconds`` by the part of the step [s].
    together : tuple of str
        Keys without which it cannot be changed: ``seconds`` is of all, and said of the first.
    """

    key: str
    a: Any
    b: Any
    seconds: float | None = None
    from_a: float | None = None
    to_b: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    together: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartChange:
    """A part of a step's time; those of a point sum to its step.

    Attributes
    ----------
    part : str
        ``compute_s``, ``update_s``, ``exposed_comm_s``, ``wait_s`` or ``other_s``; beside a trace,
        which does not tell the optimizer's kernels from others, ``compute_and_update_s`` in place
        of the first two.
    a, b : float
        A steady step, mean over ranks [s].
    keys : tuple of str
        The keys that change it most, by simulation; the only one that differs.
    evidence : tuple of str
        What a trace says of it.
    """

    part: str
    a: float
    b: float
    keys: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """By how much it is longer in B [s]."""
        return self.b - self.a


@dataclass(frozen=True)
class Figure:
    """Any other figure of both; None where one does not say.

    Attributes
    ----------
    name : str
        In words.
    unit : str
        One of `Unit`.
    a, b : float or None
        SI units; sizes in bytes.
    """

    name: str
    unit: Unit
    a: float | None
    b: float | None


@dataclass(frozen=True)
class PointDifference:
    """What changed at one point.

    Attributes
    ----------
    set : dict
        What the point sets, of keys that either sweeps.
    a_s, b_s : float
        A steady step [s].
    interval_s : list of float or None
        The 90 % interval of A's step, where it is simulated, B is measured and A has one [s].
    parts : tuple of PartChange
        That which changed most first.
    figures : tuple of Figure
        Throughput, memory, bytes, money.
    keys : tuple of KeyChange
        That which changes a step most first.
    rest_s : float or None
        What no key by itself explains: several together, and versions [s]; None where keys were
        not simulated.
    """

    set: dict[str, Any]
    a_s: float
    b_s: float
    interval_s: list[float] | None
    parts: tuple[PartChange, ...]
    figures: tuple[Figure, ...]
    keys: tuple[KeyChange, ...]
    rest_s: float | None = None

    @property
    def seconds(self) -> float:
        """By how much a step is longer in B [s]."""
        return self.b_s - self.a_s


@dataclass(frozen=True)
class Difference(Inline):
    """Everything that ``python -m simdp compare-results`` found.

    Attributes
    ----------
    version : str
        Of simdp.
    a, b : Side
        Before and after, or simulated and measured.
    points : tuple of PointDifference
        Points that both have, in A's order.
    only_a, only_b : tuple of dict
        What points set that the other lacks.
    notes : tuple of str
        What to know when reading it.
    """

    version: str
    a: Side
    b: Side
    points: tuple[PointDifference, ...]
    only_a: tuple[dict[str, Any], ...] = ()
    only_b: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """One JSON document; the same input, the same bytes."""
        document: dict[str, Any] = {"simdp": self.version, **asdict(self)}
        del document["version"]
        return as_json(document) + "\n"
