"""Pictures of README and docs/, drawn from shipped scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simdp.files import write_whole
from simdp.reports.plots import render
from simdp.results.validation import Validation
from simdp.scenario import load_scenario
from simdp.studies.collective import Request, answer
from simdp.studies.compare import compare
from simdp.studies.sweep import sweep
from simdp.studies.validate import validate
from simdp.studies.validate.jobs import Intervals

PICTURES = (
    ("8gpu_ring", "timeline"),
    ("8gpu_ring", "loss"),
    ("async_staleness", "loss_time"),
    ("compression", "loss"),
    ("flash_attention_memory", "sweep"),
    ("four_nodes", "scaling"),
    ("fsdp_prefetch", "timeline"),
    ("gpu0_memory", "memory"),
    ("hierarchical", "bandwidth"),
    ("hierarchical", "world_size"),
    ("hsdp_two_levels", "points"),
    ("naive_vs_overlap", "timeline"),
    ("resnet_small", "timeline"),
    ("ring_vs_tree", "scaling"),
    ("scaling", "scaling"),
    ("straggler", "sweep"),
    ("strong_scaling", "scaling"),
    ("sync_batchnorm", "loss"),
)
"""Scenario and plot of each picture."""

COLLECTIVES: dict[str, dict[str, Any]] = {
    "bandwidth": {},
    "world_size": {
        "algorithms": ("ring", "tree", "hierarchical", "halving_doubling"),
        "world_size": "4:1024",
        "sizes": "16MiB",
    },
}
"""Options of the all_reduce behind each plot of collectives."""

COMPARISONS = {"methods": ("data_parallel", "ddp", "zero1", "zero2", "fsdp")}
"""Strategies to compare each scenario with."""

VALIDATIONS = (
    ("validation", ".", "simulated_against_measured"),
    ("validation", ".", "reliability"),
    ("validation_hkbu", "hkbu", "throughput_curves"),
    ("validation_pollux", "pollux", "throughput_curves"),
)
"""Name, folder below ``validation`` and plot of each picture of measured clusters."""


INTERVALS: dict[str, Intervals] = {".": "predicted", "hkbu": "all", "pollux": "all"}
"""Points that get intervals, by folder."""

WITH_TABLES = ("reliability",)  # plots of measured clusters that show collectives as well as steps


def pictures() -> list[str]:
    """Names of all pictures, without their suffix."""
    names = [f"{scenario}_{kind}" for scenario, kind in PICTURES]
    names += [f"{scenario}_comparison" for scenario in COMPARISONS]
    return names + [f"{name}_{kind}" for name, _, kind in VALIDATIONS]


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
        scenario, path = scenarios / f"{name}.yaml", out / f"{name}_{kind}.png"
        if kind in COLLECTIVES:
            study = answer(Request("all_reduce", scenario, **COLLECTIVES[kind]))
            write_whole(path, partial(render, study, kind))
        else:
            if name not in studies:
                studies[name] = sweep(load_scenario(scenario))
            write_whole(path, partial(render, studies[name], kind))
        yield path
    for name, strategies in COMPARISONS.items():
        compared = compare(scenarios / f"{name}.yaml", {"strategy": strategies})
        path = out / f"{name}_comparison.png"
        write_whole(path, partial(render, compared, "comparison"))
        yield path
    yield from _draw_validations(scenarios / "validation", out)


def _draw_validations(measured: Path, out: Path) -> Iterator[Path]:
    """Write the pictures of measured clusters; each folder is validated once."""
    known: dict[str, Validation] = {}
    for name, folder, kind in VALIDATIONS:
        if folder not in known:
            known[folder] = validate([measured / folder], intervals=INTERVALS[folder])
        validation = known[folder]
        shown = validation if kind in WITH_TABLES else replace(validation, rows=())
        path = out / f"{name}_{kind}.png"
        write_whole(path, partial(render, shown, kind))
        yield path
