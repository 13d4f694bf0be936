"""Record files: times of a model's layers that somebody measured, for a script to be charged.

A record is the CSV of the model ``profile``, or a YAML with the keys of ``compute: profile`` and
the CSV's ``path``, or those of ``compute: measured``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from simdp.cluster.device import Device
from simdp.engine.compute.profile_times import scaling
from simdp.errors import ScenarioError
from simdp.files import read_yaml
from simdp.phrases import problems
from simdp.spec import Spec
from simdp.workload.compute.measured import FromMeasurements
from simdp.workload.compute.profile import FromProfile
from simdp.workload.layers.timed import TimedLayer
from simdp.workload.models.profile import read_layers


class Times(NamedTuple):
    """What a layer takes [s].

    Attributes
    ----------
    forward, gradient, tail : float
        Of its forward; from its output's gradient to its parameters'; and of backward after that.
    """

    forward: float
    gradient: float
    tail: float


class Record(NamedTuple):
    """A record of layers.

    Attributes
    ----------
    path : Path
        The CSV.
    spec : FromProfile
        On which device, and with how many samples it was measured.
    layers : tuple of TimedLayer
        In its order; their elements are bytes.
    """

    path: Path
    spec: FromProfile
    layers: tuple[TimedLayer, ...]

    def times(self, layer: TimedLayer, device: Device, sharers: int, samples: int) -> Times:
        """What a layer takes, as ``compute: profile`` counts it.

        Parameters
        ----------
        layer : TimedLayer
            One of `layers`.
        device : Device
            Where it runs.
        sharers : int
            Ranks that take turns on the device.
        samples : int
            Of this micro-step.
        """
        longer = scaling(self.spec, "float32", device)
        each = layer.products * longer.products + (1 - layer.products) * longer.memory
        each *= sharers
        if self.spec.microbatch is not None:
            each *= samples / self.spec.microbatch
        return Times(
            max(layer.forward_time * each, layer.forward_host),
            max(layer.gradient_time * each, layer.gradient_host),
            layer.input_time * each,
        )


class MeasuredRecord(NamedTuple):
    """A record of whole steps.

    Attributes
    ----------
    path : Path
        The YAML.
    spec : FromMeasurements
        Its points.
    """

    path: Path
    spec: FromMeasurements


def read_record(path: Path) -> Record | MeasuredRecord:
    """Read a record.

    Raises
    ------
    ScenarioError
        If it cannot be read, or is of another kind.
    """
    if path.suffix not in (".yaml", ".yml"):
        return _record(path, FromProfile())
    raw = read_yaml(path)
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind == "measured":
        return MeasuredRecord(path, _validated(FromMeasurements, path, raw))
    if kind != "profile" or "path" not in raw:
        raise ScenarioError(
            [
                f"--compute {path}: needs kind: profile and the path of a CSV of layers, and may "
                "have microbatch, device, dtype and update; or kind: measured and points, both as "
                "in workload.compute."
            ]
        )
    keys = {key: value for key, value in raw.items() if key != "path"}
    return _record(path.parent / str(raw["path"]), _validated(FromProfile, path, keys))


def _validated(kind: type[Spec], path: Path, raw: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        found = [f"--compute {path}: {problem.line}" for problem in problems(error, raw)]
        raise ScenarioError(found) from None


def _record(path: Path, spec: FromProfile) -> Record:
    """Read the CSV, with bytes for elements."""
    return Record(path, spec, tuple(read_layers(path, 1)))
