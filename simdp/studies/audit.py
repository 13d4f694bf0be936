"""Audit of a scenario: its method against one device on the same global batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simdp.errors import ScenarioError
from simdp.results.audit import AuditReport


def audit_scenario(
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    ranks: Sequence[int] | None = None,
    exact: bool = False,
    allow: Sequence[str] = (),
    max_steps: int | None = None,
) -> AuditReport:
    """Compare a scenario with one device."""
    raise ScenarioError([f"{Path(path)}: audit of scenarios is not there yet."])
