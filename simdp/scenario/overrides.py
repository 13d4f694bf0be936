"""Scenarios as plain data: values of their machine, and dotted keys set by overrides or a sweep.

The scenario's keys have precedence over those of ``cluster.machine``: a key of ``cluster``, or
inside ``inter_node``, ``overheads`` or a cost of the same kind. Where only a cluster is needed, a
machine's name can replace a scenario.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from simdp.cluster.hardware import DEVICES, LINKS, MACHINES, is_file, is_known, read_machine
from simdp.collectives import FAMILIES, has_cost, named
from simdp.errors import ScenarioError, close_names, shown, unknown_name
from simdp.files import read_scenario, shards_of
from simdp.keys import current_key, old_keys, with_current_keys
from simdp.scenario.shipped import find, names

Raw = dict[str, Any]
"""A scenario, or a part of it, as plain data."""

Branch = Raw | list[Any]
"""A value in plain data that has others inside."""

MAX_POINTS = 10_000

MAX_DEPTH = 32
"""Maximum nesting of keys."""


# Machines -----------------------------------------------------------------------------------------

MACHINE = "cluster.machine"

NAMING = ("cluster", MACHINE)
"""Keys that may name a machine. They are set first, then the machine's values are merged, then
other keys are set."""

MERGED = ("inter_node", "overheads", "cost")
"""Keys that are merged key by key; all others are replaced as a whole."""


def may_name(keys: Iterable[str]) -> bool:
    """Return whether one of some dotted keys may name a machine."""
    return any(key in NAMING for key in keys)


def cluster_file(path: Path) -> Path:
    """Return the file of ``--cluster``; machines' names, and unknown ones, stay unchanged."""
    if not is_known(str(path)):
        with suppress(ScenarioError):  # which does not know of machines
            return find(path)
    return path


def read_cluster(path: Path, known: Sequence[str]) -> Raw:
    """Read the value of ``--cluster`` as a scenario in plain data; of a machine, one node.

    A file with sources of its figures is a machine's, as written by ``calibrate``.

    Parameters
    ----------
    path : Path
        Result of `cluster_file`: a YAML file, a saved ``result.json``, or the name of a machine.
    known : sequence of str
        Keys of a scenario; all but ``cluster`` may be missing.

    Raises
    ------
    ScenarioError
        If it does not exist, has no cluster, or a key is unknown.
    """
    name = str(path)
    if is_known(name):
        return _one_node(name, name, Path())
    if not path.suffix and not path.exists():
        lead = f"--cluster {path}: there is no such file, scenario or machine"
        close, known = close_names(name, [*MACHINES.names(), *names()]), MACHINES.names()
        raise ScenarioError([unknown_name("machine", name, known, close, lead=lead)])
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
    """Return a scenario of one node of a machine."""
    node = read_machine(machine, base).cluster.get("devices_per_node", 1)
    return {"name": name, "cluster": {"machine": machine, "world_size": node}}


