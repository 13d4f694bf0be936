"""Audits a script or a function, and writes the report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simdp.errors import ScenarioError
from simdp.results.audit import CAUSES, AuditReport, Check, Finding, SampleRow, Status
from simdp.torch.audit import samples
from simdp.torch.audit.comparisons import RunView, Unequal, replicas
from simdp.torch.audit.investigation import Investigation
from simdp.torch.audit.lines import Line
from simdp.torch.audit.records import ranks_counted
from simdp.torch.audit.resuming import CHECKPOINT, Resumed, Resuming
from simdp.torch.audit.runs import Program, Run, Runner

STEPS = 24
"""Optimizer steps that are compared by default."""

LISTED = 64
"""Steps of the ledger in a report."""

ENVIRONMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")


@dataclass(frozen=True)
class ScriptAudit:
    """What is audited, and how."""

    script: str
    """Path of a script, or a module's dotted name."""
    arguments: tuple[str, ...] = ()
    """The script's."""
    ranks: tuple[int, ...] = (1, 2, 4)
    """Numbers of ranks; the runs on more are compared with that on the fewest."""
    resume_ranks: tuple[int, int] | None = None
    """Ranks before and after resuming; default: the fewest above 1, twice."""
    exact: bool = False
    """Whether to compute in float64."""
    allow: tuple[str, ...] = ()
    """Causes that are intended."""
    batch_arg: str | None = None
    """Arguments that give a rank's samples, with ``{per_rank}``, ``{global_batch}`` or ``{ranks}``;
    or an environment variable, as ``BATCH={per_rank}``."""
    save_arg: str | None = None
    """Arguments with ``{checkpoint}``."""
    resume_arg: str | None = None
    """Arguments with ``{checkpoint}``."""
    at_step: int | None = None
    """Step after which the script is stopped; default: at its first checkpoint."""
    max_steps: int = STEPS
    """Optimizer steps to compare."""
    module: bool = False
    """Whether ``script`` is a module's name."""


def audit_script(request: ScriptAudit) -> AuditReport:
    """Audit a script.

    Raises
    ------
    ScenarioError
        If options do not fit, or the script fails as it is.
    """
    from simdp.torch import launch
    from simdp.torch.isolation import keep_what_is_freed

    _check(request)
    keep_what_is_freed()
    code = launch.module(request.script) if request.module else launch.script(Path(request.script))
    program = Program(Path(request.script).name, code.file, code)
    return _audit(program, request)


def audit_function(
    train: Callable[[], Any],
    ranks: Sequence[int] = (1, 4),
    exact: bool = False,
    allow: Sequence[str] = (),
    max_steps: int = STEPS,
) -> AuditReport:
    """Audit a function that trains on the rank that calls it.

    Parameters
    ----------
    train : callable
        Called on every rank; it initialises the process group, as a script does.
    ranks, exact, allow, max_steps
        As for `ScriptAudit`.

    Returns
    -------
    AuditReport
        What differs between the numbers of ranks, and why.
    """
    name = getattr(train, "__name__", "train")
    request = ScriptAudit(name, (), tuple(ranks), None, exact, tuple(allow), max_steps=max_steps)
    _check(request)
    return _audit(Program(name, None, train), request)


def _check(request: ScriptAudit) -> None:
    problems = []
    if len(set(request.ranks)) < 2:
        problems.append(
            f"--ranks {','.join(map(str, request.ranks))}: give two numbers of ranks at least, "
            "as 1,2."
        )
    for name, text in (("--save-arg", request.save_arg), ("--resume-arg", request.resume_arg)):
        if text is not None and CHECKPOINT not in text:
            problems.append(
                f"{name} {text!r}: has no {CHECKPOINT}, which stands for the path; write "
                f"'{name.removesuffix('-arg')} {CHECKPOINT}'."
            )
    if (request.save_arg is None) != (request.resume_arg is None):
        options = ["--save-arg", "--resume-arg"]
        name, other = options if request.resume_arg is None else reversed(options)
        problems.append(f"{name}: needs {other} as well, to stop the script and resume it.")
    if request.at_step is not None and request.resume_arg is None:
        problems.append("--at-step: needs --save-arg and --resume-arg, to resume from there.")
    if request.at_step is not None and request.at_step >= request.max_steps:
        problems.append(
            f"--at-step {request.at_step}: nothing is left of {request.max_steps} steps; "
            f"give --max-steps {2 * request.at_step}."
        )
    if request.batch_arg is not None and not re.search(
        r"\{(per_rank|global_batch|ranks)\}", request.batch_arg
    ):
        problems.append(
            f"--batch-arg {request.batch_arg!r}: has none of {{per_rank}}, {{global_batch}} and "
            "{ranks}; write for example '--batch-size {per_rank}'."
        )
    if problems:
        raise ScenarioError(problems)


