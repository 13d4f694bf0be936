"""Real gloo on two processes is predicted from the trace of one rank.

Both are pinned to a core, and take turns with steps alone (each rank is a group of its own),
steps together, and single all_reduces, round by round. The clock is what a process takes of its
core, gloo's threads with it: other work on the cores multiplies wall times, and this stands still
meanwhile. On quiet cores both are the same but for what ranks wait for each other.
"""

import json
import os
import statistics
from dataclasses import replace

import numpy as np
import pytest

from simdp.studies.replay.scenario import replay_of
from simdp.traces import read_trace

torch = pytest.importorskip("torch")

WIDTH, BATCH, CAP_MB, ROUNDS = 1024, 128, 5, 16

SCRIPT = f"""
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

folder, rank = sys.argv[1], int(os.environ["RANK"])
os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
torch.set_num_threads(1)

def trained(group):
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear({WIDTH}, {WIDTH}), nn.ReLU())]
    layers = nn.Sequential(*layers, nn.Linear({WIDTH}, 10))
    model = DistributedDataParallel(layers, bucket_cap_mb={CAP_MB}, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn({BATCH}, {WIDTH}), torch.randint(0, 10, ({BATCH},))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    for _ in range(4):
        step()
    return model, step

def timed(call):
    dist.barrier()
    begin = time.process_time()
    call()
    return time.process_time() - begin

dist.init_process_group("gloo")
groups = [dist.new_group([each]) for each in range(2)]
_, alone = trained(groups[rank])
model, together = trained(None)
sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
buffers = [torch.ones(int(size) // 4) for size in sizes.split(",")]
said = {{"sizes": [4 * len(one) for one in buffers], "alone": [], "together": [], "reduces": []}}
for _ in range({ROUNDS}):
    said["alone"].append(timed(alone))
    said["together"].append(timed(together))
    said["reduces"].append([timed(lambda: dist.all_reduce(one)) for one in buffers])
dist.barrier()
with open(folder + f"/said{{rank}}.json", "w") as file:
    json.dump(said, file)
dist.destroy_process_group()

store = dist.FileStore(folder + f"/store{{rank}}", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
_, alone = trained(None)
found = schedule(wait=0, warmup=2, active=20, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=found, record_shapes=True) as profiler:
    for _ in range(22):
        alone()
        profiler.step()
if rank == 0:
    profiler.export_chrome_trace(folder + "/trace.json")
dist.destroy_process_group()
"""

NOISE = 1 / 30
"""Standard error of the rounds' median, as a part of it, from which on they say too little."""


def of_quiet_steps(trace):
    """The trace with every step forgotten but its quietest quarter."""
    length = trace.steps.end - trace.steps.start
    kept = np.argsort(length)[: len(length) // 4]

    def only(events):
        return replace(events, step=np.where(np.isin(events.step, kept), events.step, -1))

    return replace(trace, kernels=only(trace.kernels), collectives=only(trace.collectives))


def predicted(found, folder, said, alone):
    """What a step of two ranks takes, by the trace of one and what is sent alone [s]."""
    # The trace's steps are longer by what the profiler and other work took: so is all else.
    longer = found.simulate().metrics["step_time_s"] / alone
    sent = {}
    for each in said:
        for times in each["reduces"]:
            for size, seconds in zip(each["sizes"], times, strict=True):
                sent.setdefault(size, []).append(seconds)
    rows = [f"{size},{longer * statistics.median(sent[size]) * 1e6}" for size in sorted(sent)]
    table = folder / "all_reduce.csv"
    table.write_text("\n".join(["# nranks: 2", "size_bytes,time_us", *rows]) + "\n")
    settings = {
        "cluster.world_size": 2,
        "collectives.cost": {"kind": "table", "path": str(table)},
    }
    return found.simulate(settings).metrics["step_time_s"] / longer


def noise(ratios):
    """Standard error of a median, as a part of it, from the middle half of what it is of."""
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return 1.25 * (high - low) / 1.35 / np.sqrt(len(ratios)) / middle


def test_two_processes_take_what_one_rank_and_all_reduces_tell(really, tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks need two cores")
    really(SCRIPT, 2, tmp_path)
    said = [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in range(2)]
    trace = of_quiet_steps(read_trace(tmp_path / "trace.json"))
    found = replay_of([trace], machine="cpu-gloo-2core")
    assert found.num_ranks == 1
    assert len(found.simulate().metrics["bucket_bytes"]) == len(said[0]["sizes"])
    alone, measured = (
        statistics.median(seconds for each in said for seconds in each[name])
        for name in ("alone", "together")
    )
    ratios = [b / a for one in said for a, b in zip(one["alone"], one["together"], strict=True)]
    if noise(ratios) > NOISE:
        pytest.skip(f"other work has the cores: rounds tell no more than {noise(ratios):.0%}")
    assert measured > 1.05 * alone
    assert predicted(found, tmp_path, said, alone) == pytest.approx(measured, rel=0.1)
