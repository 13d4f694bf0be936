"""Import paths, names and keys of earlier versions that users' files and scripts may hold.

They keep working and warn with the name of today. `simdp` installs `OldModuleFinder` behind
Python's own finders, so that it costs nothing as long as no module is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "simdp.cluster.allocators.base": "simdp.cluster.allocators",
    "simdp.cluster.degraded": "simdp.cluster.stragglers",
    "simdp.cluster.device": "simdp.cluster.hardware",
    "simdp.cluster.failures.base": "simdp.cluster.failures",
    "simdp.cluster.link": "simdp.cluster.hardware",
    "simdp.cluster.machine": "simdp.cluster.hardware",
    "simdp.cluster.stragglers.base": "simdp.cluster.stragglers",
    "simdp.collectives.costs.base": "simdp.collectives.costs",
    "simdp.engine.job.through": "simdp.engine.job.history",
    "simdp.engine.job.witness": "simdp.engine.job.history",
    "simdp.job.checkpoint": "simdp.job.recovery",
    "simdp.job.recovery.base": "simdp.job.recovery",
    "simdp.job.target": "simdp.job.targets",
    "simdp.job.target.base": "simdp.job.targets",
    "simdp.strategies.comm_hooks.base": "simdp.strategies.comm_hooks",
    "simdp.strategies.single": "simdp.strategies.data_parallel",
    "simdp.studies.reference": "simdp.studies.schema",
    "simdp.workload.compute.base": "simdp.workload.compute",
    "simdp.workload.datasets.lengths": "simdp.workload.datasets.base",
    "simdp.workload.datasets.lengths.base": "simdp.workload.datasets.base",
    "simdp.workload.faults.base": "simdp.workload.faults",
    "simdp.workload.layers.activations.base": "simdp.workload.layers.activations",
    "simdp.workload.layers.softmax": "simdp.workload.layers.activations",
    "simdp.workload.losses.base": "simdp.workload.losses",
    "simdp.workload.precision.base": "simdp.workload.precision",
    "simdp.workload.torch_generator": "simdp.rng",
}
"""Documented modules that moved, and where their contents are now."""

NAMES = {
    "simdp.collectives.base": {
        name: f"{name}Algorithm"
        for name in (
            "AllGather",
            "AllReduce",
            "AllToAll",
            "Barrier",
            "Broadcast",
            "Gather",
            "Reduce",
            "ReduceScatter",
            "Scatter",
        )
    },
    "simdp.steps.facts": {"Step": "StepContext"},
    "simdp.steps.ops": {
        "Done": "MicrobatchDone",
        "Fill": "FillBucket",
        "Scale": "ScaleLoss",
    },
    "simdp.studies.plan": {"Asked": "PlanRequest"},
}
"""Documented names that changed, by module."""

KEYS = {
    ("recovery", "up"): "rejoin",
    ("failures", "comeback"): "mean_downtime",
    ("levels", "survives"): "tolerates",
    ("host", "ahead"): "async_launch",
    ("stragglers", "lasting_part"): "persistent_variance",
}
"""Keys of scenarios that changed, by the key that holds them and their old name."""


class OldKeyWarning(FutureWarning):
    """A scenario, setting or machine file has a key under its old name."""


def old_keys(new: str) -> list[str]:
    """Old names of a key."""
    return [old for (_, old), name in KEYS.items() if name == new]


def advise_key(old: str, new: str) -> None:
    """Warn that a key is old."""
    parent = next(parent for (parent, key), name in KEYS.items() if (key, name) == (old, new))
    text = f"{parent}.{old} is now {parent}.{new}; the old key will be removed."
    warnings.warn(text, OldKeyWarning, stacklevel=1)


def current_key(key: str, advises: bool = True) -> str:
    """A dotted key with the current name of its last part; warns where that is another one."""
    *parents, last = key.split(".")
    words = [word for word in parents if not word.isdecimal()]
    new = KEYS.get((words[-1], last)) if words else None
    if new is None:
        return key
    if advises:
        advise_key(last, new)
    return ".".join([*parents, new])


def with_current_keys(value: Any, advises: bool = True, parent: str = "") -> Any:
    """Copy plain data, such as a sweep or a saved scenario, with current names of all keys.

    Parameters
    ----------
    value : Any
        Mappings, whose keys may be dotted, lists and plain values.
    advises : bool
        Whether to warn of old keys.
    parent : str
        The key that holds it.

    Raises
    ------
    ValueError
        If a mapping has a key under both names.
    """
    if isinstance(value, list):
        return [with_current_keys(inner, advises, parent) for inner in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[Any, Any] = {}
    for key, inner in value.items():
        dotted = f"{parent}.{key}" if parent else str(key)
        new = current_key(dotted, advises).removeprefix(f"{parent}.")
        if new != str(key) and new in value:
            raise ValueError(f"{key} and {new} are the same key; keep {new}.")
        words = [word for word in dotted.split(".") if not word.isdecimal()]
        found[new if isinstance(key, str) else key] = with_current_keys(
            inner, advises, words[-1] if words else parent
        )
    return found


def renamed(module: str, name: str) -> Any:
    """Return a module's attribute by its old name, with a warning.

    Parameters
    ----------
    module : str
        A key of `NAMES`, or another module, which has no old names.
    name : str
        The attribute that the module lacks.

    Raises
    ------
    AttributeError
        If the name was never one of the module's.
    """
    new = NAMES.get(module, {}).get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    advise(f"{module}.{name}", f"{module}.{new}")
    return getattr(import_module(module), new)


def advise(old: str, new: str) -> None:
    """Warn that a name is old; the user's own line is shown."""
    warnings.warn(f"{old} is now {new}; the old name will be removed.", FutureWarning, stacklevel=3)


class _Alias(ModuleType):
    """A module under its old name."""

    def __init__(self, name: str, new: str) -> None:
        super().__init__(name)
        self.__dict__["_new"] = new
        self.__dict__["__path__"] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self.__dict__["_new"]), name)


class OldModuleFinder(MetaPathFinder, Loader):
    """Finds modules of `MODULES` under their old names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that moved; None for any other."""
        return ModuleSpec(name, self) if name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module that passes on the attributes of the new one."""
        return _Alias(spec.name, MODULES[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Warn once, when the old module is first imported."""
        advise(module.__name__, MODULES[module.__name__])
