"""Machines: whole clusters of the catalogue, with the measured costs of their software.

An entry is a part of a scenario, ``cluster`` and ``collectives``, with the source of its figures
and, if calibrated, their uncertainty. `simdp.scenario.machines` merges it into a scenario.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from simdp.errors import ScenarioError, unknown_name
from simdp.files import Catalogue, read_yaml
from simdp.percent import Percent
from simdp.phrases import problems
from simdp.spec import Spec, problem

MACHINES = Catalogue(Path(__file__).parent / "machines")

OLD_NAMES = {"lambda-a100-sxm4": "lambda-a100-sxm4-vm"}
"""Names that machines had before, which still load."""

SUFFIX = ".yaml"
"""A machine that ends so is a file of the user's own, as ``python -m simdp calibrate`` writes."""


class Calibration(Spec):
    """Data of a machine's fit, and how well they determine its constants.

    Attributes
    ----------
    data : str
        The measurements.
    residual : float
        Root mean square of the fit's relative errors.
    intervals : dict of str to list
        By dotted key, the two ends of the 90 % interval of a constant, as they are written.
    errors : dict of str to str
        Fitted over measured time, less one, by point.
    tables : dict of str to list of int
        Of which collectives there were tables of nccl-tests, and on how many nodes each.
    steps : dict of str to list of int
        Of which models there were steps, by the names of presets, and on how many nodes each.
    precisions : list of str
        In which dtypes the products of these steps were computed; another one is new to the
        constants. Empty: that is not known.
    taken : dict of str to str
        Constants of ``intervals`` that were fitted to another machine, and which.
    notes : list of str
        Further findings of the fit, such as constants that the data do not determine.
    """

    data: str
    residual: Percent = 0.0
    intervals: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]] = Field(
        default_factory=dict
    )
    errors: dict[str, str] = Field(default_factory=dict)
    tables: dict[str, list[int]] = Field(default_factory=dict)
    steps: dict[str, list[int]] = Field(default_factory=dict)
    precisions: list[Literal["float64", "float32", "tfloat32", "float16", "bfloat16"]] = Field(
        default_factory=list
    )
    taken: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class Machine(Spec):
    """An entry of the catalogue, or of a file.

    Attributes
    ----------
    cluster, collectives : dict
        Keys of a scenario, which its own win over.
    source : dict or str
        Where the figures come from.
    calibration : Calibration or None
        Of constants that were fitted.
    caveats : list of str
        Unusual properties of this machine that change its times, one plain sentence each.
    site : str or None
        Site, shared by entries of the same nodes or lab: measurements of one apply to the others.
    """

    cluster: dict[str, Any]
    collectives: dict[str, Any] = Field(default_factory=dict)
    source: dict[str, Any] | str
    calibration: Calibration | None = None
    caveats: list[str] = Field(default_factory=list)
    site: str | None = None

    @field_validator("cluster")
    @classmethod
    def _stands_alone(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "machine" in value:
            raise problem("a machine cannot take in another one; write out its keys.")
        return value


def is_file(name: str) -> bool:
    """Whether a machine is a file of the user's own."""
    return name.endswith(SUFFIX)


def is_known(name: str) -> bool:
    """Whether a name is one of the catalogue, or was."""
    return name in OLD_NAMES or name in MACHINES.names()


def read_machine(name: str, base: Path) -> Machine:
    """Read an entry.

    Parameters
    ----------
    name : str
        Of the catalogue, or a YAML file.
    base : Path
        Folder that a relative path starts from.

    Raises
    ------
    ScenarioError
        If there is no such machine, or the file holds something else.
    """
    if not is_file(name):
        if not is_known(name):
            raise ScenarioError([unknown_name("machine", name, MACHINES.names())])
        return Machine.model_validate(dict(MACHINES.read(OLD_NAMES.get(name, name))))
    path = base / name
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise ScenarioError([f"{path}: is no machine; it must be a mapping with cluster: ..."])
    try:
        return Machine.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError([f"{path}: {p.line}" for p in problems(error, raw)]) from None


def _known(name: Any) -> Any:
    if isinstance(name, str) and not is_file(name) and not is_known(name):
        raise problem(unknown_name("machine", name, MACHINES.names()))
    return name


def _names(schema: dict[str, Any]) -> None:
    """Description for editors."""
    names = [{"const": name, "description": describe(name)} for name in MACHINES.names()]
    names += [{"const": old, "description": f"Now {new}."} for old, new in OLD_NAMES.items()]
    schema["anyOf"] = [*names, {"pattern": rf"{re.escape(SUFFIX)}$"}]


AnyMachine = Annotated[str, BeforeValidator(_known), Field(json_schema_extra=_names)]


def describe(name: str) -> str:
    """One line about a catalogue machine, with its caveats, for ``python -m simdp list``."""
    caveats = read_machine(name, Path()).caveats
    return hardware(name) + "".join(f". {caveat.rstrip('.')}" for caveat in caveats)


def hardware(name: str) -> str:
    """One line about the nodes of a catalogue machine."""
    cluster = read_machine(name, Path()).cluster
    per_node, device = cluster.get("devices_per_node", 1), cluster["device"]
    inter = cluster.get("inter_node", {}).get("link")
    between = "" if inter is None else f", {_title(inter, 'bandwidth')} between nodes"
    return f"{per_node} x {_title(device, 'name')} per node{between}"


def _title(part: Any, key: str) -> Any:
    """Title of a part: its catalogue name, or one of its figures."""
    return part if isinstance(part, str) else part.get(key, "device")
