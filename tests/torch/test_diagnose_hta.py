"""Where HolisticTraceAnalysis defines a figure as `diagnose` does, both find the same."""

import logging
from pathlib import Path

import pytest
from small_scenario import CLUSTER

import simdp
from simdp.scenario import checked

pytest.importorskip("torch")
hta = pytest.importorskip("hta.trace_analysis")

pytestmark = pytest.mark.filterwarnings("ignore")  # of pandas, about HTA

NEAR = 0.01
"""Percentage points."""


@pytest.mark.parametrize(
    ("strategy", "stragglers"), [("ddp", []), ("fsdp", [{"kind": "lognormal", "sigma": 0.3}])]
)
def test_shares_of_a_trace_are_htas(strategy, stragglers, tmp_path, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    scenario = {
        "name": "for-hta",
        "cluster": {**CLUSTER, "stragglers": stragglers},
        "workload": {
            "model": {"kind": "mlp", "widths": [256, 512, 512, 512, 16]},
            "microbatch": 256,
            "steps": 3,
        },
        "strategy": strategy,
        "numerics": False,
    }
    simdp.simulate(checked(scenario, Path())).save_traces(tmp_path)
    logging.disable(logging.CRITICAL)
    try:
        analysed = hta.TraceAnalysis(trace_dir=str(tmp_path), include_last_profiler_step=True)
        shares = analysed.get_temporal_breakdown(visualize=False).set_index("rank")
        overlaps = analysed.get_comm_comp_overlap(visualize=False).set_index("rank")
    finally:
        logging.disable(logging.NOTSET)
    found = simdp.diagnose(tmp_path, remedies=False)
    assert len(found.ranks) == 4
    for row in found.ranks:
        whole, theirs = row.trace, shares.loc[row.rank]
        span = whole["span_s"]
        idle = 100 * (1 - whole["busy_s"] / span)
        assert idle == pytest.approx(theirs["idle_time_pctg"], abs=NEAR)
        compute = 100 * whole["compute_s"] / span
        assert compute == pytest.approx(theirs["compute_time_pctg"], abs=NEAR)
        assert 100 - idle - compute == pytest.approx(theirs["non_compute_time_pctg"], abs=NEAR)
        hidden = 100 * whole["hidden_comm_s"] / whole["comm_s"]
        assert hidden == pytest.approx(overlaps.loc[row.rank]["comp_comm_overlap_pctg"], abs=NEAR)
