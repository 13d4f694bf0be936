"""Calibrates a machine with a few measured steps (``python -m simdp calibrate ddp``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simdp.arrays import product
from simdp.cluster.hardware import DEVICES, LINKS, AnyDevice, AnyLink
from simdp.files import format_yaml
from simdp.results.calibration import FittedConstant, FittedStep, NextStep, StepCalibration
from simdp.scenario.overrides import set_key
from simdp.scenario.root import Scenario
from simdp.studies.calibrate.fit import Constant
from simdp.studies.calibrate.next_measurement import variance_left, wanted_step
from simdp.studies.calibrate.steps import OF_ONE, StepsFit, fit_steps, written
from simdp.studies.intervals import NORMAL_90
from simdp.units import format_percent
from simdp.version import __version__

LEFT_OUT = ("machine", "world_size")  # keys of a cluster that are not part of a machine's entry


def calibrate_ddp(
    paths: Sequence[Path],
    keys: Sequence[str] = (),
    name: str | None = None,
    wanted: Path | None = None,
) -> StepCalibration:
    """Fit constants to measured steps, and write a machine's entry with them.

    Parameters
    ----------
    paths, asked
        As for `fit_steps`.
    name : str, optional
        Of the machine; by default that of the first scenario, else the first scenario's own.
    wanted : Path, optional
        A scenario with a step to predict better.

    Raises
    ------
    ScenarioError
        As `fit_steps` and `wanted_step`.
    """
    steps_fit = fit_steps(paths, keys)
    first = steps_fit.points[0].scenario
    name = name or Path(first.cluster.machine or first.name).stem
    constants = steps_fit.fit.listed(_rounded)
    following = _next(steps_fit)
    entry = _entry(name, paths, keys, steps_fit, constants, following)
    return StepCalibration(
        name=name,
        points=tuple(
            FittedStep(point.title, point.seconds, float(seconds))
            for point, seconds in zip(steps_fit.points, steps_fit.fit.predicted, strict=True)
        ),
        constants=constants,
        residual=steps_fit.fit.residual,
        next_point=following,
        entry=entry,
        version=__version__,
        wanted=None if wanted is None else wanted_step(wanted, entry, steps_fit.fit),
    )


def _rounded(constant: Constant, value: float) -> Any:
    """A value to three digits, as in YAML."""
    return written([constant], [float(f"{value:.3g}")])[constant.key]


def _next(steps_fit: StepsFit) -> NextStep | None:
    """Choose the point to measure that leaves the least variance in all predictions."""
    if not steps_fit.others:
        return None
    slopes, covariance = steps_fit.slopes, steps_fit.fit.covariance
    left = variance_left(covariance, slopes, slopes[:, None, :], steps_fit.fit.noise)
    best = int(np.argmin(left))
    before = np.sum(product(slopes, covariance) * slopes, axis=1).mean()
    reach = [NORMAL_90 * float(np.sqrt(variance)) for variance in (before, left[best])]
    return NextStep(steps_fit.others[best].title, *reach)


def _entry(
    name: str,
    paths: Sequence[Path],
    keys: Sequence[str],
    steps_fit: StepsFit,
    constants: Sequence[FittedConstant],
    following: NextStep | None,
) -> str:
    """The machine in YAML."""
    raw = _machine(steps_fit.points[0].scenario)
    fitted = zip(steps_fit.fit.constants, steps_fit.fit.values, strict=True)
    pairs = [(index, *pair) for index, pair in enumerate(fitted) if OF_ONE not in pair[0].key]
    for _, constant, value in pairs:
        set_key(raw, constant.key, _rounded(constant, float(value)))
    files = " ".join(str(path) for path in paths)
    command = " ".join([f"python -m simdp calibrate ddp {files}", *(f"--fit {a}" for a in keys)])
    data = f"{len(steps_fit.points)} steps, by {command}"
    entry = {
        **raw,
        "source": {
            constant.key: f"fitted to the calibration points of {files}" for _, constant, _ in pairs
        },
        "calibration": {
            "data": data,
            "residual": format_percent(float(f"{steps_fit.fit.residual:.3g}")),
            "intervals": {
                constant.key: [_rounded(constant, end) for end in steps_fit.fit.interval(index)]
                for index, constant, _ in pairs
            },
            "errors": {
                point.title: f"{error:+.1%}"
                for point, error in zip(steps_fit.points, steps_fit.fit.errors, strict=True)
            },
            "notes": _notes(constants, following),
        },
    }
    return f"# {name}: calibrated by measured steps\n{format_yaml(entry)}"


def _machine(scenario: Scenario) -> dict[str, Any]:
    """The machine's part of a scenario, without defaults."""
    whole: dict[str, Any] = {
        "cluster": scenario.cluster.model_dump(
            mode="json", exclude_defaults=True, exclude=set(LEFT_OUT)
        )
    }
    cost = scenario.collectives.cost
    if cost.timed:
        written = cost.model_dump(mode="json", exclude_defaults=True)
        whole["collectives"] = {"cost": {"kind": cost.kind, **written}}
    spec: dict[str, Any] = _by_name(whole)
    return spec


def _by_name(value: object) -> Any:
    """Replace parts of the catalogue by their names, where all figures are equal."""
    if isinstance(value, list):
        return [_by_name(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    name = value.get("name")
    for catalogue, part in ((DEVICES, AnyDevice), (LINKS, AnyLink)):
        if name in catalogue.names():
            adapter: TypeAdapter[Any] = TypeAdapter(part)
            if adapter.validate_python(name) == adapter.validate_python(value):
                return name
    return {key: _by_name(inner) for key, inner in value.items()}


def _notes(constants: Sequence[FittedConstant], following: NextStep | None) -> list[str]:
    opened = [constant.key for constant in constants if not constant.is_determined]
    notes = [f"not determined by the data: {', '.join(opened)}"] if opened else []
    notes += [
        f"fitted beside: {constant.key} = {constant.value}, {constant.low} to {constant.high}"
        for constant in constants
        if OF_ONE in constant.key
    ]
    if following:
        notes.append(
            f"the constants leave predictions open by {following.before:.1%}; measuring "
            f"{following.title} would make it {following.after:.1%}"
        )
    return notes
