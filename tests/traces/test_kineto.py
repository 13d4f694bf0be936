import json

import numpy as np
import pytest
from for_each import for_each
from kineto import NCCL, document, event, kernel, launch, one_step, put, record, said, step

from simdp.traces import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    OP,
    RUNTIME,
    SET,
    SYNC,
    TraceGroup,
    read_trace,
)
from simdp.traces.intervals import Instants


def trace_of(tmp_path, events, name="trace.json", **fields):
    return read_trace(put(tmp_path / name, document(events, **fields)))


def names(columns):
    return [columns.names[code] for code in columns.name]


def test_kernels_belong_to_the_step_and_operator_that_launched_them(tmp_path):
    late = [launch(90, 99, 0.5), kernel(90, 150, 30)]
    trace = trace_of(tmp_path, [*one_step(), *late, *one_step(100, 2)])
    kernels = trace.kernels
    assert trace.steps.number.tolist() == [1, 2]
    assert trace.steps.end - trace.steps.start == pytest.approx([1e-4, 1e-4])
    assert kernels.start * 1e6 == pytest.approx([10, 30, 50, 110, 130, 150, 150])
    assert kernels.step.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert kernels.launched[:3] * 1e6 == pytest.approx([2, 22, 45])
    assert kernels.launch_end[0] * 1e6 == pytest.approx(7)
    held = [trace.host.names[trace.host.name[op]] if op >= 0 else "" for op in kernels.op[:3]]
    assert held == ["aten::mm", "record_param_comms", ""]


def test_what_is_told_of_the_job_and_its_device(tmp_path):
    trace = trace_of(tmp_path, one_step(1000.25), rank=1, base=1_700_000_000_000_000_000)
    assert (trace.source, trace.rank, trace.world_size) == ("kineto", 1, 2)
    assert trace.device_name == "NVIDIA A100-SXM4-80GB"
    assert trace.groups == {"0": TraceGroup("0", "default_pg", "nccl", (0, 1), 2)}
    assert trace.origin_ns == 1_700_000_000_001_000_250
    assert trace.remarks == ()


