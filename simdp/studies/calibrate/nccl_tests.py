"""Calibrates NCCL's formula with logs of nccl-tests, and writes a machine's entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from simdp.arrays import Floats
from simdp.cluster.hardware import device_option
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.files import format_yaml
from simdp.results.calibration import CalibrationStudy, FittedPoint, NextPoint
from simdp.spec import problems
from simdp.studies.calibrate.fit import (
    CalibrationPoint,
    Candidates,
    Constant,
    Fit,
    fit,
    nccl_constants,
    restraints,
    typical_values,
)
from simdp.studies.calibrate.logs import (
    LinkFigures,
    Measurements,
    read_measurements,
    wiring_between,
)
from simdp.studies.calibrate.next_measurement import next_point, wanted_step
from simdp.studies.intervals import COST
from simdp.units import format_percent, format_quantity
from simdp.version import __version__

BUCKET = 25.0 * 2**20  # a bucket of torch's DDP [bytes]

LEAST_POINTS = 2
"""Least number of points: they determine a bandwidth and a latency; other constants stay as
published."""


def calibrate_nccl_tests(
    files: Sequence[Path],
    *,
    nodes: Sequence[int] = (),
    name: str = "calibrated",
    device: str | None = None,
    link: str | None = None,
    inter_link: str | None = None,
    links_per_node: int = 1,
    cost: Mapping[str, object] | None = None,
    only: Sequence[str] = (),
    target: float = BUCKET,
    wanted: Path | None = None,
) -> CalibrationStudy:
    """Fit the constants of cost ``nccl``; those that the data leave open stay as published.

    Parameters
    ----------
    files : sequence of Path
        Logs of one machine, or CSV with their columns.
    nodes : sequence of int
        Nodes of each file, or one for all; by default from the log's list of ranks, else 1.
    name : str
        Of the machine.
    device : str, optional
        Of the catalogue; without it users of the entry must set one.
    link, inter_link : str, optional
        Of a device, and of a NIC: a catalogue name, or a bandwidth; by default that of the fastest
        measured point.
    links_per_node : int
        NICs of a node.
    cost : mapping, optional
        Known keys of cost ``nccl``, such as ``{"algorithms": ["ring", "nvls"]}``.
    only : sequence of str
        Dotted keys of the constants to fit; by default all that affect the points.
    target : float
        Size that the next measurement should improve [bytes].
    wanted : Path, optional
        A scenario with a step to predict better.

    Raises
    ------
    ScenarioError
        If a file is no log, points contradict each other, or are fewer than the constants; if the
        device does not exist; or as for `wanted_step`.
    """
    device = device_option(device)
    template = _template(cost or {})
    measured = _served(template, read_measurements(files, nodes, link, inter_link, links_per_node))
    predictor, cost_fit = _fit(template, measured, only)
    fitted = _with_constants(template, cost_fit)
    following = _following(measured, cost_fit, predictor, target)
    entry = _entry(name, device, measured, fitted, cost_fit, following)
    wanted_point = None if wanted is None else wanted_step(wanted, entry, cost_fit, COST)
    shared = cost_fit.listed(_write), cost_fit.residual, entry, __version__
    points = _points(measured, fitted)
    return CalibrationStudy(name, *shared, points=points, next_point=following, wanted=wanted_point)


Predictor = Callable[[Sequence[CalibrationPoint]], Callable[[Floats], Floats]]
"""Makes the function from the fitted constants' values to the times of some points."""


def _fit(template: NcclCost, measured: Measurements, only: Sequence[str]) -> tuple[Predictor, Fit]:
    slowest = measured.inter_link or measured.link
    assert slowest is not None
    constants = nccl_constants(template, measured.points, slowest.is_given)
    chosen = _chosen(constants, only, len(measured.points))
    base = typical_values(template, measured.points)
    predictor = partial(_predictor, template, base, [constant.key for constant in chosen])
    known, seconds = restraints(chosen, base), np.array(measured.seconds)
    return predictor, fit(predictor(measured.points), seconds, chosen, restraints=known)


