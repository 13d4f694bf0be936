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
        Samples per rank and micro-step: as many as fit.
    fits : bool
        Whether the fullest device surely has room: ``state`` is yes.
    peak_memory_bytes : float
        Tensors of the fullest rank, as a run's ``peak_memory_bytes`` [bytes].
    step_time_s, tokens_per_s, mfu : float or None
        Of a steady step of one micro-step; None where it does not fit, and where it does not apply.
    settings : dict of str to value
        Dotted keys of a scenario, beside ``workload.microbatch``.
    method : str
        ``full``: all weights are trained; ``offload``: all, with states in the host's memory;
        ``lora``: adapters; ``qlora``: adapters of a model in 4 bits.
    state : str
        ``yes``; ``no``; or ``tight``, where it depends on what CUDA, NCCL and fragments take.
    gpus : int
        Number of ranks.
    precision : str
        Kind of ``workload.precision``, and its 16-bit type.
    memory_low_bytes, memory_high_bytes : float
        The least and the most that is taken of the fullest device, tensors and all else [bytes].
    samples_per_s : float or None
        Of all ranks.
    usd_per_million_tokens, usd_per_million_samples : float or None
        At the devices' list prices; None where there is none.
    low_s, high_s : float or None
        Ends of the step's 90 % interval [s], of the row that is chosen, or the first; None where
        nothing is known of the hardware.
    chosen : bool
        Whether ``init`` writes this one.
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
    method: str = "full"
    state: str = "yes"
    gpus: int = 1
    precision: str = "full"
    memory_low_bytes: float = 0.0
    memory_high_bytes: float = 0.0
    samples_per_s: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    chosen: bool = False


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
        Number of ranks; the least that something fits on, where that was asked for.
    memory_bytes : float
        Of a device [bytes].
    samples_are : str
        What a sample is, in words.
    rows : list of FittingRow
        Best first: what fits by tokens, or samples, per second, all weights before adapters; then
        the rest by need.
    precision : str
        That all rows train in.
    is_least : bool
        Whether each row is on the least number of ranks that it fits on.
    price_date : str or None
        When devices had their list price.
    """

    model: str
    machine: str
    assumed: str | None
    gpus: int
    memory_bytes: float
    samples_are: str
    rows: list[FittingRow] = field(default_factory=list)
    precision: str = "full"
    is_least: bool = False
    price_date: str | None = None

    @property
    def chosen(self) -> FittingRow | None:
        """The row that ``init`` writes: the simplest of those that are nearly the fastest."""
        return next((row for row in self.rows if row.chosen), None)

    def to_json(self) -> str:
        """One JSON document; the same input, the same bytes."""
        document: dict[str, Any] = asdict(self)
        return as_json(document)
