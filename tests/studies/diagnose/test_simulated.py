"""Jobs that simdp played and wrote as traces: what was planted is found."""

from pathlib import Path

import pytest
from small_scenario import CLUSTER

import simdp
from simdp.reports import chrome_trace
from simdp.scenario import checked

pytestmark = pytest.mark.slow

MODEL = {"kind": "mlp", "widths": [256, 512, 512, 512, 16]}


def diagnosed(folder, world_size=4, stragglers=(), machine=None, **workload):
    scenario = {
        "name": "planted",
        "cluster": {**CLUSTER, "world_size": world_size, "stragglers": list(stragglers)},
        "workload": {"model": MODEL, "microbatch": 4096, "steps": 4, **workload},
        "strategy": "ddp",
        "numerics": False,
    }
    result = simdp.simulate(checked(scenario, Path()))
    result.save_traces(folder)
    return result, simdp.diagnose(folder, machine=machine, remedies=False)


def test_a_rank_that_stops_for_200_ms_is_found_with_its_size(tmp_path):
    pause = {"kind": "pause", "rank": 2, "every": 1, "duration": "200 ms"}
    _, found = diagnosed(tmp_path, stragglers=[pause], steps=5)
    first = found.verdict[0]
    assert (first.cause, first.ranks) == ("straggler", (2,))
    in_paused_steps = first.seconds * 5 / 4  # none in the first
    assert in_paused_steps == pytest.approx(0.2, rel=0.02)


def test_figures_are_those_of_the_run(tmp_path):
    result, found = diagnosed(tmp_path)
    assert found.step_time_s == pytest.approx(result.metrics["step_time_s"], rel=0.05)
    assert (found.num_ranks, found.world_size, found.num_steps) == (4, 4, 4)
    assert found.source in ("kineto", "simdp")
    elements = sum(row.num_elements for row in found.buckets)
    assert elements == sum(
        a * b + b for a, b in zip(MODEL["widths"], MODEL["widths"][1:], strict=False)
    )


def test_a_loader_that_cannot_keep_up_is_found(tmp_path):
    _, found = diagnosed(tmp_path, input={"workers": 1, "per_sample": "100 us"})
    assert found.verdict[0].cause == "input_stall"


def test_jitter_is_imbalance(tmp_path):
    _, found = diagnosed(tmp_path, stragglers=[{"kind": "lognormal", "sigma": 0.5}], steps=8)
    assert found.verdict[0].cause == "imbalance"


@pytest.mark.parametrize("written", ["rank traces", "trace.json"])
def test_a_degraded_link_is_found_since_our_traces_name_their_machine(written, tmp_path):
    scenario = {
        "name": "planted",
        "cluster": {
            "machine": "dgx-a100",
            "world_size": 8,
            "stragglers": [{"kind": "degraded_link", "rank": 3, "bandwidth": 0.03}],
        },
        "workload": {"model": {"kind": "mlp", "widths": [2048] * 5}, "microbatch": 2048},
        "strategy": "ddp",
        "numerics": False,
    }
    scenario["workload"]["steps"] = 3
    result = simdp.simulate(checked(scenario, Path()))
    if written == "trace.json":
        (tmp_path / "trace.json").write_text(chrome_trace.write(result))
    else:
        result.save_traces(tmp_path)
    found = simdp.diagnose(tmp_path, remedies=False)
    assert found.verdict[0].cause == "slow_link"
    assert (found.machine, found.machine_from) == ("dgx-a100", "which the traces name")
