"""Why steps are slow or uneven, from progress bars and lines of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from simdp.reports.figures import percent, seconds
from simdp.results.diagnosis import Finding
from simdp.traces.logs import JobLog, ProgressLog

SLOWER = 2.0  # factor between two logs from which their speeds differ
LONG = 3.0  # factor above the median from which a step counts as long
ENOUGH = 6  # steps from which the median means something
LOW_MFU = 0.2  # model FLOPs utilisation below which a step of large matrix products is slow


def step_times(progress: ProgressLog) -> list[tuple[int, float]]:
    """Steps and their times, from lines of steps, else from a bar's states [s]."""
    timed = [(step.step, step.seconds) for step in progress.steps if step.seconds]
    if timed:
        return timed
    bars = progress.training()
    return [
        (after.done, (after.elapsed_s - before.elapsed_s) / (after.done - before.done))
        for before, after in pairwise(bars)
        if before.total == after.total and after.done > before.done
    ]


def usual_step(progress: ProgressLog) -> float | None:
    """Time of a step: the median of steps, else what the last bar says [s]."""
    times = [time for _, time in step_times(progress)]
    if times:
        return median(times)
    rates = [bar.seconds for bar in progress.training() if bar.seconds]
    return rates[-1] if rates else None


def progress_findings(logs: Sequence[JobLog]) -> Iterator[Finding]:
    """Find steps that are long, and logs whose steps are much longer than another's."""
    timed = [(log, time) for log in logs if log.progress and (time := usual_step(log.progress))]
    if len(timed) > 1:
        (fast, least), (slow, most) = (f(timed, key=lambda pair: pair[1]) for f in (min, max))
        if most > SLOWER * least:
            yield Finding.in_text(
                "exposed_communication",
                f"a step takes {seconds(most)} in {slow.name} and {seconds(least)} in {fast.name}: "
                f"{most / least:.3g} times as long.",
                expected=f"{seconds(least)}, as in {fast.name}",
                obtained=str(seconds(most)),
                remedy="if the slower job has more nodes, the network between them: diagnose its "
                "NCCL_DEBUG=INFO log",
                confidence="possible",
            )
    for log in logs:
        if log.progress is not None:
            yield from _uneven(log.progress)
            yield from _utilisation(log.progress)


def _uneven(progress: ProgressLog) -> Iterator[Finding]:
    times = step_times(progress)
    if len(times) < ENOUGH:
        return
    usual = median(time for _, time in times)
    long = [(step, time) for step, time in times[1:] if time > LONG * usual]
    lost = sum(time - usual for _, time in long)
    whole = sum(time for _, time in times)
    if not long or lost < 0.05 * whole:
        return
    gaps = {after[0] - before[0] for before, after in pairwise(long)}
    every = f", every {gaps.pop()} steps" if len(gaps) == 1 and len(long) > 2 else ""
    listed = ", ".join(str(step) for step, _ in long[:5])
    yield Finding.in_text(
        "uneven_steps",
        f"{len(long)} of {len(times)} steps take more than {LONG:.0f} times the usual "
        f"{seconds(usual)} (steps {listed}{every}): {percent(lost / whole)} of the time.",
        expected=f"{seconds(usual)} a step",
        obtained=f"up to {seconds(max(time for _, time in long))}",
        remedy="look at what happens in these steps: checkpoints, evaluation, the data loader's "
        "next file; record a trace of one",
        confidence="possible",
    )


def _utilisation(progress: ProgressLog) -> Iterator[Finding]:
    known = [step.mfu for step in progress.steps if step.mfu]
    if not known or (usual := median(known)) >= LOW_MFU:
        return
    yield Finding.in_text(
        "unexplained",
        f"the model FLOPs utilisation is {percent(usual)}: most of a step is not compute, or its "
        "kernels are small.",
        expected="30 to 50 % for models with large matrix products",
        obtained=str(percent(usual)),
        remedy="compare with one node; record a trace, or diagnose NCCL's log of the same job",
        confidence="possible",
    )
