"""What every page ends with: the scenario with every default, and how to reproduce its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import join
from typing import Any

import numpy as np

from simdp.files import format_yaml
from simdp.reports.page.sections import Section, Source


def closing(
    scenario: Mapping[str, Any], version: str, subcommand: str, command: Sequence[str] = ()
) -> list[Section]:
    """Make the last sections of a page.

    Parameters
    ----------
    scenario : mapping
        As resolved; loads again.
    version : str
        Of simdp.
    subcommand : str
        Which command reads such a scenario: ``"run"``.
    command : sequence of str
        The command line that was given, from the subcommand on; without one it is made up from the
        scenario below it.
    """
    name = f"{scenario.get('name') or 'scenario'}.yaml"
    given = ["python", "-m", "simdp", *(command or [subcommand, name])]
    lines = [
        join(given),
        f"# simdp {version}, NumPy {np.__version__}, seed {scenario.get('seed', 0)}",
    ]
    note = "The same scenario, seed and version give the same times on any machine."
    if not command or name in command:
        note += f" {name} is the scenario below."
    return [
        Source("How to reproduce it", note=note, source="\n".join(lines), name="command line"),
        Source(
            "The scenario, every default resolved",
            folded=True,
            source=format_yaml(dict(scenario)),
            name=name,
        ),
    ]
