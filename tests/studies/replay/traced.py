"""What several tests of replays share: scenarios, their traces, and what is made of these."""

import copy
from pathlib import Path

from simdp.engine.simulate import simulate
from simdp.reports.chrome_trace import write
from simdp.scenario import checked
from simdp.studies.replay.scenario import replay_of
from simdp.studies.variants import timed_only
from simdp.traces import read_traces


def scenario(machine="dgx-a100", model="resnet18", strategy="ddp", n=2, cluster=None, **workload):
    """A scenario whose compute takes 20 ms, as plain data."""
    measured = {"kind": "measured", "points": [{"microbatch": 8, "step_time": "20 ms"}]}
    return {
        "name": "job",
        "cluster": {"machine": machine, "world_size": n, **(cluster or {})},
        "workload": {
            "model": model,
            "microbatch": 8,
            "optimizer": {"kind": "sgd", "lr": 0.1},
            "compute": measured,
            "steps": 3,
            **workload,
        },
        "strategy": strategy,
    }


def played(raw, base=Path()):
    """The result of its times alone."""
    return simulate(timed_only(checked(copy.deepcopy(raw), base)))


def step_time(raw, base=Path()):
    return played(raw, base).metrics["step_time_s"]


def traces_of(raw, folder, by_rank=False):
    """The traces that a scenario's run writes, read again."""
    result = played(raw)
    if by_rank:
        result.save_traces(folder / "ranks")
        return read_traces(folder / "ranks")
    path = folder / "trace.json"
    path.write_text(write(result))
    return read_traces(path)


def with_keys(raw, **cluster):
    """The same with other keys of the cluster."""
    return {**raw, "cluster": {**raw["cluster"], **cluster}}


def replayed(raw, folder, by_rank=False, **asked):
    return replay_of(traces_of(raw, folder, by_rank), **asked)
