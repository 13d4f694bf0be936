"""Reads DDP's logging data, which needs no profiler."""

from __future__ import annotations

from simdp.reports.figures import percent, seconds
from simdp.results.diagnosis import BucketRow, Diagnosis, Finding
from simdp.studies.diagnose.expected import ITEMSIZE
from simdp.studies.diagnose.gradient_buckets import rule_in_words
from simdp.traces import DdpLogging


def diagnose_logging(logged: DdpLogging) -> Diagnosis:
    """Tell what the means of a run say.

    The time of a step is forward and backward: what the optimizer, data and the host take is not
    in the data.
    """
    forward, backward = logged.forward_s, logged.backward_s
    comm, hidden = logged.backward_comm_s, logged.overlap_s
    exposed = None if comm is None or hidden is None else max(comm - hidden, 0.0)
    step = None
    if forward is not None and backward is not None:
        step = forward + backward + (exposed or 0.0)
    remarks = [
        "DDP's logging data knows forward, backward and gradients of one rank alone: step times "
        "are without optimizer, data and host, and communication includes waiting for late ranks."
    ]
    if step is None:
        remarks.append("It holds no times: they come with the first sampled iterations.")
    compute = None if step is None else step - (exposed or 0.0)
    buckets = _buckets(logged)
    return Diagnosis(
        source="ddp_logging",
        step_time_s=step,
        compute_s=compute,
        exposed_comm_s=exposed,
        hidden_comm_s=hidden,
        idle_s=None,
        num_ranks=1,
        buckets=buckets,
        verdict=_verdict(step, compute, exposed),
        world_size=logged.world_size,
        num_steps=logged.iteration or 0,
        steps_are="forward and backward",
        bucket_rule=rule_in_words(buckets),
        remarks=tuple(remarks),
    )


def _buckets(logged: DdpLogging) -> tuple[BucketRow, ...]:
    dtype = logged.dtypes[0] if len(logged.dtypes) == 1 else ""
    item = ITEMSIZE.get(dtype)
    if item is None:
        return ()
    return tuple(BucketRow(nbytes // item, dtype) for nbytes in logged.bucket_nbytes)


def _verdict(
    step: float | None, compute: float | None, exposed: float | None
) -> tuple[Finding, ...]:
    if not step or compute is None or exposed is None:
        return ()
    told = [
        Finding(
            "exposed_communication",
            exposed / step,
            f"gradients travel in the open for {seconds(exposed)} of {seconds(step)} of forward "
            f"and backward ({percent(exposed / step)}); whether links or late ranks are to blame "
            "takes traces.",
            seconds=exposed,
        ),
        Finding(
            "compute_bound",
            compute / step,
            f"forward and backward compute for {seconds(compute)} of {seconds(step)} "
            f"({percent(compute / step)}).",
            seconds=compute,
        ),
    ]
    return tuple(told if exposed >= WORTH * step else told[::-1])


WORTH = 0.1
"""As in `simdp.studies.diagnose.verdict`."""