def with_machine(raw: Raw, base: Path, swept: Collection[str] = ()) -> Raw:
    """Return a scenario as plain data, with defaults from its machine.

    Parameters
    ----------
    raw : dict
        The scenario; not changed. Without a machine, or with invalid keys, it is returned
        unchanged: validation reports the errors.
    base : Path
        Folder that relative paths start from.
    swept : collection of str, optional
        Keys that are set later, in addition to those of the scenario's sweep.

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
        if over_links and "cost" in machine.collectives and not has_cost(own, swept):
            filled["collectives"].setdefault("over_links", over_links)
    return filled


def _under(brought: Raw, own: Raw) -> Raw:
    """Merge a mapping with defaults from another one."""
    merged = copy.deepcopy(brought)
    for key, value in own.items():
        below = merged.get(key)
        if key in MERGED and isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _joined(below, value)
        else:
            merged[key] = value
    return merged


def _joined(below: Raw, value: Raw) -> Raw:
    """Merge single keys, unless the two are of different kinds."""
    kind = below.get("kind")
    return {**below, **value} if value.get("kind", kind) == kind else value


# Overrides ----------------------------------------------------------------------------------------


def as_written(
    file: Path, overrides: Mapping[str, object] | None = None, swept: Collection[str] = ()
) -> Raw:
    """Read a scenario as plain data, with keys set, without checks.

    Arguments and errors as for `simdp.load_scenario`; ``swept`` are keys that get their values
    later, as in `override_all`.
    """
    raw = read_scenario(file)
    if not isinstance(raw, dict):
        raise ScenarioError([f"{file}: is not a scenario; it must be a mapping with cluster: ..."])
    try:
        raw = override_all(
            with_current_sweep(copy.deepcopy(raw)), overrides or {}, file.parent, swept
        )
    except ScenarioError as error:
        raise ScenarioError([f"{file}: {line}" for line in error.problems]) from None
    if overrides and not any(key.startswith("measured") for key in overrides):
        raw.pop("measured", None)
    raw.setdefault("name", re.sub(r"[^\w.+-]|^\W", "_", file.stem))
    return raw


def with_current_sweep(raw: Raw) -> Raw:
    """Return a scenario with current names of all keys in its sweep.

    Raises
    ------
    ScenarioError
        If it has a key under both names.
    """
    if not raw.get("sweep"):
        return raw
    try:
        return {**raw, "sweep": with_current_keys(raw["sweep"])}
    except ValueError as error:
        raise ScenarioError([f"sweep: {error}"]) from None


def override(raw: Raw, key: str, value: object) -> None:
    """Set a key permanently and remove it from the sweep.

    The rest after ``sweep.`` is one key of the sweep, with its dots. Arguments as in `set_key`.
    """
    key, sweep = current_key(key), raw.get("sweep")
    if isinstance(sweep, dict):
        sweep.pop(key, None)
    if key == "sweep" and value is None:
        value = {}
    if key.startswith("sweep."):
        raw["sweep"] = {**(sweep if isinstance(sweep, dict) else {}), key[len("sweep.") :]: value}
    else:
        set_key(raw, key, value)


def set_key(raw: Raw, key: str, value: object) -> None:
    """Set a dotted key in a scenario as plain data, in place; short forms on its way are expanded.

    Parameters
    ----------
    raw : dict
        The scenario.
    key : str
        For example ``"cluster.stragglers.0.factor"``.
    value : object
        A YAML value.

    Raises
    ------
    ScenarioError
        If the key leads through a value without keys.
    """
    *parents, last = current_key(key).split(".")
    if len(parents) > MAX_DEPTH:
        raise ScenarioError(
            [f"{key}: leads through {len(parents)} keys; there are {MAX_DEPTH} at most."]
        )
    here: Branch = raw
    for depth, part in enumerate(parents):
        here = _enter(here, part, ".".join(parents[: depth + 1]), key)
    place = _index(here, last, key)
    if last == "kind" and isinstance(here, dict) and here.get("kind") != value:
        here.clear()
    if isinstance(here, dict):
        for old in old_keys(last):
            here.pop(old, None)
    here[place] = copy.deepcopy(value)


def _index(here: Branch, part: str, key: str) -> Any:
    if isinstance(here, dict):
        return part
    if not (part.isascii() and part.isdecimal()) or int(part) >= len(here):
        raise ScenarioError(
            [f"{key}: the list has {len(here)} entries, so {part!r} is none; count from 0."]
        )
    return int(part)


def _enter(here: Branch, part: str, path: str, key: str) -> Branch:
    place = _index(here, part, key)
    inner = here.get(place) if isinstance(here, dict) else here[place]
    if inner is None or isinstance(inner, bool):
        inner = {}
    elif isinstance(inner, str):
        words = [word for word in path.split(".") if not word.isdecimal()]  # device.0 is a device
        catalogue = {"device": DEVICES, "link": LINKS}.get(words[-1] if words else "")
        known = catalogue is not None and inner in catalogue.names()
        inner = catalogue.figures(inner) if catalogue and known else {"kind": inner}
    elif not isinstance(inner, dict | list):
        raise ScenarioError([f"{key}: {path} is {shown(inner)}, which has no keys inside."])
    here[place] = inner
    return inner


def override_all(
    raw: Raw, settings: Mapping[str, object], base: Path, swept: Collection[str] = ()
) -> Raw:
    """Set keys permanently, including those inside the values of the scenario's machine.

    The machine's values are not merged if points differ in their machine: the first would hide the
    others.

    Parameters
    ----------
    raw : dict
        The scenario as plain data; changed.
    settings : mapping of str to value
        Dotted keys; those that may name a machine are set first.
    base : Path
        Folder that relative paths start from.
    swept : collection of str, optional
        Keys that points set later, in addition to those of the scenario's sweep.
    """
    settings = dict(settings)
    first = _first(settings)
    for key in first:
        override(raw, key, settings.pop(key))
    sweeps = settings.get("sweep") or raw.get("sweep")
    swept = [*swept, *(k.removeprefix("sweep.") for k in settings if k.startswith("sweep."))]
    swept += sweeps if isinstance(sweeps, dict) else []
    if (settings or set(first) - set(NAMING)) and not may_name(swept):
        raw = with_machine(raw, base, swept)
    for key, value in settings.items():
        override(raw, key, value)
    return raw


def _first(keys: Collection[str]) -> list[str]:
    """Return keys to set before the machine's values are merged.

    Those that may name it; and algorithms, since a machine's cost does not apply to collectives
    with an algorithm in the scenario.
    """
    algorithms = [f"collectives.{name}" for name in FAMILIES]
    named = [key for key in keys if ".".join(key.split(".")[:2]) in algorithms]
    return [*(key for key in NAMING if key in keys), *named]


def grid(raw: Raw, base: Path) -> Iterator[tuple[Raw, Raw]]:
    """Yield each point's settings and its scenario as plain data, with its machine's values.

    Relative paths start from ``base``.
    """
    sweep = raw["sweep"]
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        plain = {key: value for key, value in raw.items() if key not in ("sweep", "measured")}
        point = copy.deepcopy(plain)
        first = _first(chosen)
        for key in first:
            set_key(point, key, chosen[key])
        point = with_machine(point, base)
        for key, value in chosen.items():
            if key not in first:
                set_key(point, key, value)
        yield chosen, point


def sweep_problems(raw: Raw) -> list[str]:
    """Return the problems of the sweep of a scenario as plain data, except those of its values."""
    sweep = raw.get("sweep")
    if not sweep:
        return []
    if not isinstance(sweep, dict):
        return [
            f"sweep: {shown(sweep)} is not a mapping; write sweep: {{cluster.world_size: [1, 2]}}."
        ]
    lines, points = [], 1
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            lines.append(
                f"sweep.{key}: {shown(values)} is not a list of values; write for example [1]."
            )
        elif not isinstance(key, str) or key.split(".")[0] in ("sweep", "name"):
            lines.append(f"sweep.{key}: cannot be swept; sweep a key of cluster, workload, ...")
        else:
            points *= len(values)
    if points > MAX_POINTS:
        lines.append(f"sweep: makes {points} points; at most {MAX_POINTS} are allowed.")
    return lines


def move_paths(value: object, base: Path, folder: Path, key: str = "") -> Any:
    """Rewrite absolute paths and paths relative to ``base`` relative to ``folder``."""
    if isinstance(value, dict):
        return {
            name: move_paths(inner, base, folder, str(name).split(".")[-1])
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [move_paths(inner, base, folder, key) for inner in value]
    return os.path.relpath(base / value, folder) if _names_file(value, key) else value


def named_files(value: object, base: Path, key: str = "") -> list[Path]:
    """Return every file named in a scenario as plain data, and those named in an index among them.

    Relative paths start from ``base``.
    """
    if isinstance(value, dict):
        inner = [(str(name).split(".")[-1], part) for name, part in value.items()]
    elif isinstance(value, list):
        inner = [(key, part) for part in value]
    else:
        return [base / value, *shards_of(base / value)] if _names_file(value, key) else []
    return [path for name, part in inner for path in named_files(part, base, name)]


def _names_file(value: object, key: str) -> TypeGuard[str]:
    if not isinstance(value, str):
        return False
    return key in ("path", "weights") or (key == "machine" and is_file(value))
