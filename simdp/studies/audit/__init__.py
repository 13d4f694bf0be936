"""Audit of a scenario: its method against one device on the same samples of every step.

A difference beyond rounding is explained by experiments: each option that may cause it is undone,
and named only if the difference vanishes. `sides` compares, `suspects` lists the options.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from simdp.errors import LedBy, ScenarioError
from simdp.files import key_lines
from simdp.keys import format_settings
from simdp.results.audit import AuditReport
from simdp.scenario import load_scenario
from simdp.scenario.overrides import Raw
from simdp.scenario.root import Scenario
from simdp.scenario.shipped import find
from simdp.studies.audit.experiments import PointAudit, audit_point
from simdp.studies.audit.suspects import changed, plain

__all__ = ["audit_scenario"]


def audit_scenario(
    path: str | os.PathLike[str],
    overrides: Mapping[str, object] | None = None,
    *,
    ranks: Sequence[int] | None = None,
    exact: bool = False,
    allow: Collection[str] = (),
    max_steps: int | None = None,
) -> AuditReport:
    """Compare a scenario, at every point of its sweep, with one device on the same samples.

    Parameters
    ----------
    path : path-like
        A YAML file, a saved result.json, or the name of a shipped scenario.
    overrides : mapping of str to value, optional
        As for `simdp.load_scenario`.
    ranks : sequence of int, optional
        Numbers of ranks in place of the scenario's, on the same global batch; 1 is always compared
        with.
    exact : bool
        Compute in float64.
    allow : collection of str
        Causes that are intended.
    max_steps : int, optional
        Steps to compare. Default: by the FLOPs of a step, with the first step of another size, a
        period of the strategy, and all faults.

    Returns
    -------
    AuditReport
        Wrong findings first.

    Raises
    ------
    ScenarioError
        If the scenario is invalid, has no numbers, trains nothing, or has only one rank.
    """
    file = find(Path(path))
    scenario = load_scenario(file, overrides)
    points = _points(scenario, ranks, file)
    places = key_lines(file) if file.suffix in (".yaml", ".yml") else {}
    audits = [
        audit_point(format_settings(chosen), point, str(file), places, exact, allow, max_steps)
        for chosen, point in points
    ]
    return _report(scenario.name, audits)


def _points(
    scenario: Scenario, ranks: Sequence[int] | None, file: Path
) -> list[tuple[Raw, Scenario]]:
    """List the points that have several ranks and numbers; raise if there is none."""
    points = scenario.points()
    for _, point in points:
        if point.workload.mode == "inference":
            raise ScenarioError(f"{file}: workload.mode: inference trains nothing to compare.")
    points = [(chosen, point) for chosen, point in points if point.numerics]
    if not points:
        raise ScenarioError(f"{file}: numerics: {_no_numbers(scenario)}")
    if ranks is not None:
        several = [n for n in ranks if n > 1]
        distinct: dict[str, tuple[Raw, Scenario]] = {}  # a sweep may be over the ranks
        for chosen, point in points:
            for n in several:
                named = len(several) > 1 or "cluster.world_size" in chosen
                here = {**chosen, "cluster.world_size": n} if named else chosen
                if format_settings(here) not in distinct:
                    distinct[format_settings(here)] = here, _on_ranks(point, n, file)
        points = list(distinct.values())
    points = [(chosen, point) for chosen, point in points if point.cluster.world_size > 1]
    if not points:
        raise ScenarioError(
            f"{file}: cluster.world_size: 1 rank has nothing to be compared with; write for "
            "example --set cluster.world_size=4."
        )
    return points


def _no_numbers(scenario: Scenario) -> str:
    """Explain why there are no numbers, and how to get them."""
    reason = "false: without numbers there is nothing to compare; "
    workload = scenario.workload
    if workload.model.timed or workload.model.recorded:
        return f"{reason}the model {workload.model.kind} has times only; use a model with layers."
    if workload.dataset.kind == "none":
        return f"{reason}add a dataset."
    return f"{reason}--set numerics=true computes them, if the model is small enough."


def _on_ranks(scenario: Scenario, n: int, file: Path) -> Scenario:
    """Return a point on another number of ranks, with the same global batch.

    Raises
    ------
    ScenarioError
        If its samples do not divide among them, or the scenario is for its own number only.
    """
    workload, raw = scenario.workload, plain(scenario)
    changes: Raw = {"cluster.world_size": n}
    own = scenario.cluster.world_size
    if workload.microbatch is not None:
        total = workload.microbatch * own
        if total % n:
            raise ScenarioError(
                f"{file}: --ranks {n}: {total} samples of a micro-step do not divide among "
                f"{n} ranks; use divisors of {total}, or workload.global_batch."
            )
        changes["workload.microbatch"] = total // n
    per_node = scenario.cluster.devices_per_node
    if per_node is not None and n % per_node and n > per_node:
        changes["cluster.devices_per_node"] = n
    for part, key in ((raw["cluster"], "stragglers"), (raw["workload"], "inject")):
        part[key] = [spec for spec in part.get(key) or [] if _exists(spec, n)]
    with LedBy(f"{file}: --ranks {n}: "):
        return changed(raw, [changes], scenario.base)


def _exists(spec: Raw, n: int) -> bool:
    rank = spec.get("rank")
    return not isinstance(rank, int) or rank < n


def _report(name: str, audits: Sequence[PointAudit]) -> AuditReport:
    findings = [finding for audit in audits for finding in audit.findings]
    batches = {audit.batch for audit in audits}
    lengths = {audit.num_samples for audit in audits}
    return AuditReport(
        name=name,
        ranks=tuple(sorted({1, *(audit.world_size for audit in audits)})),
        steps=max(audit.steps for audit in audits),
        findings=tuple(sorted(findings, key=lambda finding: not finding.wrong)),
        seen_twice=max(audit.seen_twice for audit in audits),
        missed=max(audit.missed for audit in audits),
        checks=tuple(check for audit in audits for check in audit.checks),
        experiments=tuple(experiment for audit in audits for experiment in audit.experiments),
        tensors=tuple(row for audit in audits for row in audit.tensors),
        ledger=tuple(row for audit in audits for row in audit.ledger),
        notes=tuple(dict.fromkeys(note for audit in audits for note in audit.notes)),
        batch=batches.pop() if len(batches) == 1 else None,
        samples=lengths.pop() if len(lengths) == 1 else None,
    )
