"""What a probe makes of the times that it took: percentiles, noise, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PERCENTILES = (10, 50, 75, 90)


def percentiles(seconds: Sequence[float]) -> dict[str, str]:
    """The percentiles of times, as quantities: ``{"p10": "1.2 ms", ...}``.

    Parameters
    ----------
    seconds : sequence of float
        At least one [s].
    """
    found = np.percentile(np.asarray(seconds), PERCENTILES)
    return {f"p{p}": milliseconds(float(t)) for p, t in zip(PERCENTILES, found, strict=True)}


def median(seconds: Sequence[float]) -> float:
    """The median [s]."""
    return float(np.median(np.asarray(seconds)))


def noise(rounds: Sequence[Sequence[float]]) -> float:
    """How much the medians of several rounds differ: their standard deviation over their mean.

    0 of a single round, which does not tell.
    """
    medians = np.array([median(times) for times in rounds])
    return float(medians.std(ddof=1) / medians.mean()) if len(medians) > 1 else 0.0


def milliseconds(seconds: float) -> str:
    """Write a time to a microsecond's precision or five digits, whichever is more."""
    return f"{seconds * 1e3:.5g} ms"


def microseconds(seconds: float) -> str:
    """Write a short time."""
    return f"{seconds * 1e6:.5g} us"


def percent(part: float) -> str:
    """Write a share."""
    return f"{part * 100:.3g} %"
