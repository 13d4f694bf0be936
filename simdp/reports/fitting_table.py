"""Table of what fits for the terminal: a row per method, best first."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.reports.figures import WIDTH, nbytes, number, percent, unit_of
from simdp.reports.wide_table import wide_table
from simdp.results.fitting import Fitting

FOOT = (
    "a steady step of one micro-batch per GPU; batch: its samples, as many as fit (a power of "
    "two); peak: of the fullest GPU, without what CUDA and fragments take, often 1 to 5 GB; "
    "MFU: the model's own FLOPs over the GPUs' peak"
)
"""What the columns are."""


def table(found: Fitting) -> RenderableType:
    """Write what fits and what does not.

    Parameters
    ----------
    found : Fitting
        With at least one row.
    """
    unit, scale = unit_of(row.step_time_s or 0.0 for row in found.rows)
    heads = [
        ("strategy", False),
        ("recompute", False),
        ("batch", True),
        ("fits", False),
        ("peak", True),
        ("full", True),
        ("step", True),
        ("tokens/s", True),
        ("MFU", True),
    ]
    rows = [
        [
            row.strategy,
            row.recompute,
            str(row.microbatch),
            "yes" if row.fits else "no",
            nbytes(row.peak_memory_bytes),
            percent(row.peak_memory_bytes / found.memory_bytes),
            number(None if row.step_time_s is None else row.step_time_s / scale),
            number(row.tokens_per_s, ",.0f"),
            percent(row.mfu),
        ]
        for row in found.rows
    ]
    if not any(row.tokens_per_s for row in found.rows):
        heads, rows = heads[:7] + heads[8:], [row[:7] + row[8:] for row in rows]
    title = f"{found.model} on {found.gpus} GPUs of {nbytes(found.memory_bytes)}; steps in {unit}"
    return Group(wide_table(title, heads, rows), Text("\n".join(_foot(found))))


def _foot(found: Fitting) -> Iterator[str]:
    if found.assumed is not None:
        yield fill(f"assumed: {found.assumed}; --machine takes others", WIDTH)
    yield fill(f"a sample: {found.samples_are}", WIDTH)
    yield fill(FOOT, WIDTH)
    if not any(row.fits for row in found.rows):
        yield fill("nothing fits: take more GPUs, larger ones, or shorter samples", WIDTH)
