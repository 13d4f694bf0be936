"""Small traces as torch's profiler writes them, put together event by event."""

import gzip
import json

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(category, name, start, duration, tid=100, pid=100, **args):
    """A complete event; times in microseconds."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def step(number, start, duration):
    return event("user_annotation", f"ProfilerStep#{number}", start, duration)


def launch(correlation, start, duration=5, tid=100):
    return event("cuda_runtime", "cudaLaunchKernel", start, duration, tid, correlation=correlation)


def kernel(correlation, start, duration, name="gemm", stream=7, category="kernel", **args):
    args = {"device": 0, "stream": stream, "correlation": correlation} | args
    return event(category, name, start, duration, stream, 0, **args)


def record(start, duration=20, name="allreduce", elements=1000, group="0", size=2, tid=100, **args):
    """What torch 2.3 and later say of a collective, on the host."""
    fields = said(name, elements, group, size) | args
    return event("cpu_op", "record_param_comms", start, duration, tid, **fields)


def said(name="allreduce", elements=1000, group="0", size=2):
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": size,
        "dtype": "Float",
        "Process Group Name": group,
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(size))),
    }


def one_step(shift=0.0, number=1):
    """A step of two kernels and an all-reduce, which the second kernel overlaps by half."""
    return [
        step(number, shift, 100),
        event("cpu_op", "aten::mm", shift + 1, 8),
        launch(3 * number, shift + 2),
        kernel(3 * number, shift + 10, 20),
        record(shift + 20),
        launch(3 * number + 1, shift + 22),
        kernel(3 * number + 1, shift + 30, 40, NCCL, stream=20, **said()),
        launch(3 * number + 2, shift + 45),
        kernel(3 * number + 2, shift + 50, 20),
    ]


def document(events, rank=0, world_size=2, base=0, **fields):
    """A whole file, as text."""
    info = {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_count": 1}
    ranks = list(range(world_size))
    info["pg_config"] = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": world_size,
            "ranks": ranks,
        }
    ]
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": info,
        "baseTimeNanoseconds": base,
    }
    head = {key: value for key, value in (head | fields).items() if value is not None}
    return json.dumps(head | {"traceEvents": list(events), "traceName": "t.json"}, indent=1)


def put(path, text):
    """Write a file, packed if it is called so."""
    raw = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(raw) if path.name.endswith(".gz") else raw)
    return path
