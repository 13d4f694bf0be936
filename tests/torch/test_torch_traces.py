"""What real torch says of DDP with gloo on CPU: traces, logging data, the flight recorder."""

import numpy as np
import pytest

from simdp.traces import (
    COMMUNICATION,
    COMPUTE,
    kind_of,
    read_ddp_logging,
    read_flight_records,
    read_trace,
    read_traces,
)

torch = pytest.importorskip("torch")

JOB = """
import json
import sys
import time
from pathlib import Path
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, schedule

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, folder = dist.get_rank(), Path(sys.argv[1])
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 10))
net[2].register_full_backward_hook(lambda *_: time.sleep(0.2 * rank))
ddp = DDP(net, bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)


def save(profiler):
    profiler.export_chrome_trace(str(folder / f"trace_{rank}.json.gz"))


with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=save,
    record_shapes=True,
    with_stack=True,
) as profiler:
    for number in range(4):
        x, y = torch.randn(64, 256), torch.randint(10, (64,))
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if number == 3:
            whole = [torch.empty(3) for _ in range(dist.get_world_size())]
            dist.all_gather(whole, torch.ones(3))
            dist.reduce_scatter_tensor(torch.empty(4), torch.ones(4 * len(whole)))
        profiler.step()
(folder / f"ddp_{rank}.log").write_text(json.dumps(ddp._get_ddp_logging_data()))
dist.destroy_process_group()
"""
BUCKETS = [10 * 513 + 512 * 513, 512 * 257]
"""Elements of the two buckets, once they are rebuilt in the order of gradients."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {size: tmp_path_factory.mktemp(f"world{size}") for size in (1, 2)}


@pytest.fixture
def traces_of(folders, really):
    def traces_of(size):
        if not any(folders[size].iterdir()):
            really(JOB, size, folders[size])
        return read_traces(folders[size])

    return traces_of


def names(columns):
    return [columns.names[code] for code in columns.name]


@pytest.mark.parametrize("size", [1, 2])
def test_steps_operators_and_collectives_of_every_rank(traces_of, size):
    traces = traces_of(size)
    assert [trace.rank for trace in traces] == list(range(size))
    for trace in traces:
        assert (trace.source, trace.world_size, trace.device_name) == ("kineto", size, None)
        assert trace.groups["0"].ranks == tuple(range(size))
        assert trace.groups["0"].backend == "gloo"
        assert trace.steps.number.tolist() == [2, 3]
        kernels, found = trace.kernels, trace.collectives
        assert names(found) == ["all_reduce"] * 4 + ["all_gather", "reduce_scatter"]
        sizes = found.num_elements.tolist()  # gloo's two threads may start a step's buckets at once
        assert [sorted(sizes[:2]), sorted(sizes[2:4])] == [sorted(BUCKETS)] * 2
        assert sizes[4:] == [3, 4 * size]
        assert set(found.dtype.tolist()) == {"float32"}
        assert found.step.tolist() == [0, 0, 1, 1, 1, 1]
        assert (kernels.kind[found.kernel] == COMMUNICATION).all()
        assert (found.enqueued <= found.end).all()
        mine = kernels.kind == COMPUTE
        done = {kernels.names[code] for code in kernels.name[mine]}
        assert {"aten::linear", "aten::cross_entropy_loss"} <= done
        stream = int(np.bincount(kernels.stream[mine] - kernels.stream.min()).argmax())
        on_it = mine & (kernels.stream == stream + kernels.stream.min())
        assert (kernels.start[on_it][1:] >= kernels.end[on_it][:-1] - 1e-9).all(), "one by one"
        assert [said.split(":")[0] for said in trace.remarks] == ["No device is in it"]


def test_the_ranks_share_a_clock_and_the_late_one_enters_last(traces_of):
    first, second = traces_of(2)
    ends = [trace.origin_ns + trace.collectives.end * 1e9 for trace in (first, second)]
    assert np.median(np.abs(ends[0] - ends[1])) < 30e6  # either process may be held up once
    waited = [(t.collectives.end - t.collectives.start)[1:4:2] for t in (first, second)]
    assert (waited[0] - waited[1]).min() > 0.02, "rank 1 sleeps between its buckets"


def test_the_logging_data_says_the_same_buckets(traces_of, folders):
    traces_of(2)
    path = folders[2] / "ddp_1.log"
    assert kind_of(path) == "ddp_logging"
    found = read_ddp_logging(path)
    assert (found.rank, found.world_size, found.backend) == (1, 2, "gloo")
    assert found.bucket_nbytes == tuple(4 * size for size in BUCKETS)
    assert found.parameter_nbytes == 4 * sum(BUCKETS)
    assert found.dtypes == ("float32",)
    assert found.backward_s > found.forward_s > 0


def test_a_real_trace_that_is_cut_is_read_as_far_as_it_goes(traces_of, folders, tmp_path):
    whole = traces_of(1)[0]
    packed = (folders[1] / "trace_0.json.gz").read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) // 6])
    cut = read_trace(tmp_path / "cut.json.gz")
    assert 0 < len(cut.host) < len(whole.host)
    assert cut.remarks[0].startswith("The file ends in the middle")


DUMP = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(5))
dist.broadcast(torch.ones(2, 3, dtype=torch.float64), 0)
path = Path(sys.argv[1], f"dump_{dist.get_rank()}")
path.write_bytes(c10d._dump_fr_trace())
path.with_suffix(".json").write_bytes(c10d._dump_fr_trace_json())
"""


def test_the_flight_recorder_of_this_torch(tmp_path, really, monkeypatch):
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch records NCCL's collectives only")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "20")
    really(DUMP, 2, tmp_path)
    for ending in ("", ".json"):
        folder = tmp_path / f"dumps{ending}"
        folder.mkdir()
        for path in tmp_path.glob(f"dump_?{ending}"):
            path.rename(folder / path.name)
        assert kind_of(folder) == "flight_records"
        records = read_flight_records(folder)
        assert [record.rank for record in records] == [0, 1]
        for record in records:
            first, second = record.entries
            assert (first.name, second.name) == ("all_reduce", "broadcast")
            assert (first.sequence, second.sequence) == (1, 2)
            assert (first.input_sizes, second.input_sizes) == (((5,),), ((2, 3),))
            assert second.input_dtypes == ("float64",)
            assert record.groups["0"].ranks == (0, 1)
            assert record.status["0"].last_enqueued == 2
