"""Pictures of a validation: which there are, of which part of it, and what they show."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from simdp.reports.plots import fitting
from simdp.results.validation import Validation


class Picture(NamedTuple):
    """A picture: its file, its kind of plot, what it is drawn from, and what it shows."""

    file: str
    kind: str
    part: Validation
    shows: str


def pictures(validation: Validation) -> list[Picture]:
    """List the pictures that a validation has the data for."""
    kind = "simulated_against_measured"
    found = []
    if validation.points:
        steps = replace(validation, rows=())
        shows = "Simulated against measured step times"
        found.append(Picture(f"{kind}.png", kind, steps, shows))
    if validation.rows:
        tables = replace(validation, points=())
        shows = "Simulated against measured times of collectives"
        found.append(Picture("collectives_against_measured.png", kind, tables, shows))
    if "reliability" in fitting(validation):
        shows = "Nominal and observed coverage of the intervals"
        found.append(Picture("reliability.png", "reliability", validation, shows))
    for cluster in validation.clusters:
        part = replace(validation.of(cluster), rows=())
        if "throughput_curves" in fitting(part):
            file = f"throughput_{re.sub(r'[^A-Za-z0-9_.+-]', '_', cluster)}.png"
            shows = f"Throughput on {cluster}, measured and simulated"
            found.append(Picture(file, "throughput_curves", part, shows))
    return found
