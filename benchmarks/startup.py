"""How long the command line takes, and a point of a what-if; how many files a run enters.

python -m benchmarks.startup [ROOT]

``ROOT`` is another checkout that is timed beside this one, in turn.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Row, show

ROOT = Path(__file__).parents[1]
REPEATS = 5

RING = """
cluster: {world_size: 8, device: a100-sxm4-80gb, topology: ring, link: nvlink3}
workload: {model: {kind: parameters, num_params: 1000000}, microbatch: 1, steps: 1, optimizer: none}
numerics: false
"""

POINT = """
from time import process_time
import simdp
def point(number):
    changes = {"workload.steps": 3, "cluster.link.alpha": f"{number + 1} us"}
    begin = process_time()
    simdp.simulate(simdp.load_scenario("scenarios/bert_mnli.yaml", changes))
    return process_time() - begin
print(sorted(map(point, range(6)))[2])
"""

FILES = """
import cProfile, pathlib, pstats, simdp
own = str(pathlib.Path(simdp.__file__).parent)
profile = cProfile.Profile()
profile.runcall(lambda: simdp.simulate(simdp.load_scenario(
    "scenarios/8gpu_ring.yaml", {"workload.steps": 2}
)))
entered = {file for file, _, name in pstats.Stats(profile).stats if name != "<module>"}
print(len([file for file in entered if file.startswith(own)]))
"""

MODULES = """
import sys, tempfile
from simdp.cli import run_command_line
command = ["run", "scenarios/8gpu_ring.yaml", "--set", "workload.steps=2", "--no-plots", "--quiet"]
run_command_line([*command, "--out", tempfile.mkdtemp()])
print(len([name for name in sys.modules if name.split(".")[0] == "simdp"]))
"""


def printed(root: Path, program: str) -> float:
    """The number that a program prints, with the package of a checkout."""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=root, capture_output=True, text=True
    )
    return float(done.stdout)


def seconds(root: Path, *arguments: str) -> float:
    """CPU time of ``python -m simdp`` with some arguments, in a checkout [s]."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "simdp", *arguments],
        check=True,
        cwd=root,
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def main() -> int:
    roots = [ROOT, *map(Path, sys.argv[1:2])]
    with tempfile.TemporaryDirectory() as folder:
        ring = Path(folder) / "ring.yaml"
        ring.write_text(RING)
        out = ["--out", folder]
        small = ["collective", "all_reduce", "--cluster", "dgx-a100", "--sizes", "1KiB:1MiB"]
        commands = {
            "--help": (["--help"], 0.4),
            "run of one ring all_reduce": (["run", str(ring), "--json", "--no-plots", *out], 0.35),
            "collective all_reduce": ([*small, "--json"], 0.4),
            "run scenarios/8gpu_ring.yaml, all files": (
                ["run", "scenarios/8gpu_ring.yaml", *out],
                5,
            ),
        }
        rows: list[Row] = []
        for name, (arguments, limit) in commands.items():
            times = [[seconds(root, *arguments) for root in roots] for _ in range(REPEATS)]
            rows.append(
                _row(
                    name,
                    [statistics.median(column) for column in zip(*times, strict=True)],
                    limit,
                    " s",
                )
            )
    point = [1e3 * printed(root, POINT) for root in roots]
    rows.append(_row("a point of bert_mnli, loaded and simulated", point, 30, " ms"))
    entered = [printed(root, FILES) for root in roots]
    rows.append(_row("files that the main job enters, imports too", entered, 100, ""))
    loaded = [printed(root, MODULES) for root in roots]
    rows.append(_row("modules that the main job loads", loaded, 180, ""))
    return show(f"CPU time, median of {REPEATS}", rows)


def _row(name: str, found: list[float], limit: float, unit: str) -> Row:
    here, *other = (f"{value:.3g}{unit}" for value in found)
    return (
        name,
        here + "".join(f" ({value} there)" for value in other),
        f"{limit:g}{unit}",
        found[0] <= limit,
    )


if __name__ == "__main__":
    raise SystemExit(main())
