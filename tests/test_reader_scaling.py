"""Readers of users' files: four times the input takes less than five times the CPU and memory.

Each input grows in one way: a long line, lines, columns, tokens, blanks, depth, or packed zeros.
A reader may refuse an input; then the refusal is what takes time. CPU below `FLOOR`, and memory
below `LEAST`, do not count: they are the interpreter's own.
"""

import gzip
import io
import json
import pickle
import time
import tracemalloc
from contextlib import closing

import numpy as np
import pytest
from for_each import for_each
from kineto import document, one_step
from pydantic import ValidationError
from traces.test_flight_files import dump, entry

from simdp.errors import SimdpError
from simdp.files import parse_yaml, read_npz, read_scenario, read_tensors
from simdp.files.records import RecordFile, StoredRecord
from simdp.results.collective import nccl_tables, read_nccl_tables
from simdp.studies.calibrate.rows import read_table
from simdp.tables import parse_csv, parse_lines, parse_samples
from simdp.traces import kind_of, read_ddp_logging, read_flight_records, read_traces
from simdp.traces.logs import READERS
from simdp.workload.models import read_model
from simdp.workload.models.operators import read_layers

FLOOR = 0.04
"""CPU time that may be the interpreter's own [s]."""

LEAST = 2**20
"""Memory that may be the interpreter's own [bytes]."""

TIMES = 4

LINE = {
    "watchdog": "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, NumelIn=12, NumelOut=12, Timeout(ms)=600000) ran for 600042 milliseconds",
    "nccl": "host-1:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via NET/IB/0/GDRDMA",
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.15 GiB of which 1.50 GiB is free.",
    "progress": "step 7: loss 2.5, step_time 310 ms, tokens/s 12,345, mfu 41 %",
    "bar": "Epoch 1:  7%|7 | 12/345 [00:10<05:00,  1.20it/s]",
    "topology": "GPU0\t X \tNV18\tSYS\t0-47\t0",
    "tests": "     8388608       2097152     float     sum      -1    120.5   69.6  121.8      0",
    "head": "#       size         count      type   redop    root     time   algbw   busbw #wrong",
}
"""A line of each kind of text that a job leaves."""

