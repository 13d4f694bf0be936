"""Simulates a replayed scenario with each change that may shorten its step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from simdp.errors import ScenarioError, unknown_name
from simdp.keys import written
from simdp.results.diagnosis import Cause, Remedy
from simdp.scenario.overrides import Raw
from simdp.strategies import strategy_class
from simdp.studies.replay.scenario import Replayed, replay_of, seconds
from simdp.traces import RankTrace
from simdp.units import format_quantity, parse

LEAST_GAIN = 0.002  # smallest fraction of a step by which a remedy shortens it

LEAST_EXACT = 0.05
"""Smallest such fraction of a change that needs no hardware and keeps gradients and batches."""

BUCKETS_MIB = (5, 50, 100)  # limits of buckets that are tried
FACTORS = (2, 4)  # by which micro-batches, micro-steps and workers are multiplied

FASTER_LINK = 4

COMPILED = "CompiledFxGraph"  # part of the annotation of a graph that torch.compile made

REDUCE_OVERHEAD = 'CUDA graphs (torch.compile with mode="reduce-overhead")'
"""Change that leaves a compiled job without launches."""

ALGORITHMS = ("ring", "tree", "halving_doubling")
"""Of an all_reduce, where its transfers are played."""


@dataclass(frozen=True)
class ScenarioChange:
    """A change to a scenario."""

    text: str  # its description
    settings: Raw  # dotted keys
    # steps of the job that one step of the changed one stands for: its samples over theirs
    times: float = 1.0


def remedies(traces: Sequence[RankTrace], cause: str, machine: str | None = None) -> list[Remedy]:
    """Simulate the changes that may help against a cause.

    Parameters
    ----------
    traces : sequence of RankTrace
        Of one rank, or of several of the same job.
    cause : str
        A cause of `simdp.results.diagnosis`.
    machine : str, optional
        As for `replay_of`.

    Returns
    -------
    list of Remedy
        The best first, without what does not help; before them exact changes that gain
        `LEAST_EXACT`, which cost nothing. Their times are those of as many samples as a
        step of the job has, on the same base as `Replayed.simulate`.

    Raises
    ------
    ScenarioError
        If there is no such cause, or nothing to replay.
    """
    if cause not in get_args(Cause):
        raise ScenarioError(f"{unknown_name('cause', cause, get_args(Cause))}")
    kinds = AGAINST[cause]
    if not kinds:
        return []
    replayed = replay_of(traces, machine=machine)
    base = step_time(replayed)
    is_compiled = any(COMPILED in name for trace in traces for name in trace.host.names)
    helpful = list[tuple[bool, Remedy]]()
    for kind in kinds:
        tried = []
        for change in kind(replayed):
            try:
                time = step_time(replayed, change.settings) / change.times
            except ScenarioError:  # which this cluster or strategy cannot have
                continue
            tried.append(Remedy(_for_compiled(change.text, is_compiled), time))
        best = min(tried, key=lambda tried_remedy: tried_remedy.step_time_s, default=None)
        if best is not None and best.step_time_s < (1 - LEAST_GAIN) * base:
            is_first = kind in EXACT and best.step_time_s <= (1 - LEAST_EXACT) * base
            helpful.append((is_first, best))
    helpful.sort(key=lambda tried_remedy: (not tried_remedy[0], tried_remedy[1].step_time_s))
    return [remedy for _, remedy in helpful]


def _for_compiled(text: str, is_compiled: bool) -> str:
    """The text of a change to a job that torch.compile has compiled already, or not."""
    if not is_compiled:
        return text
    return text.replace("CUDA graphs or torch.compile", REDUCE_OVERHEAD)


def step_time(replayed: Replayed, settings: Raw | None = None) -> float:
    """Time of a steady step of a replay, with keys set [s]."""
    return float(replayed.simulate(settings).metrics.step_time_s)


# Changes; of each kind the best counts ------------------------------------------------------------


def _bucket(replayed: Replayed) -> Iterator[ScenarioChange]:
    if replayed.sharded in ("nothing", "gradients"):
        for mib in BUCKETS_MIB:
            yield ScenarioChange(f"bucket_cap_mb={mib}", {"strategy.bucket_cap": f"{mib} MiB"})


def _hook(replayed: Replayed) -> Iterator[ScenarioChange]:
    if replayed.sharded == "nothing" and "comm_hook" not in replayed.strategy:
        yield ScenarioChange(
            "gradients sent in 16 bit (comm hook bf16_compress)", {"strategy.comm_hook": "bf16"}
        )


def _sync(replayed: Replayed) -> Iterator[ScenarioChange]:
    strategy = replayed.strategy
    if replayed.workload.get("grad_accum", 1) > 1:
        known = strategy_class(strategy.get("kind"))
        for key, value in known.sync_once.items():
            if strategy.get(key, known.model_fields[key].default) != value:
                text = f"gradients exchanged once a step (strategy.{key}: {written(value)})"
                yield ScenarioChange(text, {f"strategy.{key}": value})


def _accumulate(replayed: Replayed) -> Iterator[ScenarioChange]:
    now = int(replayed.workload.get("grad_accum", 1))
    for factor in FACTORS:
        yield ScenarioChange(
            f"gradients accumulated over {now * factor} micro-batches "
            f"(time of {'one' if now == 1 else now}, as a step has now)",
            {"workload.grad_accum": now * factor},
            factor,
        )


def _larger(replayed: Replayed) -> Iterator[ScenarioChange]:
    now = int(replayed.workload["microbatch"])
    yield ScenarioChange(
        "a micro-batch twice as large (time of as many samples as a step has now)",
        {"workload.microbatch": 2 * now},
        2,
    )


def _algorithm(replayed: Replayed) -> Iterator[ScenarioChange]:
    if "machine" not in replayed.scenario["cluster"]:
        for name in ALGORITHMS:
            yield ScenarioChange(f"all_reduce by {name}", {"collectives.all_reduce": name})


def _graphs(replayed: Replayed) -> Iterator[ScenarioChange]:
    settings: Raw = {"workload.cuda_graphs": True}
    host = parse(replayed.workload.get("host", {}).get("step", "0 s"), "time")
    if replayed.update_gap_s:
        rest = max(host - replayed.update_gap_s, 0.0)
        settings["workload.host.step"] = seconds(rest)
    yield ScenarioChange("CUDA graphs or torch.compile: kernels without launch gaps", settings)


def _replaced(replayed: Replayed) -> Iterator[ScenarioChange]:
    """Each rank that is slow or late in its steps, as fast as the others; and all of them."""
    for rank in replayed.slow_ranks:
        others = [straggler for straggler in replayed.stragglers if straggler.get("rank") != rank]
        yield ScenarioChange(f"rank {rank} replaced", {"cluster.stragglers": others})


def _even(replayed: Replayed) -> Iterator[ScenarioChange]:
    if replayed.slow_ranks:
        others = [straggler for straggler in replayed.stragglers if "rank" not in straggler]
        yield ScenarioChange("work dealt evenly to all ranks", {"cluster.stragglers": others})


def _workers(replayed: Replayed) -> Iterator[ScenarioChange]:
    given = replayed.workload.get("input")
    if given is None:
        return
    now = int(given["workers"])
    for workers in (factor * max(now, 1) for factor in FACTORS):
        yield ScenarioChange(
            f"{workers / max(now, 1):g} times the loader's workers"
            if now
            else f"{workers} loader workers in place of none",
            {"workload.input.workers": workers},
        )


def _link(replayed: Replayed) -> Iterator[ScenarioChange]:
    for key, bandwidth in replayed.links().items():
        faster = format_quantity(FASTER_LINK * bandwidth, "bandwidth")
        where = "between nodes" if "inter_node" in key else "between ranks"
        yield ScenarioChange(f"links {where} {FASTER_LINK} times as fast", {key: faster})


Kind = Callable[[Replayed], Iterator[ScenarioChange]]

EXACT: tuple[Kind, ...] = (_sync, _bucket, _algorithm, _graphs, _workers)
"""Changes that need no hardware and keep gradients and batches as they are."""

AGAINST: dict[str, tuple[Kind, ...]] = {
    "launch_bound": (_graphs, _larger, _accumulate),
    "exposed_communication": (_sync, _bucket, _hook, _accumulate, _algorithm, _larger, _link),
    "straggler": (_replaced, _even),
    "imbalance": (_even, _replaced),
    "input_stall": (_workers,),
    "compute_bound": (_graphs, _larger),
    "slow_link": (_sync, _link, _hook, _accumulate, _bucket, _algorithm),
    "desynchronised": (),
    "host_synchronisation": (),
    "copies": (),
    "many_small_collectives": (),
    "uneven_steps": (),
    "unused_parameters": (),
    "unexplained": (),
}
"""Changes that are tried against each cause: what cannot be simulated, or has no name, has none."""