def _audit(program: Program, request: ScriptAudit) -> AuditReport:
    runner = Runner(program)
    runs = {
        size: Run(size, request.arguments, max_steps=request.max_steps)
        for size in sorted(set(request.ranks))
    }
    notes: list[str] = []
    if request.batch_arg is not None:
        notes.append(_give_batch(runner, request, runs))
    inquiry = Investigation(runner, runs, request.exact, notes=notes)
    inquiry.start()
    resumed: Resumed | None = None
    if len(inquiry.views) > 1:
        _check_steps(program, inquiry)
        inquiry.compare()
        inquiry.epochs()
        inquiry.metrics()
        if request.save_arg is not None and request.resume_arg is not None:
            size = next((size for size in inquiry.sizes if size > 1), inquiry.sizes[0])
            sizes = request.resume_ranks or (size, size)
            for size in sizes:
                runs.setdefault(size, replace(runs[max(runs)], world_size=size))
            save, resume = shlex.split(request.save_arg), shlex.split(request.resume_arg)
            resumed = Resuming(inquiry, save, resume, request.at_step, sizes).check()
    return report(inquiry, program, request, resumed)


def _check_steps(program: Program, inquiry: Investigation) -> None:
    """Raise an error if the script ends without a step on some number of ranks."""
    for view in inquiry.views.values():
        if view.first.replicated is not None and not view.first.calls:
            raise ScenarioError(
                f"audit: {_place(view.first.replicated)}: all devices of "
                "nn.DataParallel are of one rank, and an audit compares numbers of ranks; "
                "wrap the model in DistributedDataParallel."
            )
        staged = next((rank.staged for rank in view.record.ranks if rank.staged is not None), None)
        if staged is not None:
            raise ScenarioError(
                f"audit: {_place(staged)}: gradients of activations come from "
                "another rank, as in a pipeline whose ranks have other layers; an audit "
                "compares ranks that have the whole model."
            )
    idle = [view for view in inquiry.views.values() if not view.first.steps]
    if not idle:
        return
    if len(idle) == len(inquiry.views):
        raise ScenarioError(
            f"audit: {program.name} makes no optimizer step; audit a script that trains, "
            "with arguments that let it."
        )
    size = idle[0].world_size
    printed = idle[0].record.output.strip().splitlines()[-1:]
    last = f", and says {printed[0].strip()!r}" if printed else ""
    raise ScenarioError(
        f"audit: {program.name} makes no optimizer step on {ranks_counted(size)}{last}; "
        f"give other numbers of ranks, as --ranks {2 * size},{4 * size}."
    )


def _place(line: Line) -> str:
    return f"{Path(line.file).name}:{line.line}"