def _predictor(
    template: NcclCost,
    base: Mapping[str, float],
    keys: Sequence[str],
    points: Sequence[CalibrationPoint],
) -> Callable[[Floats], Floats]:
    """Make the function from the fitted constants' values to the times of some points."""
    candidates = Candidates(template, points)
    return lambda values: candidates.seconds({**base, **dict(zip(keys, values, strict=True))})


def _template(cost: Mapping[str, object]) -> NcclCost:
    if not isinstance(cost, Mapping):
        raise ScenarioError(
            f"cost: {cost!r} is not a mapping; write for example {{algorithms: [ring, nvls]}}."
        )
    try:
        return NcclCost.model_validate({"kind": "nccl", **cost})
    except ValidationError as error:
        raise ScenarioError([f"cost.{problem.line}" for problem in problems(error, cost)]) from None


def _served(template: NcclCost, measured: Measurements) -> Measurements:
    """Raise if no algorithm supports a collective."""
    pairs = dict.fromkeys((point.collective, point.wiring) for point in measured.points)
    wrong = [template.problem_with(*pair) for pair in pairs]
    if any(wrong):
        raise ScenarioError([f"{line}." for line in dict.fromkeys(wrong) if line])
    return measured


def _chosen(constants: Sequence[Constant], only: Sequence[str], num_points: int) -> list[Constant]:
    """Constants to fit: the selected ones, for which there must be enough points, or all."""
    known = [constant.key for constant in constants]
    for key in only:
        if key not in known:
            raise ScenarioError(
                f"--only: {key} is not a constant of these points: {', '.join(known)}."
            )
    chosen = [constant for constant in constants if not only or constant.key in only]
    needed = len(chosen) if only else LEAST_POINTS
    if num_points < needed:
        keys = ", ".join(constant.key for constant in chosen[:needed])
        raise ScenarioError(
            f"{num_points} measured points are fewer than the {needed} constants that they "
            f"must determine ({keys}); measure more sizes" + (", or fit fewer." if only else ".")
        )
    return chosen


def _with_constants(template: NcclCost, cost_fit: Fit) -> NcclCost:
    written: dict[str, Any] = template.model_dump(mode="json", exclude_defaults=True)
    written["kind"] = "nccl"
    for index, constant in enumerate(cost_fit.constants):
        place = written
        *path, last = constant.key.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = _write(constant, float(cost_fit.values[index]))
    return NcclCost.model_validate(written)


def _write(constant: Constant, value: float) -> Any:
    if constant.dimension == "time":
        return format_quantity(float(f"{value * 1e6:.3g}") / 1e6, "time")
    return float(f"{value:.3g}")


def _points(measured: Measurements, fitted: NcclCost) -> tuple[FittedPoint, ...]:
    rows = []
    for point, seconds, source in zip(
        measured.points, measured.seconds, measured.sources, strict=True
    ):
        choice = fitted.choice(*point)
        w = point.wiring
        rows.append(
            FittedPoint(
                source,
                point.collective,
                w.num_nodes,
                w.world_size,
                point.nbytes,
                seconds,
                choice.seconds,
                choice.algorithm,
                choice.protocol,
            )
        )
    return tuple(rows)


def _following(
    measured: Measurements, cost_fit: Fit, predictor: Predictor, target: float
) -> NextPoint:
    """Propose a size on the measured wirings, or on two and four times as many nodes."""
    most = max((point.wiring for point in measured.points), key=lambda w: w.world_size)
    wirings = sorted({point.wiring for point in measured.points})
    if measured.inter_link is not None:
        wirings += [
            wiring_between(
                most.num_nodes * times,
                most.local_size,
                measured.link,
                measured.inter_link,
                measured.links_per_node,
                measured.devices_per_node,
            )
            for times in (2, 4)
        ]
    first = measured.points[0].collective
    collectives = {point.collective for point in measured.points}
    collective = "all_reduce" if "all_reduce" in collectives else first
    goal = CalibrationPoint(collective, target, wirings[-1])
    return next_point(cost_fit, predictor, collective, wirings, goal)


