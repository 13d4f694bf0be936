"""How long questions about large models take: CPU time and memory of a process of its own.

    python -m benchmarks.large_models

Import, loading, simulation and metrics of a time-only point; and three commands. Of several
processes the fastest counts: others on the machine make none faster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import Row, show

ROOT = Path(__file__).parents[1]
REPEATS = 3

POINT = """
name: large
cluster: {{machine: dgx-h100, world_size: {ranks}}}
workload: {{model: llama3-8b, microbatch: 1, steps: 3}}
strategy: {{kind: fsdp, param_dtype: bfloat16}}
numerics: false
"""

PROGRAM = """
import sys, simdp
simdp.simulate(simdp.load_scenario(sys.argv[1])).metrics["step_time_s"]
"""

FITS = ["fits", "llama3-8b", "--gpus", "8", "--device", "h100-sxm5-80gb"]


class Taken(NamedTuple):
    """What a process took.

    Attributes
    ----------
    seconds : float
        CPU time [s].
    nbytes : float
        Largest resident set [bytes].
    """

    seconds: float
    nbytes: float


def taken(arguments: Sequence[str], repeats: int = REPEATS) -> Taken:
    """The least that Python takes with some arguments."""
    found = []
    for _ in range(repeats):
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(arguments))
        found.append(Taken(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0))
    return Taken(*map(min, zip(*found, strict=True)))


def main() -> int:
    rows: list[Row] = []

    def add(name: str, arguments: Sequence[str], limit: float, most: float | None = None) -> None:
        seconds, nbytes = taken(arguments)
        target = f"{limit:g} s" + (f", {most:g} MB" if most else "")
        reached = seconds <= limit and (most is None or nbytes <= most * 1e6)
        rows.append((name, f"{seconds:.2f} s, {nbytes / 1e6:.0f} MB", target, reached))

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.yaml"
        for ranks, limit, most in ((512, 1.0, 300.0), (16_384, 5.0, None)):
            file.write_text(POINT.format(ranks=ranks))
            add(f"llama3-8b under fsdp on {ranks:,} ranks", ["-c", PROGRAM, str(file)], limit, most)
        file.write_text(POINT.format(ranks=512))
        run = ["-m", "simdp", "run", str(file), "--no-plots", "--out", folder]
        add("the same on 512, python -m simdp run", run, 3.5)
    add("python -m simdp fits llama3-8b", ["-m", "simdp", *FITS], 2.0)
    add("python -m simdp list models", ["-m", "simdp", "list", "models"], 0.6)
    return show(f"Large models: CPU time and memory, least of {REPEATS}", rows)


if __name__ == "__main__":
    raise SystemExit(main())
