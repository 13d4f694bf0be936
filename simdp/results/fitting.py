"""Fitting: which methods train a model on so many devices, how full these get, how fast it goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from simdp.results.result import as_json


@dataclass(frozen=True)
class FittingRow:
    """One method.

    Attributes
    ----------
    strategy, recompute : str
        What is done: kinds of ``strategy`` and of ``workload.recompute``.
    microbatch : int
        Samples per rank and micro-step: as many as fit, as a power of two.
    fits : bool
        Whether the fullest device has room.
    peak_memory_bytes : float
        Of the fullest rank [bytes].
    step_time_s, tokens_per_s, mfu : float or None
        Of a steady step of one micro-step; None where it does not fit, and where it does not apply.
    settings : dict of str to value
        Dotted keys of a scenario, beside ``workload.microbatch``.
    """

    strategy: str
    recompute: str
    microbatch: int
    fits: bool
    peak_memory_bytes: float
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitting:
    """All methods for one model on one cluster.

    Attributes
    ----------
    model, machine : str
        What was asked for; the machine whose links were assumed, where only a device was given.
    assumed : str or None
        What was assumed of the links, in words; None where a machine was given.
    gpus : int
        Number of ranks.
    memory_bytes : float
        Of a device [bytes].
    samples_are : str
        What a sample is, in words.
    rows : list of FittingRow
        Best first: what fits by tokens, or samples, per second; then the rest by need.
    """

    model: str
    machine: str
    assumed: str | None
    gpus: int
    memory_bytes: float
    samples_are: str
    rows: list[FittingRow] = field(default_factory=list)

    def to_json(self) -> str:
        """One JSON document; the same input, the same bytes."""
        document: dict[str, Any] = asdict(self)
        return as_json(document)
