"""What the benchmark scripts share: a table with targets, and the name of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

import simdp

Row = tuple[str, str, str, bool]
"""What was measured, the figure, the target, and whether it was reached."""


def machine() -> str:
    """Name the processor, its cores and the versions that count."""
    import numpy

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0].split(":")[1].strip() if names else processor
    return (
        f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {numpy.__version__}, simdp {simdp.__version__}"
    )


def show(title: str, rows: list[Row]) -> int:
    """Print what was measured beside what it must reach.

    Parameters
    ----------
    title : str
        Of the table.
    rows : list of Row
        From top to bottom.

    Returns
    -------
    int
        Exit status: 0 if every target was reached.
    """
    table = Table(title=title, caption=machine())
    for column in ("measured", "figure", "target", "reached"):
        table.add_column(column, justify="left" if column == "measured" else "right")
    for what, figure, target, reached in rows:
        table.add_row(what, figure, target, "yes" if reached else "NO")
    Console(highlight=False, width=110).print(table)
    return 0 if all(row[-1] for row in rows) else 1
