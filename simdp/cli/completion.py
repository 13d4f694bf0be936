"""Shell completion of scenario and catalogue names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

Complete = Callable[[str], list[str]]


def _from(known: Callable[[], Iterable[str]]) -> Complete:
    """Complete names that are looked up when a shell requests them."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in sorted(known()) if name.startswith(incomplete)]

    return complete


def _stems(folder: str) -> Callable[[], list[str]]:
    """File stems of a catalogue, used as its names."""
    return lambda: [path.stem for path in (PACKAGE / folder).glob("*.yaml")]


def _scenarios(incomplete: str) -> list[str]:
    """Scenarios that simdp brings, and files of the current folder, as a shell would have them."""
    from simdp.scenario.shipped import names

    lead, _, _ = incomplete.rpartition("/")
    here = [path for path in Path(lead or ".").glob("*") if not path.name.startswith(".")]
    files = [f"{path}/" if path.is_dir() else str(path) for path in here]
    files = [name for name in files if name.endswith((".yaml", ".json", "/"))]
    return [name for name in (*names(), *sorted(files)) if name.startswith(incomplete)]


def _families() -> list[str]:
    from simdp.studies.families import names

    return names()


def _table(module: str, name: str) -> Complete:
    """Complete the names in a table of a module."""
    return _from(lambda: getattr(import_module(f"simdp.{module}"), name))


SCENARIOS: Complete = _scenarios
MACHINES = _from(_stems("cluster/machines"))
DEVICES = _from(_stems("cluster/devices"))
MODELS = _from(_stems("workload/models/presets"))
FAMILIES = _from(_families)
STRATEGIES = _table("strategies", "STRATEGIES")
PRECISIONS = _table("workload.precision", "PRECISIONS")
LEFT_OUT = _table("studies.validate.folds", "BY")
CAUSES = _table("results.audit", "CAUSES")


def clusters(incomplete: str) -> list[str]:
    """Values of ``--cluster``: machines and scenarios."""
    return [*MACHINES(incomplete), *SCENARIOS(incomplete)]
