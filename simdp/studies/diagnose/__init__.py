"""Diagnoses a real job from its traces, dumps and logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from simdp.errors import ScenarioError
from simdp.results.diagnosis import Diagnosis, Finding, RankRow, StepRow
from simdp.studies.diagnose.buckets import Buckets, buckets_of, diagnose_logging
from simdp.studies.diagnose.case import Case, case_of
from simdp.studies.diagnose.critical import critical_steps
from simdp.studies.diagnose.logs import diagnose_logs
from simdp.studies.diagnose.mismatches import diagnose_flight, disagreement, mismatches
from simdp.studies.diagnose.rows import (
    all_step_rows,
    collective_rows,
    late_rows,
    mean,
    node_rows,
    rank_rows,
    wait_rows,
)
from simdp.studies.diagnose.verdict import findings, with_remedies
from simdp.traces import (
    RankTrace,
    read_ddp_logging,
    read_flight_records,
    read_traces,
    sort_files,
)
from simdp.traces.building import CUT
from simdp.traces.matching import check_one_job


def diagnose(
    traces: Path | str | Sequence[Path | str] | Sequence[RankTrace],
    *,
    machine: str | None = None,
    remedies: bool = True,
    model: object = None,
) -> Diagnosis:
    """Diagnose a job from what its ranks recorded, and from its logs.

    Parameters
    ----------
    traces : Path, str, sequence of those, or sequence of RankTrace
        Traces, or folders or archives with one per rank; dumps of NCCL's flight recorder; DDP's
        logging data; text of the NCCL watchdog, NCCL, nccl-tests, ``nvidia-smi topo -m``, torch's
        memory, and progress; in any mixture. Or traces that were read already.
    machine : str or None
        Whose links the job used: a name of the catalogue, a machine's file, or a scenario.
    remedies : bool
        Whether to simulate what would help.
    model : object
        Model as in YAML, whose tensors sizes in text are compared with; by default those of a
        config.json among the files, else all presets.

    Returns
    -------
    Diagnosis
        Its times are means per step and over ranks.

    Raises
    ------
    ScenarioError
        If no file is readable (some that are not are remarks), they are not of one job, or there is
        no such machine or model.
    """
    if isinstance(traces, str | Path):
        traces = [traces]
    if all(isinstance(trace, RankTrace) for trace in traces):
        return _of_traces(cast("Sequence[RankTrace]", traces), machine, remedies)
    return _of_files([Path(cast("str", trace)) for trace in traces], machine, remedies, model)


def _of_files(
    paths: Sequence[Path], machine: str | None, remedies: bool, model: object
) -> Diagnosis:
    files = sort_files(paths)
    models: dict[str, object] = {}
    models |= {str(path): {"kind": "transformers", "path": str(path)} for path in files.configs}
    if model is not None:
        models = {model if isinstance(model, str) else "--model": model}
    problems = []
    if model is not None and not files.logs:
        problems.append("--model: is compared with sizes in logs, and there is none; leave it out.")
    if machine is not None and not (files.logs or files.traces):
        problems.append("--machine: is for traces and logs, and there is none; leave it out.")
    if problems:
        raise ScenarioError(problems)
    parts = list[Diagnosis]()
    if files.traces:
        parts.append(_of_traces(read_traces(files.traces), machine, remedies))
    if files.flight_records:
        parts.append(diagnose_flight(read_flight_records(files.flight_records)))
    parts += [diagnose_logging(read_ddp_logging(path)) for path in files.ddp_logging]
    if files.logs:
        parts.append(diagnose_logs(files.logs, models, machine))
    if not parts:
        raise ScenarioError(
            [
                f"{files.configs[0]}: is a model, whose tensors sizes in a log are compared with; "
                "give a log, too.",
                *files.unread,
            ]
        )
    diagnosis = joined(parts)
    unread = (f"Not read: {line}" for line in files.unread)
    return replace(diagnosis, remarks=(*diagnosis.remarks, *unread))


def _of_traces(traces: Sequence[RankTrace], machine: str | None, remedies: bool) -> Diagnosis:
    check_one_job(traces)
    check_complete(traces)
    case = case_of(traces, machine)
    critical = critical_steps(case)
    steps = all_step_rows(case)
    ranks = tuple(rank_rows(case, critical, steps))
    differing = mismatches(case.lines, case.found)
    lacks = _lacks_events(case)
    verdict = [disagreement(row) for row in differing[:1]]
    verdict += findings(case, critical, lacks)
    buckets = Buckets() if lacks else buckets_of(case.lines)
    diagnosis = Diagnosis(
        source=traces[0].source,
        num_ranks=len(traces),
        **_means(ranks, steps),
        buckets=buckets.rows,
        verdict=tuple(verdict),
        world_size=next((t.world_size for t in traces if t.world_size is not None), None),
        num_steps=len(case.numbers) if case.has_steps else 0,
        steps_are=case.lines[0].marks.mark,
        spread_s=_spread(steps),
        copy_s=mean([row.copy_s for row in ranks]),
        input_s=mean([row.input_s for row in ranks]),
        launch_s=mean([row.launch_s for row in ranks]),
        wait_s=mean([row.wait_s for row in ranks]),
        transfer_s=float(case.charge("transfer").mean()),
        machine=case.reference.name,
        machine_from=case.reference.source,
        bucket_rule=buckets.rule,
        ranks=ranks,
        nodes=tuple(node_rows(case, ranks)),
        steps=tuple(steps),
        late=tuple(late_rows(case, critical)),
        collectives=tuple(collective_rows(case)),
        waits=tuple(wait_rows(case)),
        mismatches=tuple(differing),
        remarks=tuple(dict.fromkeys([*_remarks(case, lacks)])),
    )
    if not remedies:
        return diagnosis
    helped = with_remedies(diagnosis.verdict, traces, machine)
    return replace(
        diagnosis,
        verdict=helped.verdict,
        replayed_s=helped.replayed_s,
        remarks=(*diagnosis.remarks, *helped.remarks),
    )


def check_complete(traces: Sequence[RankTrace]) -> None:
    """Refuse traces that end before the kernels of their steps: the device would seem to rest.

    Raises
    ------
    ScenarioError
        If there is one.
    """
    problems = [
        f"{trace.path}: {remark[0].lower()}{remark[1:]}"
        for trace in traces
        for remark in trace.remarks
        if remark.startswith(CUT.partition(":")[0])
    ]
    if problems:
        raise ScenarioError(problems)


def _means(ranks: Sequence[RankRow], steps: Sequence[StepRow]) -> dict[str, Any]:
    times = [row.step_time_s for row in ranks if row.step_time_s is not None]
    return {
        "step_time_s": mean(times) if steps and times else None,
        "compute_s": mean([row.compute_s for row in ranks]),
        "exposed_comm_s": mean([row.exposed_comm_s for row in ranks]),
        "hidden_comm_s": mean([row.hidden_comm_s for row in ranks]),
        "idle_s": mean([row.idle_s for row in ranks]),
    }


def _spread(steps: Sequence[StepRow]) -> dict[str, float]:
    """Of steps that count, each as long as on the rank where it is longest [s]."""
    longest = dict[int, float]()
    for row in steps:
        if row.counted:
            longest[row.step] = max(row.step_time_s, longest.get(row.step, 0.0))
    if not longest:
        return {}
    times = np.array(list(longest.values()))
    return {
        "min": float(times.min()),
        "median": float(np.median(times)),
        "max": float(times.max()),
    }


def _lacks_events(case: Case) -> bool:
    """Whether traces are samples: they say so, or the order of their collectives is wrong."""
    is_sample = any("is a sample" in remark for line in case.lines for remark in line.trace.remarks)
    return is_sample or bool(case.found.by_ends)


def _remarks(case: Case, lacks: bool) -> Iterator[str]:
    several = len(case.lines) > 1
    if case.lines[0].marks.mark == "Optimizer.step":
        yield "There is no ProfilerStep: a step is what lies between two ends of Optimizer.step."
    for remark in dict.fromkeys(r for line in case.lines for r in line.trace.remarks):
        if case.has_steps and "no ProfilerStep" in remark:
            continue
        whose = [line.rank for line in case.lines if remark in line.trace.remarks]
        yield f"Rank {whose[0]}: {remark}" if several and len(whose) == 1 else remark
    filling = sorted({int(n) for line in case.lines for n in line.number[~line.used].tolist()})
    if filling:
        yield (
            f"In step{'s' * (len(filling) > 1)} {', '.join(map(str, filling))} the launch queue "
            "still fills: the host runs ahead, and its marks are no step times."
        )
    if case.found.by_ends:
        yield (
            "Events are missing: the order of collectives differs among ranks, and they were "
            f"matched by their ends ({case.found.unmatched} have none to match). All times are "
            "lower bounds, idle ones upper bounds."
        )
    elif case.found.unmatched:
        yield f"{case.found.unmatched} collectives are in the trace of one rank only."
    if lacks:
        yield "That the device idles is no evidence in a sample, so that the host is not blamed."
    seen, world = len(case.lines), case.reference.world_size
    if seen < world:
        yield (
            f"{seen} of {world} ranks have traces: waiting for another than these looks like a "
            "slow transfer."
        )


def joined(parts: Sequence[Diagnosis]) -> Diagnosis:
    """Join diagnoses; the first has the times and the rows.

    Ranks that disagree come first, then causes that a text states, then those of the first part.
    """
    first, *others = parts
    if not others:
        return first
    return replace(
        first,
        verdict=tuple(_verdict(parts)),
        num_ranks=max(part.num_ranks for part in parts),
        world_size=max(part.world_size or 0 for part in parts) or None,
        buckets=next((part.buckets for part in parts if part.buckets), ()),
        bucket_rule=next((part.bucket_rule for part in parts if part.bucket_rule), None),
        mismatches=tuple(row for part in parts for row in part.mismatches),
        sources=tuple(row for part in parts for row in part.sources),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
    )


def _verdict(parts: Sequence[Diagnosis]) -> list[Finding]:
    """One finding per cause: recordings show it, and texts add what they expect and advise."""
    best = dict[str, Finding]()
    for part in parts:
        for finding in part.verdict:
            known = best.setdefault(finding.cause, finding)
            if known is not finding and not known.confidence:
                best[finding.cause] = replace(
                    known,
                    expected=finding.expected,
                    obtained=finding.obtained,
                    remedy=finding.remedy,
                    ranks=known.ranks or finding.ranks,
                )
    order = {cause: place for place, cause in enumerate(best)}
    return sorted(best.values(), key=lambda finding: (_place(finding), order[finding.cause]))


def _place(finding: Finding) -> int:
    if finding.cause == "desynchronised" and not finding.confidence:
        return 0
    if finding.confidence == "certain":
        return 1
    if not finding.confidence:
        return 2
    return 3 if finding.confidence == "likely" else 4
