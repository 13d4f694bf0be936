"""How fast traces are read, in how much memory, beside libraries that could read their JSON.

python -m benchmarks.traces [MIB]

A trace of so many MiB (100) is made, as torch's profiler writes it. Libraries that are not
installed are left out: ``pip install ijson msgspec orjson`` for all of them. These only decode;
what simdp makes of the events comes in the last row.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row, show

MEMORY_SHARE = 0.5
"""Of the size of a file, beside `BASE`, that its reading may take: a GiB is read in two."""

BASE = 200 * 2**20
"""Bytes that the interpreter and the first blocks take."""

EVENTS = """  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 77, "tid": 77,
    "ts": {t}.000, "dur": 20000.000,
    "args": {{
      "External id": {n}, "Record function id": 0, "Ev Idx": {n}
    }}
  }}"""

LAYER = """  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::{name}", "pid": 77, "tid": 77,
    "ts": {t}.123, "dur": 30.250,
    "args": {{
      "External id": {n}, "Record function id": 0, "Sequence number": {n}, "Ev Idx": {n}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 77,
    "ts": {t}.500, "dur": 5.125,
    "args": {{
      "External id": {n}, "cbid": 211, "correlation": {n}
    }}
  }},
  {{
    "ph": "s", "id": {n}, "pid": 77, "tid": 77, "ts": {t}.500,
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "void at::native::{name}_kernel<4>(int, float)",
    "pid": 0, "tid": 7, "ts": {t}.900, "dur": 25.010,
    "args": {{
      "External id": {n}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {n},
      "registers per thread": 32, "shared memory": 0, "blocks per SM": 1.5, "warps per SM": 12,
      "grid": [512, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 12
    }}
  }},
  {{
    "ph": "f", "id": {n}, "pid": 0, "tid": 7, "ts": {t}.900,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"""

OURS = """
from pathlib import Path
from simdp.traces.stream import Events, opened
count = sum(1 for _ in Events(opened(Path(path)), path))
"""
WHOLE = """
import json
count = len(json.loads(open(path).read())["traceEvents"])
"""
IJSON = """
from ijson.backends import yajl2_c
events = yajl2_c.items(open(path, "rb"), "traceEvents.item", use_float={use_float}, buf_size=2**20)
count = sum(1 for _ in events)
"""
BY_LINES = """
from {module} import {function} as decode
count, rest = 0, b""
with open(path, "rb") as file:
    rest = file.read(2**20).partition(b'"traceEvents": [')[2]
    while block := file.read(2**20):
        *events, rest = (rest + block).split(b"\\n  }},")
        for event in events:
            decode(event + b"\\n  }}")
            count += 1
"""
READ = """
from simdp.traces import read_trace
trace = read_trace(path)
count = len(trace.kernels) + len(trace.host)
"""
MEASURED = """
import resource, sys
path = sys.argv[1]
before = resource.getrusage(resource.RUSAGE_SELF)
{program}
after = resource.getrusage(resource.RUSAGE_SELF)
spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
# Not ru_maxrss, which begins with that of the process that started this one.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(spent, 1024 * int(status["VmHWM"].split()[0]), count)
"""

PROGRAMS = {
    "simdp's window over json": ("json", OURS),
    "json, the whole file at once": ("json", WHOLE),
    "ijson, in C, floats": ("ijson", IJSON.format(use_float=True)),
    "ijson, in C, exact numbers": ("ijson", IJSON.format(use_float=False)),
    "msgspec, event by event at its line": (
        "msgspec",
        BY_LINES.format(module="msgspec.json", function="decode"),
    ),
    "orjson, event by event at its line": (
        "orjson",
        BY_LINES.format(module="orjson", function="loads"),
    ),
    "simdp, to a RankTrace": ("json", READ),
}
"""What each needs, and what it does with ``path``."""


def events() -> Iterator[str]:
    """Endless events of a step after the other."""
    names = ["convolution", "batch_norm", "relu", "add", "addmm", "max_pool2d"]
    for n in range(sys.maxsize):
        if not n % 1000:
            yield EVENTS.format(step=n // 1000, t=50 * n, n=n)
        yield LAYER.format(name=names[n % len(names)], t=50 * n, n=n + 1)


def put(path: Path, nbytes: int) -> None:
    """Write a trace of about so many bytes."""
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    with path.open("w") as file:
        written = file.write(f'{json.dumps(head)[:-1]},\n"traceEvents": [\n')
        for number, event in enumerate(events()):
            written += file.write(f",\n{event}" if number else event)
            if written > nbytes:
                break
        file.write('\n  ], "traceName": "made.json"\n}\n')


def measured(program: str, path: Path) -> tuple[float, int]:
    """CPU time and the largest memory of a program of its own [s, bytes]."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED.format(program=program), path],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    spent, nbytes, _ = done.stdout.split()
    return float(spent), int(nbytes)


def rows(path: Path) -> Iterator[Row]:
    """Every way to read a file."""
    size = path.stat().st_size
    for what, (module, program) in PROGRAMS.items():
        if importlib.util.find_spec(module) is None:
            continue
        spent, nbytes = measured(program, path)
        ours = what.startswith("simdp")
        most = BASE + MEMORY_SHARE * size
        figure = f"{size / spent / 1e6:.1f} MB/s, {nbytes / 2**20:,.0f} MiB"
        yield what, figure, f"{most / 2**20:,.0f} MiB" if ours else "", not ours or nbytes <= most


def main() -> int:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.json"
        put(path, size * 2**20)
        return show(f"reading a trace of {size} MiB", list(rows(path)))


if __name__ == "__main__":
    sys.exit(main())
