"""The gallery: which scenarios the README shows, and how."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from simdp.files import write_whole
from simdp.reports.plots import render
from simdp.scenario import load_scenario
from simdp.studies.sweep import sweep

PICTURES = (
    ("8gpu_ring", "timeline"),
    ("8gpu_ring", "loss"),
    ("naive_vs_overlap", "timeline"),
    ("resnet_small", "timeline"),
    ("ring_vs_tree", "scaling"),
    ("scaling", "scaling"),
    ("strong_scaling", "scaling"),
    ("sync_batchnorm", "loss"),
)
"""Scenario and kind of plot of each picture."""


def draw_gallery(scenarios: Path, out: Path) -> Iterator[Path]:
    """Simulate the gallery's scenarios and write their pictures.

    Parameters
    ----------
    scenarios, out : Path
        Folders of the YAML files and of the pictures.

    Yields
    ------
    Path
        Each picture as it is written.
    """
    studies = {}
    for name, kind in PICTURES:
        if name not in studies:
            studies[name] = sweep(load_scenario(scenarios / f"{name}.yaml"))
        path = out / f"{name}_{kind}.png"
        write_whole(path, partial(render, studies[name], kind))
        yield path