def test_kinds_of_events_and_their_bytes(tmp_path):
    events = [
        *one_step(),
        kernel(70, 60, 2, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", bytes=4096),
        kernel(71, 63, 2, "Memset (Device)", category="gpu_memset", bytes=8),
        kernel(72, 66, 2, "Stream Sync", category="cuda_sync"),
        event("gpu_user_annotation", "ProfilerStep#1", 0, 100, 7, 0),
    ]
    trace = trace_of(tmp_path, events)
    kinds = [COMPUTE, COMMUNICATION, COMPUTE, COPY, SET, SYNC]
    assert trace.kernels.kind.tolist() == kinds
    assert np.nan_to_num(trace.kernels.nbytes, nan=-1).tolist() == [-1, -1, -1, 4096, 8, -1]
    assert trace.kernels.stream.tolist() == [7, 20, 7, 7, 7, 7]
    assert trace.host.kind.tolist() == [ANNOTATION, OP, RUNTIME, OP, RUNTIME, RUNTIME]
    assert "2 of 5 kernels were launched before the trace began" in trace.remarks[0]


def test_unions_of_a_step_follow_from_the_columns(tmp_path):
    kernels = trace_of(tmp_path, one_step()).kernels
    mine, theirs = kernels.kind == COMPUTE, kernels.kind == COMMUNICATION
    every, work, sent = (
        Instants.of(kernels.start[at], kernels.end[at]) for at in (mine | theirs, mine, theirs)
    )
    assert every.length() == pytest.approx(60e-6)
    assert work.both(sent).length() == pytest.approx(20e-6)


def test_a_collective_of_today_says_all(tmp_path):
    fields = said("_allgather_base", 500) | {"Out msg nelems": 1000, "dtype": "BFloat16"}
    fields |= {"Process Group Name": "7", "Process Group Ranks": "[0, 2]", "Seq": 31}
    sent = kernel(1, 10, 5, "ncclDevKernel_AllGather_RING_SIMPLE(x)", 20, **fields)
    trace = trace_of(tmp_path, [step(4, 0, 50), record(1), launch(1, 2), sent])
    found = trace.collectives
    assert names(found) == ["all_gather"]
    assert (found.kernel[0], found.num_elements[0], found.out_elements[0]) == (0, 500, 1000)
    assert (found.dtype[0], found.group[0], found.group_size[0]) == ("bfloat16", "7", 2)
    assert (found.sequence[0], found.algorithm[0], found.protocol[0]) == (31, "RING", "SIMPLE")
    assert (found.step[0], found.start[0], found.enqueued[0]) == pytest.approx((0, 1e-5, 1e-6))
    assert trace.groups["7"].ranks == (0, 2)


def test_a_collective_of_2023_has_its_size_from_shapes(tmp_path):
    dims = {"Input Dims": [[768], [3392], [], []], "Input type": ["int", "int", "", ""]}
    inner = {"Input Dims": [[3392], [], []], "Input type": ["int", "Scalar", ""]}
    events = [
        event("cpu_op", "c10d::alltoall_base_", 1, 30, **dims),
        event("cpu_op", "record_param_comms", 2, 28, **inner),
        event("user_annotation", "nccl:all_to_all", 3, 20, **inner),
        launch(1, 5),
        kernel(1, 10, 5, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", 20),
        event("cpu_op", "record_param_comms", 40, 3, **{"Input Dims": [[]], "Input type": [""]}),
    ]
    found = trace_of(tmp_path, events, distributedInfo={"rank": 0, "world_size": 8}).collectives
    assert names(found) == ["all_to_all"], "and none for the wait at the end"
    assert (found.num_elements[0], found.out_elements[0], found.dtype[0]) == (3392, 768, "int32")
    assert (found.group[0], found.group_size[0]) == ("", -1)


def test_the_size_of_a_group_follows_from_what_is_gathered(tmp_path):
    dims = {"Input Dims": [[64_000], [1000], []], "Input type": ["float", "float", ""]}
    events = [
        event("cpu_op", "c10d::_allgather_base_", 1, 30, **dims),
        launch(1, 5),
        kernel(1, 10, 5, "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", 20),
    ]
    found = trace_of(tmp_path, events, distributedInfo=None).collectives
    assert (found.num_elements[0], found.out_elements[0], found.group_size[0]) == (1000, 64000, 64)


def test_a_kernel_alone_is_known_by_its_name(tmp_path):
    kinds = NCCL, "ncclDevKernel_SendRecv", "ncclDevKernel_Generic_4(args)"
    trace = trace_of(tmp_path, [kernel(i, 10 * i, 5, name) for i, name in enumerate(kinds, 1)])
    found = trace.collectives
    assert names(found) == ["all_reduce", "send_recv", "unknown"]
    assert (found.dtype[0], found.algorithm[0], found.protocol[0]) == ("float32", "RING", "LL")
    assert np.isnan(found.enqueued).all()
    assert found.num_elements.tolist() == [-1, -1, -1]
    assert any("The sizes of 3 of 3 collectives are not in it" in said for said in trace.remarks)


def test_collectives_of_one_rank_have_no_kernel(tmp_path):
    events = [step(1, 0, 99), record(5, 20, size=1), launch(1, 40), kernel(1, 50, 10)]
    trace = trace_of(tmp_path, events, world_size=1)
    found = trace.collectives
    assert (found.kernel[0], found.step[0], found.group_size[0]) == (-1, 0, 1)
    assert (found.start[0], found.end[0]) == pytest.approx((5e-6, 25e-6))
    assert len(trace.kernels) == 1


def test_steps_and_kernels_may_come_in_any_order_and_steps_once(tmp_path):
    events = [*one_step(), *one_step(100, 2), event("cpu_op", "ProfilerStep#2", 101, 90)]
    trace = trace_of(tmp_path, events[::-1])
    same = trace_of(tmp_path, events)
    assert trace.steps.number.tolist() == [1, 2]
    assert trace.steps.start.tolist() == same.steps.start.tolist()
    assert trace.kernels.start.tolist() == same.kernels.start.tolist()
    assert trace.collectives.num_elements.tolist() == [1000, 1000]


OLD = {
    "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}


def test_categories_of_torch_1_10_are_known_and_a_bare_list_too(tmp_path):
    events = [
        *one_step(),
        kernel(70, 60, 2, "Memcpy HtoD", category="gpu_memcpy", bytes=4096),
        launch(70, 55),
    ]
    today = trace_of(tmp_path, events)
    old = [one | {"cat": OLD.get(one["cat"], one["cat"])} for one in events]
    for one in old:
        if one["cat"] == "Kernel":
            one["tid"] = f"stream {one['args'].pop('stream')}"
    trace = read_trace(put(tmp_path / "rank3.json", json.dumps(old)))
    assert trace.kernels.kind.tolist() == today.kernels.kind.tolist()
    assert trace.kernels.stream.tolist() == today.kernels.stream.tolist()
    assert trace.kernels.step.tolist() == today.kernels.step.tolist()
    assert trace.host.kind.tolist() == today.host.kind.tolist()
    assert (trace.rank, trace.world_size, trace.device_name) == (3, None, None)
    assert "3 is taken from the name of the file" in trace.remarks[-1]


def test_a_packed_file_is_the_same(tmp_path):
    plain, packed = (trace_of(tmp_path, one_step(), name) for name in ("a.json", "a.json.gz"))
    assert plain.kernels.start.tolist() == packed.kernels.start.tolist()


def test_times_since_1970_keep_their_nanoseconds(tmp_path):
    text = document([kernel(1, "@1", "@2"), kernel(2, "@3", 1.5)])
    for mark, time in (
        ("@1", "1712195495519689.047"),
        ("@2", "0.812"),
        ("@3", "1712195495519690.003"),
    ):
        text = text.replace(f'"{mark}"', time)
    kernels = read_trace(put(tmp_path / "t.json", text)).kernels
    assert (kernels.end - kernels.start) * 1e9 == pytest.approx([812, 1500])
    assert kernels.start * 1e9 == pytest.approx([0, 956])


@for_each(
    ("written", "size", "ranks"),
    [
        ({"Process Group Ranks": "[0, 4, 8]"}, 3, (0, 4, 8)),
        ({"Process Group Ranks": "[0, 1, 2, ..., 127]"}, 128, None),
        (
            {
                "Process Group Ranks": "[0, 8, ..., 504]",
                "Global rank start": 0,
                "Global rank stride": 8,
            },
            64,
            tuple(range(0, 512, 8)),
        ),
        ({"Process Group Ranks": "[0, 1"}, 2, None),
    ],
)
def test_groups_of_which_only_collectives_tell(tmp_path, written, size, ranks):
    fields = said(size=size) | {"Process Group Name": "12"} | written
    trace = trace_of(tmp_path, [kernel(1, 0, 5, NCCL, **fields)], distributedInfo=None)
    assert trace.groups["12"].ranks == ranks
    assert trace.groups["12"].size == size
    assert any("lists of ranks of 1 process groups" in said for said in trace.remarks) == (
        not ranks
    )


def test_a_sample_is_called_one(tmp_path):
    ops = [event("cpu_op", "aten::add", i, 1, **{"Ev Idx": 7 * i}) for i in range(20)]
    trace = trace_of(tmp_path, [*one_step(), *ops])
    (said,) = trace.remarks
    assert said.startswith("It is a sample: of 134 host events that torch numbered it holds 20")
    whole = [event("cpu_op", "aten::add", i, 1, **{"Ev Idx": i}) for i in range(10)]
    calls = [event("python_function", "f", i, 1, **{"Ev Idx": 10 + i}) for i in range(50)]
    calls += [
        event("cpu_instant_event", "[memory]", i, 1, **{"Ev Idx": 60 + i}) | {"ph": "i"}
        for i in range(40)
    ]
    last = event("cpu_op", "aten::add", 99, 1, **{"Ev Idx": 100})
    assert trace_of(tmp_path, [*one_step(), *whole, *calls, last]).remarks == ()


def test_a_trace_of_the_host_of_gpus_asks_for_them(tmp_path):
    events = [
        event("cpu_op", "aten::mm", 0, 8),
        event("user_annotation", "nccl:all_reduce", 10, 5),
    ]
    trace = trace_of(tmp_path, events)
    assert any("profile with ProfilerActivity.CUDA as well" in said for said in trace.remarks)
    trace = trace_of(tmp_path, [event("cpu_op", "aten::mm", 0, 8), launch(1, 2)])
    assert trace.remarks[1].startswith("The host called a device 1 times, but what the device did")


def test_messages_say_who_is_on_the_other_side(tmp_path):
    sends = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    events = [step(1, 0, 100)]
    for number, (name, more) in enumerate(
        [
            ("send", {"Dst Rank": 1}),
            ("recv", {"Src Rank": 3, "Dst Rank": 0}),
            ("send", {}),
            ("allreduce", {"Dst Rank": 1}),
        ],
        1,
    ):
        at = 1 + 20 * number
        events += [record(at, 10, name, size=4, **more), launch(number, at + 1)]
        if name == "send" and not more:
            events.append(event("user_annotation", "nccl:send 0->2", at, 10))
        events.append(kernel(number, at + 5, 5, sends if name != "allreduce" else NCCL, 20))
    found = trace_of(tmp_path, events, world_size=4).collectives
    assert names(found) == ["send", "recv", "send", "all_reduce"]
    assert found.peer.tolist() == [1, 3, 2, -1]


def test_a_last_step_in_which_nothing_was_launched_is_left_out(tmp_path):
    events = [*one_step(), *one_step(100, 2), step(3, 200, 1)]
    trace = read_trace(put(tmp_path / "t.json", document(events)))
    assert trace.steps.number.tolist() == [1, 2]
    assert "Step 3, its last, is empty, and left out." in trace.remarks
