"""Machines in scenarios: a scenario as plain data takes in what its ``cluster.machine`` brings.

What the scenario says itself wins: a key of ``cluster``, or of what is inside ``inter_node``,
``overheads`` or a cost of the same kind. Where only a cluster is asked for, a machine's name stands
for a scenario.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from simdp.cluster.machine import MACHINES, is_known, read_machine
from simdp.collectives import named, says_cost
from simdp.errors import ScenarioError, unknown_name
from simdp.files import read_scenario
from simdp.scenario.shipped import find, names

Raw = dict[str, Any]

MACHINE = "cluster.machine"

NAMING = ("cluster", MACHINE)
"""Keys that may name a machine. What sets them comes first, then what it brings is taken in, and
then other keys are set inside of that."""

MERGED = ("inter_node", "overheads", "cost")
"""Keys inside which single keys win; all others are taken or replaced as a whole."""


def may_name(keys: Iterable[str]) -> bool:
    """Whether one of some dotted keys may name a machine."""
    return any(key in NAMING for key in keys)


def cluster_file(path: Path) -> Path:
    """The file that ``--cluster`` names; the name of a machine, or of nothing, comes back."""
    if is_known(str(path)):
        return path
    try:
        return find(path)
    except ScenarioError:  # which does not know of machines
        return path


def read_cluster(path: Path, known: Sequence[str]) -> Raw:
    """Read what ``--cluster`` names: a scenario as plain data, or one node of a machine as one.

    A file that says where its figures come from is a machine's, as ``calibrate`` writes it.

    Parameters
    ----------
    path : Path
        What `cluster_file` found: a YAML file, a saved ``result.json``, or the name of a machine.
    known : sequence of str
        Keys of a scenario; all but ``cluster`` may be missing.

    Raises
    ------
    ScenarioError
        If there is no such thing, it has no cluster, or a key is unknown.
    """
    name = str(path)
    if is_known(name):
        return _one_node(name, name, Path())
    if not path.suffix and not path.exists():
        close = get_close_matches(name, [*MACHINES.names(), *names()], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ScenarioError(
            [
                f"--cluster {path}: there is no such file or machine; give a scenario, whose "
                f"cluster is taken, or one of {', '.join(MACHINES.names())}.{hint}"
            ]
        )
    raw = read_scenario(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("cluster"), dict):
        raise ScenarioError([f"{path}: has no cluster; it must be a mapping with cluster: ..."])
    if "source" in raw or "calibration" in raw:
        return _one_node(path.stem, path.name, path.parent)
    unknown = [f"{path}: {unknown_name('key', key, known)}" for key in raw if key not in known]
    if unknown:
        raise ScenarioError(unknown)
    return raw


def _one_node(name: str, machine: str, base: Path) -> Raw:
    """A scenario of one node of a machine."""
    node = read_machine(machine, base).cluster.get("devices_per_node", 1)
    return {"name": name, "cluster": {"machine": machine, "world_size": node}}


def with_machine(raw: Raw, base: Path, swept: Collection[str] = ()) -> Raw:
    """Return a scenario as plain data, with what its machine brings under what it says itself.

    Parameters
    ----------
    raw : dict
        The scenario; not changed. One without a machine, or with keys that cannot be, comes back
        as it is: its validation says what is wrong.
    base : Path
        Folder that relative paths start from.
    swept : collection of str, optional
        Keys that are set later, beside those of the scenario's own sweep.

    Raises
    ------
    ScenarioError
        If there is no such machine, or its file cannot be read.
    """
    cluster = raw.get("cluster")
    own = raw.get("collectives", {})
    if not isinstance(cluster, dict) or not isinstance(own, dict):
        return raw
    name = cluster.get("machine")
    if not isinstance(name, str):
        return raw
    try:
        machine = read_machine(name, base)
    except ScenarioError as error:
        raise ScenarioError([f"cluster.machine: {line}" for line in error.problems]) from None
    filled = {**raw, "cluster": _under(machine.cluster, cluster)}
    if machine.collectives:
        filled["collectives"] = _under(machine.collectives, own)
        sweep = raw.get("sweep")
        swept = [*swept, *map(str, sweep if isinstance(sweep, dict) else ())]
        over_links = named(own, swept)
        # An algorithm that the scenario names is simulated: the machine's cost holds for the rest.
        if over_links and "cost" in machine.collectives and not says_cost(own, swept):
            filled["collectives"].setdefault("over_links", over_links)
    return filled


def _under(brought: Raw, own: Raw) -> Raw:
    """Lay one mapping under another one."""
    found = copy.deepcopy(brought)
    for key, value in own.items():
        below = found.get(key)
        if key in MERGED and isinstance(below, dict) and isinstance(value, dict):
            found[key] = _joined(below, value)
        else:
            found[key] = value
    return found


def _joined(below: Raw, value: Raw) -> Raw:
    """Lay single keys over others, unless the two are of different kinds."""
    kind = below.get("kind")
    return {**below, **value} if value.get("kind", kind) == kind else value