def _give_batch(runner: Runner, request: ScriptAudit, runs: dict[int, Run]) -> str:
    """Give each run its part of the global batch, that of the script on the most ranks."""
    most = max(runs)
    (record,) = runner.run([replace(runs[most], max_steps=1)])
    view = RunView(record)
    total = 0 if record.error else view.samples(0).total()
    if not total:
        raise ScenarioError(
            f"--batch-arg: the samples of a step on {most} ranks were not found; give the "
            "script's own arguments, and leave --batch-arg out."
        )
    template = str(request.batch_arg)
    parts = []
    for size, run in runs.items():
        text = template.format(per_rank=total // size, global_batch=total, ranks=size)
        if ENVIRONMENT.match(text):
            name, _, value = text.partition("=")
            runs[size] = replace(run, environ=((name, value),))
        else:
            runs[size] = replace(run, arguments=(*run.arguments, *shlex.split(text)))
        parts.append(f"{text} on {size}")
    return f"a step has {total} samples: {', '.join(parts)}"


# Report -------------------------------------------------------------------------------------------

ORDER = list(CAUSES)
"""Causes in the order of the report."""


def report(
    inquiry: Investigation, program: Program, request: ScriptAudit, resumed: Resumed | None
) -> AuditReport:
    """Write the report of an audit."""
    findings = _sorted(inquiry.findings, request.allow)
    views = inquiry.views
    sizes = tuple(sorted(set(request.ranks)))
    steps = min((view.count for view in views.values()), default=0)
    worst = max(
        inquiry.checks.values(),
        key=lambda check: (check.seen_twice + check.missed, check.total),
        default=samples.SampleCheck(),
    )
    batches = {view.samples(0).total() for view in views.values()} - {0}
    loaders = [
        view.first.loaders[number].size
        for view in views.values()
        for number in samples.training_loaders(view.first)
    ]
    size = loaders[0] if loaders else None
    return AuditReport(
        program.name,
        sizes,
        steps,
        tuple(findings),
        worst.seen_twice,
        worst.missed,
        None if resumed is None else resumed.same,
        None if resumed is None else resumed.step,
        tuple(_checks(inquiry, findings, resumed)),
        tuple(inquiry.experiments),
        tuple(inquiry.rows),
        tuple(_ledger(inquiry)),
        tuple(_notes(inquiry)),
        batches.pop() if len(batches) == 1 else None,
        size,
    )


def _sorted(findings: Sequence[Finding], allow: Sequence[str]) -> list[Finding]:
    first: dict[tuple[str, int | None], Finding] = {}
    for finding in findings:
        allowed = replace(finding, allowed=finding.cause in allow)
        first.setdefault((finding.cause, finding.line), allowed)
    return sorted(
        first.values(), key=lambda finding: (not finding.wrong, ORDER.index(finding.cause))
    )


def _notes(inquiry: Investigation) -> list[str]:
    notes = list(dict.fromkeys(inquiry.notes))
    views = list(inquiry.views.values())
    if any(rank.compiled for view in views for rank in view.record.ranks):
        notes.append("torch.compile: what it compiles ran eager")
    if inquiry.exact:
        notes.append("float64: parameters, data and autocast were lifted")
    notes += [
        f"runs read {path}, which an earlier run wrote: they cannot be compared if the script "
        "goes on from there"
        for path in sorted(inquiry.runner.earlier)[:3]
    ]
    if inquiry.rounding.lost is not None:
        notes.append(
            f"from step {inquiry.rounding.lost} on, rounding changes tensors by an eighth and "
            f"more, and nothing is compared{'' if inquiry.exact else '; see --exact'}"
        )
    counts = {view.world_size: view.samples(0).total() for view in views}
    if len(set(counts.values())) > 1:
        sizes = ", ".join(f"{count} on {size}" for size, count in sorted(counts.items()))
        notes.append(f"samples of a step depend on the number of ranks: {sizes}; see --batch-arg")
    elif counts and not any("a step has" in note for note in notes):
        notes.append("the script gives all numbers of ranks the same global batch")
    notes.append(f"{inquiry.runner.count} runs took {inquiry.runner.seconds:.0f} s of CPU time")
    return notes


def _status(findings: Sequence[Finding], causes: Sequence[str]) -> Status | None:
    wrong = [finding.wrong for finding in findings if finding.cause in causes]
    if not wrong:
        return None
    return "differ" if any(wrong) else "allowed"


SAMPLE_CAUSES = (
    *("different_seed_split", "same_data_on_every_rank", "sampler_padding_duplicates"),
    "last_batch_smaller",
)
ALSO_GRADIENTS = (*SAMPLE_CAUSES, "unsynchronised_parameters", "schedule_steps_with_world_size")
"""Causes that other checks show, and gradients too."""

ELSEWHERE = (
    *SAMPLE_CAUSES,
    *("set_epoch_missing", "unsynchronised_parameters", "collectives_differ"),
    *("unused_parameters", "resume_sampler_position", "resume_optimizer_state"),
    *("metric_averaged_wrongly", "schedule_steps_with_world_size"),
)


def _checks(
    inquiry: Investigation, findings: Sequence[Finding], resumed: Resumed | None
) -> list[Check]:
    topics = (_gradients, _samples, _epoch, _schedule, _state, _metrics)
    checks = [topic(inquiry, findings) for topic in topics] if len(inquiry.views) > 1 else []
    if resumed is not None:
        checks.append(Check("resume", "ok" if resumed.same else "differ", resumed.text))
    status = _status(findings, ["collectives_differ", "unused_parameters"])
    text = "ranks do not make the same ones"
    if status is None:
        text = "same order, shape and dtype on every rank"
    return [*checks, Check("collectives", status or "ok", text)]


def _gradients(inquiry: Investigation, findings: Sequence[Finding]) -> Check:
    rows = [row for row in inquiry.rows if row.stage == "gradient"]
    causes = [finding.cause for finding in findings if finding.cause not in ELSEWHERE]
    differences = inquiry.differences.values()
    if not rows and not causes:
        if not any(difference.compared for difference in differences):
            return Check("gradients", "not checked", "rounding may explain any difference")
        worst = max((difference.size for difference in differences), default=0.0)
        return Check("gradients", "ok", f"agree to {worst:.0e}, as rounding explains")
    status = _status(findings, causes) or _status(findings, ALSO_GRADIENTS) or "differ"
    if not rows:
        unequal = next(iter(_unequal(inquiry).values()), None)
        text = "agree"
        if unequal is not None:
            text = f"of {unequal.name} differ between ranks at step {unequal.step}"
        return Check("gradients", status, text)
    row = rows[0]
    return Check(
        "gradients",
        status,
        f"first at step {row.step}, {row.name}, {row.ranks[0]} and {row.ranks[1]} ranks: "
        f"{row.size:.0e} relative (rounding explains {row.bound:.0e})",
    )


def _samples(inquiry: Investigation, findings: Sequence[Finding]) -> Check:
    status = _status(findings, SAMPLE_CAUSES)
    worst = max(
        inquiry.checks.values(),
        key=lambda check: (check.seen_twice + check.missed, check.differing),
    )
    if not worst.steps:
        return Check("samples", "not checked", "no loader, and no batch on the model's input")
    text = (
        f"{worst.seen_twice} of {worst.total} seen twice, {worst.missed or 'none'} missed; "
        f"{worst.differing or 'none'} of {worst.steps} steps "
        f"{'has' if worst.differing == 1 else 'have'} other samples"
    )
    return Check("samples", status or "ok", text)


def _epoch(inquiry: Investigation, findings: Sequence[Finding]) -> Check:
    view = inquiry.views[inquiry.sizes[-1]]
    status = _status(findings, ["set_epoch_missing"])
    loaders = samples.training_loaders(view.first)
    epochs = {batch.epoch for batch in view.first.batches if batch.loader in loaders}
    if status is not None:
        return Check("epoch 2", status, "same order as epoch 1")
    if len(epochs) < 2:
        return Check("epoch 2", "not checked", "the steps end within the first epoch")
    return Check("epoch 2", "ok", f"{len(epochs)} epochs begun, no shuffled order repeats")


def _schedule(inquiry: Investigation, findings: Sequence[Finding]) -> Check:
    status = _status(findings, ["schedule_steps_with_world_size"])
    if status is not None:
        return Check("schedule", status, "learning rates depend on the number of ranks")
    if inquiry.follows_samples:
        return Check("schedule", "ok", "learning rates follow the samples or the end of training")
    return Check("schedule", "ok", "same learning rates on any number of ranks")


def _unequal(inquiry: Investigation) -> dict[int, Unequal]:
    by_size = {size: replicas(view) for size, view in inquiry.views.items()}
    return {size: unequal for size, unequal in by_size.items() if unequal is not None}


def _state(inquiry: Investigation, findings: Sequence[Finding]) -> Check:
    unequal = _unequal(inquiry)
    if not unequal:
        return Check("replicas", "ok", "identical at every step")
    size, (stage, name, step, difference) = next(iter(unequal.items()))
    causes = [finding.cause for finding in findings if finding.cause not in SAMPLE_CAUSES]
    return Check(
        "replicas",
        _status(findings, causes) or "differ",
        f"{stage} of {name} differ by {difference:.0e} between {size} ranks at step {step}",
    )


def _metrics(inquiry: Investigation, findings: Sequence[Finding]) -> Check:
    status = _status(findings, ["metric_averaged_wrongly"])
    if status is not None:
        return Check("metrics", status, "depend on the number of ranks")
    if inquiry.unclear is not None:
        text = f"what ranks reduce at {_place(inquiry.unclear)} differs; no experiment shows why"
        return Check("metrics", "not checked", text)
    return Check("metrics", "ok", "no reduced metric depends on the number of ranks alone")


def _ledger(inquiry: Investigation) -> list[SampleRow]:
    rows = []
    for size, view in sorted(inquiry.views.items()):
        for step in range(min(view.count, LISTED)):
            for rank, passes in enumerate(view.backwards(step)):
                drawn = tuple(sample for _, backward in passes for sample in backward.samples)
                epoch = 0
                if passes and passes[0][1].batch is not None:
                    epoch = view.record.ranks[rank].batches[passes[0][1].batch].epoch
                rows.append(SampleRow(size, rank, step + 1, epoch + 1, drawn))
    return rows
