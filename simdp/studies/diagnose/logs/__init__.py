"""Diagnoses a job from text: watchdog, NCCL, topology, memory and progress, in any mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from simdp.results.diagnosis import Diagnosis, Finding, SourceRow
from simdp.studies.diagnose.logs.hangs import hang_findings
from simdp.studies.diagnose.logs.memory import memory_findings
from simdp.studies.diagnose.logs.networks import network_findings
from simdp.studies.diagnose.logs.progress import progress_findings, usual_step
from simdp.studies.diagnose.logs.sizes import KnownModels
from simdp.traces.logs import JobLog

CONFIDENCE = ("certain", "likely", "possible")  # how sure a finding is, the surest first

ROOTS = (
    "host_out_of_memory",
    "shared_memory_full",
    "out_of_memory",
    "fragmentation",
    "rank_failed",
)
"""Causes that explain that other ranks wait: before those, if equally sure."""


def log_findings(
    logs: Sequence[JobLog], models: Mapping[str, object] | None = None, machine: str | None = None
) -> list[Finding]:
    """Find causes in texts of one job, the surest first.

    Parameters
    ----------
    logs : sequence of JobLog
        Texts.
    models : mapping of str to object, optional
        Models as in YAML whose tensors sizes are compared with; by default all presets.
    machine : str or None
        Reference of bandwidths; by default machines with the same devices.

    Raises
    ------
    ScenarioError
        If a model or the machine is unknown, or a table of nccl-tests is damaged.
    """
    known = KnownModels(models)
    findings = [
        *memory_findings(logs, known),
        *hang_findings(logs, known),
        *network_findings(logs, machine),
        *progress_findings(logs),
    ]
    return ranked(findings)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per cause, the surest first; what explains the others before them."""
    best = dict[str, Finding]()
    for finding in findings:
        known = best.get(finding.cause)
        if known is None or _order(finding) < _order(known):
            ranks = () if known is None else known.ranks
            best[finding.cause] = replace(finding, ranks=finding.ranks or ranks)
    return sorted(best.values(), key=_order)


def _order(finding: Finding) -> tuple[int, bool]:
    sure = CONFIDENCE.index(finding.confidence) if finding.confidence else 0
    return sure, finding.cause not in ROOTS


def diagnose_logs(
    logs: Sequence[JobLog], models: Mapping[str, object] | None = None, machine: str | None = None
) -> Diagnosis:
    """Diagnose texts of one job; parameters and errors as of `log_findings`."""
    verdict = log_findings(logs, models, machine)
    texts = [log.watchdog for log in logs if log.watchdog is not None]
    known = [call.rank for text in texts for call in text.calls]
    known += [row.rank for text in texts for row in text.progress]
    ranks = {rank for rank in known if rank is not None}
    world = max(
        (size for log in logs if log.nccl is not None and (size := log.nccl.world_size())),
        default=None,
    )
    steps = [time for log in logs if log.progress and (time := usual_step(log.progress))]
    return Diagnosis(
        source="log",
        step_time_s=steps[-1] if len(steps) == 1 else None,
        num_ranks=len(ranks),
        world_size=world,
        verdict=tuple(verdict),
        sources=tuple(SourceRow(log.name, log.kinds) for log in logs),
    )
