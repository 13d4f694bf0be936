"""Device: what one accelerator can do, from a catalogue name or from figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from simdp.files import Catalogue
from simdp.spec import (
    Bandwidth,
    Float,
    FlopRate,
    PositiveBytes,
    Seconds,
    Spec,
    from_catalogue,
    problem,
)

DEVICES = Catalogue(Path(__file__).parent / "devices")

DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16")


class Device(Spec):
    """One accelerator.

    Attributes
    ----------
    peak : dict of str to float
        Dense peak rate by dtype [FLOP/s].
    memory : float
        Capacity [bytes].
    memory_bandwidth : float
        Of the device's own memory [bytes/s].
    efficiency : float
        Fraction of the peak FLOP/s that real layers reach, in (0, 1].
    launch : float
        Time to launch one kernel [s]; charged once per kernel.
    """

    name: str | None = None
    peak: dict[str, FlopRate]
    memory: PositiveBytes
    memory_bandwidth: Bandwidth
    efficiency: Float = Field(0.5, gt=0, le=1)
    launch: Seconds = 5e-6

    @field_validator("peak")
    @classmethod
    def _known_dtypes(cls, peak: dict[str, float]) -> dict[str, float]:
        wrong = [dtype for dtype in peak if dtype not in DTYPES]
        if wrong or not peak:
            given = ", ".join(map(repr, wrong)) or "nothing"
            raise problem(f"{given} is no dtype with a peak; known: {', '.join(DTYPES)}.")
        return peak


AnyDevice = Annotated[Device, from_catalogue("device", DEVICES.names, DEVICES.figures)]


def describe(name: str) -> str:
    """One line about a catalogue device, for ``python -m simdp list``."""
    entry: dict[str, Any] = dict(DEVICES.read(name))
    peak = entry["peak"]["float32"]
    return f"{peak} float32, {entry['memory']} at {entry['memory_bandwidth']}"
