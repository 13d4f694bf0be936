"""HolisticTraceAnalysis reads our traces per rank, and finds what simdp says of the run."""

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
from small_scenario import CLUSTER

import simdp
from simdp.results import metrics
from simdp.scenario import checked

pytest.importorskip("torch")
hta = pytest.importorskip("hta.trace_analysis")

pytestmark = pytest.mark.filterwarnings("ignore")  # of pandas, about HTA

STEPS = 3
NO_LAUNCHES = {
    "peak": dict.fromkeys(["float64", "float32", "float16", "bfloat16"], "10 TFLOP/s"),
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
    "launch": "0 s",
}
"""Then a kernel takes all of its span, as simdp's metrics of compute count."""

WORKLOAD = {
    "model": {"kind": "mlp", "widths": [512, 1024, 1024, 1024, 512, 16]},
    "microbatch": 512,
    "steps": STEPS,
}


def run(strategy="ddp", device=NO_LAUNCHES, stragglers=(), **workload):
    scenario = {
        "name": "for-hta",
        "cluster": {**CLUSTER, "device": device, "stragglers": list(stragglers)},
        "workload": {**WORKLOAD, **workload},
        "strategy": strategy,
        "numerics": False,
    }
    return simdp.simulate(checked(scenario, Path()))


@pytest.fixture
def analysed(tmp_path, monkeypatch):
    """Write a result's traces and let HTA read them, with exact times and all steps."""
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    logging.disable(logging.CRITICAL)

    def analysed(result, folder=tmp_path):
        result.save_traces(folder)
        return hta.TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)

    yield analysed
    logging.disable(logging.NOTSET)


def by_rank(table, column):
    return table.set_index("rank")[column].sort_index().to_numpy()


def of_steps(result):
    """What a rank's steps from the first to the last are made of, all together [us]."""
    ends = result.step_ends
    whole = {"from": ends[:, 0], "to": ends[:, -1]}
    spans = list(result.trace.spans)
    n = result.world_size

    def length(rank, *activities):
        mine = [s for s in spans if s.rank == rank and s.activity in activities]
        return sum(s.end - s.start for s in mine if s.step >= 0)

    for key, activities in {
        "compute": ("forward", "backward", "update"),
        "copies": ("copy",),
    }.items():
        whole[key] = np.array([length(rank, *activities) for rank in range(n)])
    return {key: values * 1e6 for key, values in whole.items()}


@pytest.mark.parametrize(
    ("strategy", "stragglers"),
    [
        ("ddp", []),
        ({"kind": "ddp", "gradient_as_bucket_view": False}, []),
        ("fsdp", []),
        ("ddp", [{"kind": "slow_rank", "rank": 2, "factor": 1.5}]),
    ],
    ids=["ddp", "ddp with copies", "fsdp", "straggler"],
)
def test_the_temporal_breakdown_is_that_of_the_run(analysed, strategy, stragglers):
    result = run(strategy, stragglers=stragglers)
    analysis = analysed(result)
    table = analysis.get_temporal_breakdown(visualize=False)
    expected = of_steps(result)
    compute = by_rank(table, "compute_time(us)")
    assert compute == pytest.approx(expected["compute"], abs=0.05)
    # Beside compute: communication and waiting that nothing hides, and copies.
    parts = metrics.per_rank(result.trace, result.world_size, STEPS)
    exposed = parts.exposed_comm_s + parts.wait_s
    setup = _setup(result)
    beside = by_rank(table, "non_compute_time(us)") - setup
    steady = exposed * (STEPS - 1) * 1e6
    first = _exposed_in_first_step(result)
    assert beside == pytest.approx(steady + first + expected["copies"], abs=0.1)


def _setup(result):
    """NCCL's time before the first step, with what is waited for in it [us]."""
    spans = [s for s in result.trace.spans if s.step < 0 and s.lane == "comm"]
    spans = [s for s in spans if s.name != "for the others"]
    total = [sum(s.end - s.start for s in spans if s.rank == r) for r in range(result.world_size)]
    return np.array(total) * 1e6