TEXTS = {
    "letters": lambda n: "a" * n,
    "digits": lambda n: "1" * n,
    "blanks": lambda n: " " * n,
    "words": lambda n: "a1 " * (n // 3),
    "brackets": lambda n: "[1" * (n // 2),
    "stops": lambda n: "1.:a-" * (n // 5),
    "blank lines": lambda n: "\n" * n,
    **{kind: lambda n, kind=kind: (LINE[kind] + "\n") * (n // len(LINE[kind])) for kind in LINE},
    **{
        f"one line of {kind}": lambda n, kind=kind: LINE[kind] * (n // len(LINE[kind]))
        for kind in LINE
    },
    "heads and rows": lambda n: f"{LINE['head']}\n{LINE['tests']}\n" * (n // 180),
}

CELLS = {
    "columns": lambda n: (
        ",".join(f"c{i}" for i in range(n // 6)) + "\n" + "1," * (n // 6 - 1) + "1"
    ),
    "equal columns": lambda n: "a," * (n // 2),
    "rows": lambda n: "name,a\n" + "".join(f"r{i},1\n" for i in range(n // 8)),
    "long cell": lambda n: "name,a\n" + "1" * n + "," + "1" * n,
    "quotes": lambda n: '"' * n,
    "comments": lambda n: "# a\n" * (n // 4),
}

NESTED = {
    "lists": lambda n: "[" * n,
    "closed lists": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "mappings": lambda n: "{a: " * (n // 4),
    "json": lambda n: '{"a":' * (n // 5),
    "keys": lambda n: "".join(f"k{i}: {i}\n" for i in range(n // 10)),
    "values": lambda n: "a: [" + "1, " * (n // 3) + "1]",
    "json values": lambda n: '{"a": [' + "1, " * (n // 3) + "1]}",
    "indents": lambda n: "".join(" " * i + "a:\n" for i in range(int((2 * n) ** 0.5))),
    "anchors": lambda n: "a: &a [1]\nb: [" + "*a, " * (n // 4) + "1]",
    "text": lambda n: "a: '" + "b" * n + "'",
    "plain text": lambda n: "a: " + "b c " * (n // 4),
}


def refused(read, *args):
    try:
        return read(*args)
    except (SimdpError, ValidationError) as error:
        return str(error)


def text_reader(read):
    """Read a text, or refuse it."""
    return lambda text, folder: refused(read, text)


def file_reader(read, name):
    """Write a text or bytes into a file, and read it, or refuse it."""

    def reads(content, folder):
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return refused(read, path)

    return reads


def steps_of(n):
    return document([event for i in range(n // 2500) for event in one_step(200.0 * i, i)])


def junk_of(n):
    return document(one_step()).replace('"traceEvents": [', '"traceEvents": [' + "{[ " * (n // 3))


def names_of(n):
    events = [event | {"name": f"k{i}"} for i in range(n // 2500) for event in one_step(200.0 * i)]
    return document(events)


EVENTS = {
    "steps": steps_of,
    "junk": junk_of,
    "names": names_of,
    "blanks": lambda n: '{"traceEvents": [' + " " * n,
    "a long name": lambda n: document([{"ph": "X", "name": "a" * n, "ts": 1, "dur": 1}]),
    "head": lambda n: document(one_step(), more=["a"] * (n // 5)),
    "unclosed": lambda n: '{"traceEvents": [{"ph": "X", "name": "' + "a" * n,
}
DUMPS = {
    "entries": lambda n: pickle.dumps(dump([entry(i) for i in range(n // 500)])),
    "json entries": lambda n: json.dumps(dump([entry(i) for i in range(n // 500)])),
    "a long name": lambda n: json.dumps(dump([entry(0, "nccl:" + "1" * n)])),
    "lists": lambda n: b"\x80\x02" + b"(" * n + b"entries",
}
PACKED = {
    "zeros": lambda n: gzip.compress(bytes(64 * n)),
    "blanks": lambda n: gzip.compress(b" " * (64 * n)),
    "an event and blanks": lambda n: gzip.compress(b'{"traceEvents": [' + b" " * (64 * n)),
}


def archive(n):
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(n), y=np.zeros(n))
    return stream.getvalue()


def members(n):
    stream = io.BytesIO()
    np.savez(stream, **{f"x{i}": np.zeros(1) for i in range(n // 250)})
    return stream.getvalue()


def tensors(n):
    place = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({f"layer.{i}": place for i in range(n // 70)}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def records(count, folder):
    """Store and read points."""
    path = folder / f"{count}.sqlite"
    with closing(RecordFile(path)) as store:
        for i in range(count // 400):
            store.put(f"{i:064x}", "1", StoredRecord(b"x" * 300, None))
    with closing(RecordFile(path)) as store:
        return [store.get(f"{i:064x}") for i in range(count // 400)]


def layers(n):
    return "name,forward_us,backward_us,gradient_bytes\n" + "".join(
        f"l{i},1,1,4\n" for i in range(n // 12)
    )


CONFIG = '{"model_type": "llama", "hidden_size": 8, "architectures": ['
READ = {
    **{
        kind: (text_reader(lambda text, r=read: r(text.split("\n"))), TEXTS)
        for kind, read in READERS.items()
    },
    "tables of nccl-tests in a text": (text_reader(lambda text: nccl_tables(text, "x.log")), TEXTS),
    "a file of nccl-tests": (file_reader(read_nccl_tables, "all_reduce.log"), {**TEXTS, **CELLS}),
    "samples": (text_reader(lambda text: parse_samples(text, "x", "c1")), CELLS),
    "lines": (text_reader(lambda text: parse_lines(text, "x", ["name"], ["a"])), CELLS),
    "numbers": (text_reader(lambda text: parse_csv(text, "x", ["name"], ["a"])), CELLS),
    "rows to calibrate": (file_reader(read_table, "rows.csv"), {**CELLS, **TEXTS}),
    "layers of a profile": (
        file_reader(lambda path: read_layers(path, 4), "layers.csv"),
        {**CELLS, "layers": layers},
    ),
    "YAML": (text_reader(lambda text: parse_yaml(text, "x")), {**NESTED, **TEXTS}),
    "a scenario": (file_reader(read_scenario, "s.yaml"), NESTED),
    "config.json": (
        file_reader(
            lambda path: read_model({"kind": "transformers", "path": path.name}, path.parent),
            "config.json",
        ),
        {**NESTED, "architectures": lambda n: CONFIG + '"a",' * (n // 4) + '"a"]}'},
    ),
    "npz": (file_reader(read_npz, "x.npz"), {**PACKED, "zeros": archive, "members": members}),
    "safetensors": (file_reader(read_tensors, "x.safetensors"), {"tensors": tensors}),
    "traces": (file_reader(read_traces, "rank0.json"), EVENTS),
    "packed traces": (file_reader(read_traces, "rank0.json.gz"), PACKED),
    "kinds of files": (file_reader(kind_of, "x.gz"), {**PACKED, **EVENTS, **DUMPS}),
    "flight recorders": (file_reader(read_flight_records, "dump_0"), {**DUMPS, **NESTED, **PACKED}),
    "DDP's logging data": (file_reader(read_ddp_logging, "ddp.json"), {**NESTED, **PACKED}),
    "a store": (records, {"points": lambda n: n}),
}


def cost(read, content, folder):
    """CPU [s] and memory [bytes] of a reader."""
    begin = time.process_time()
    read(content, folder)
    took = time.process_time() - begin
    tracemalloc.start()
    try:
        read(content, folder)
        return took, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check(kind, shape, folder, size):
    read, shapes = READ[kind]
    make = shapes[shape]
    small, large = (cost(read, make(n), folder) for n in (size, TIMES * size))
    seconds, nbytes = (5 * max(pair) for pair in zip(small, (FLOOR, LEAST), strict=True))
    assert large[0] < seconds, (kind, shape, small, large)
    assert large[1] < nbytes, (kind, shape, small, large)


SIZE = 10_000
"""Characters of the smaller input, or numbers of the smaller archive."""


@pytest.mark.long
@pytest.mark.parametrize("kind", READ)
def test_a_reader_scales_with_its_input(kind, tmp_path):
    for shape in READ[kind][1]:
        check(kind, shape, tmp_path, SIZE)


@for_each(
    ("kind", "shape"),
    [
        ("NCCL_DEBUG=INFO logs and nccl-tests output", "letters"),
        ("out-of-memory messages and torch.cuda.memory_summary", "one line of memory"),
        ("samples", "columns"),
        ("lines", "equal columns"),
        ("packed traces", "blanks"),
    ],
)
def test_a_long_line_and_many_columns_take_linear_time(kind, shape, tmp_path):
    check(kind, shape, tmp_path, 5_000)
