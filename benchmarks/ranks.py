"""What a step of eight ranks costs, against eight steps of one device.

    python -m benchmarks.ranks

CPU time per steady step, by difference of a long and a short run, which leaves out the setup. The
eight ranks compute as much as eight devices that know nothing of each other, and exchange their
gradients beside it.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time

import simdp
from benchmarks.table import show

SCENARIOS = Path(__file__).parents[1] / "scenarios"
RANKS = 8
SHORT, LONG, REPEATS = 2, 12, 5
LIMIT = 1.3

JOBS = {
    "8gpu_ring: mlp of 3.2 M parameters": ("8gpu_ring", {}),
    "bert_mnli_small: transformer": (
        "bert_mnli_small",
        {
            "sweep": None,
            "workload.global_batch": None,
            "workload.microbatch": 32,
            "workload.dataset": {"kind": "tokens", "num_samples": 768, "sequence_length": 64},
        },
    ),
    "resnet_small: convolutions": ("resnet_small", {}),
}


def step_seconds(name: str, world_size: int, settings: dict[str, object]) -> float:
    """CPU time of a steady step [s]: the difference of the least times of two runs."""
    least = []
    for steps in (SHORT, LONG):
        overrides = {
            **settings,
            "cluster.world_size": world_size,
            "cluster.stragglers": [],
            "workload.steps": steps,
            "strategy": "ddp" if world_size > 1 else "single",
        }
        scenario = simdp.load_scenario(SCENARIOS / f"{name}.yaml", overrides)
        times = []
        for _ in range(REPEATS):
            begin = process_time()
            simdp.simulate(scenario)
            times.append(process_time() - begin)
        least.append(min(times))
    return (least[1] - least[0]) / (LONG - SHORT)


def main() -> int:
    rows = []
    for what, (name, settings) in JOBS.items():
        one, many = (step_seconds(name, n, settings) for n in (1, RANKS))
        ratio = many / (RANKS * one)
        figure = f"{ratio:.2f} ({1e3 * many:.0f} ms against 8 x {1e3 * one:.1f} ms)"
        rows.append((what, figure, f"{LIMIT}", ratio <= LIMIT))
    return show(f"a step of {RANKS} ranks over {RANKS} steps of one, CPU time", rows)


if __name__ == "__main__":
    raise SystemExit(main())