def _exposed_in_first_step(result):
    """Union of NCCL's spans less the union of compute's and copies', by a grid of edges [us]."""
    found = []
    for rank in range(result.world_size):
        mine = [s for s in result.trace.spans if s.rank == rank and s.step == 0]
        edges = np.unique([t for s in mine for t in (s.start, s.end)])
        middle = (edges[1:] + edges[:-1]) / 2

        def covered(activities, mine=mine, middle=middle):
            spans = [s for s in mine if s.activity in activities]
            return np.any([(s.start <= middle) & (middle < s.end) for s in spans], axis=0)

        alone = covered(("comm", "wait")) & ~covered(("forward", "backward", "update", "copy"))
        found.append(float((np.diff(edges) * alone).sum()))
    return np.array(found) * 1e6


def test_the_overlap_of_communication_and_compute_is_that_of_the_run(analysed):
    result = run()
    table = analysed(result).get_comm_comp_overlap(visualize=False)
    parts = metrics.per_rank(result.trace, result.world_size, STEPS)
    hidden = 1 - parts.exposed_comm_s / parts.comm_s
    assert parts.wait_s.max() == 0
    # HTA counts the setup's broadcast and the first step too: the same in more communication.
    found = by_rank(table, "comp_comm_overlap_pctg") / 100
    spans = result.trace.spans
    steady = [sum(s.end - s.start for s in spans if _steady(s, rank)) for rank in range(4)]
    whole = [sum(s.end - s.start for s in spans if _comm(s, rank)) for rank in range(4)]
    first = [
        sum(s.end - s.start for s in spans if _comm(s, rank) and s.step == 0) * 1e6
        - _exposed_in_first_step(result)[rank]
        for rank in range(4)
    ]
    expected = (hidden * np.array(steady) + np.array(first) * 1e-6) / np.array(whole)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found.min() > 0.05


def _comm(span, rank):
    return span.rank == rank and span.activity == "comm"


def _steady(span, rank):
    return _comm(span, rank) and span.step > 0


def test_the_straggler_is_found(analysed, tmp_path):
    result = run(stragglers=[{"kind": "slow_rank", "rank": 2, "factor": 1.5}])
    analysed(result)
    # HTA 0.5 knows NCCL's kernels by the names that they had before 2.19 only.
    for path in tmp_path.glob("*.gz"):
        text = gzip.decompress(path.read_bytes()).replace(b"ncclDevKernel_", b"ncclKernel_")
        path.write_bytes(gzip.compress(text))
    analysis = hta.TraceAnalysis(trace_dir=str(tmp_path), include_last_profiler_step=True)
    assert analysis.get_potential_stragglers(num_candidates=1) == [2]


def test_a_job_that_waits_for_launches_looks_like_one(analysed):
    slow = {**NO_LAUNCHES, "launch": "20 us"}
    result = run(device=slow, microbatch=1, model={"kind": "mlp", "widths": [64] * 12})
    analysis = analysed(result)
    table = analysis.get_temporal_breakdown(visualize=False)
    kernels = [len(k.edges) // 2 for k in _kernels(result)]
    waited = STEPS * sum(kernels) * 20
    expected = of_steps(result)["compute"] - waited
    assert by_rank(table, "compute_time(us)") == pytest.approx(expected, abs=0.05)
    assert by_rank(table, "idle_time_pctg").min() > 60
    (gaps, _) = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    compute = gaps[gaps.stream == 7].set_index("idle_category").idle_time
    assert compute["host_wait"] + compute["kernel_wait"] > 0.9 * compute.sum()


def _kernels(result):
    facts = result.launched()
    return [
        facts.of(0, activity, name)
        for activity, name in facts.kernels
        if activity in ("forward", "backward")
    ]