# Machine's entry ----------------------------------------------------------------------------------


def _entry(
    name: str,
    device: str | None,
    measured: Measurements,
    fitted: NcclCost,
    cost_fit: Fit,
    following: NextPoint,
) -> str:
    """The machine in YAML."""
    cluster, source = _cluster(device, measured)
    files = ", ".join(dict.fromkeys(measured.sources))
    source["collectives.cost"] = (
        f"fitted to {files} by calibrate nccl-tests of simdp {__version__}; "
        "other constants: NCCL 2.30.7"
    )
    intervals = {}
    for index, constant in enumerate(cost_fit.constants):
        low, high = cost_fit.interval(index)
        key = f"collectives.cost.{constant.key}"
        intervals[key] = [_write(constant, low), _write(constant, high)]
    constants = fitted.model_dump(mode="json", exclude_defaults=True)
    entry = {
        "cluster": cluster,
        "collectives": {"cost": {"kind": "nccl", **constants}},
        "source": source,
        "calibration": {
            "data": f"{len(measured.points)} sizes of {files}",
            "residual": format_percent(float(f"{cost_fit.residual:.3g}")),
            "intervals": intervals,
            "tables": _tables(measured),
            "errors": _errors(measured, cost_fit),
            "notes": _notes(cost_fit, following),
        },
    }
    return f"# {name}: collectives calibrated by nccl-tests\n{format_yaml(entry)}"


def _cluster(device: str | None, measured: Measurements) -> tuple[dict[str, Any], dict[str, str]]:
    cluster: dict[str, Any] = {"devices_per_node": measured.devices_per_node}
    source: dict[str, str] = {}
    if device is not None:
        cluster["device"] = device
        source["cluster.device"] = f"catalogue device {device}"
    if measured.link is not None:
        cluster |= {"topology": "switch", "link": _link(measured.link)}
        source["cluster.link"] = measured.link.source
    if measured.inter_link is not None:
        cluster["inter_node"] = {
            "topology": "switch",
            "link": _link(measured.inter_link),
            "links_per_node": measured.links_per_node,
        }
        source["cluster.inter_node.link"] = measured.inter_link.source
    return cluster, source


def _tables(measured: Measurements) -> dict[str, list[int]]:
    nodes_of: dict[str, set[int]] = {}
    for point in measured.points:
        nodes_of.setdefault(point.collective, set()).add(point.wiring.num_nodes)
    return {collective: sorted(nodes) for collective, nodes in sorted(nodes_of.items())}


def _errors(measured: Measurements, fitted: Fit) -> dict[str, str]:
    """The fit's error at every point, by file, collective and size."""
    listed = {}
    for point, source, error in zip(measured.points, measured.sources, fitted.errors, strict=True):
        size = format_quantity(point.nbytes, "data size")
        listed[f"{source}: {point.collective} of {size}"] = f"{error:+.1%}"
    return listed


def _link(link: LinkFigures) -> Any:
    if link.name is not None:
        return link.name
    return {
        "alpha": format_quantity(link.alpha, "time"),
        "bandwidth": format_quantity(link.bandwidth, "bandwidth"),
    }


def _notes(cost_fit: Fit, following: NextPoint) -> list[str]:
    opened = cost_fit.undetermined()
    notes = []
    if opened:
        notes.append(f"not determined by the data: {', '.join(opened)}")
    size = format_quantity(following.nbytes, "data size")
    notes.append(
        f"{following.target} is known within {following.before:.1%}; one more measurement, "
        f"{following.collective} of {size} between {following.world_size} ranks on "
        f"{following.num_nodes} nodes, would make it {following.after:.1%}"
    )
    return notes
