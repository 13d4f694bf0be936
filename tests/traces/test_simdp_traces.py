from pathlib import Path

import numpy as np
import pytest
from kineto import put

import simdp
from simdp.reports import chrome_trace
from simdp.traces import COMMUNICATION, COMPUTE, kind_of, read_traces
from simdp.traces.intervals import Instants

pytestmark = pytest.mark.slow

SCENARIO = Path(__file__).parents[2] / "scenarios" / "8gpu_ring.yaml"
SLOW = {"kind": "slow_rank", "rank": 1, "factor": 1.5}


@pytest.fixture(scope="module")
def result():
    chosen = {"workload.steps": 3, "numerics": False, "cluster.world_size": 4}
    return simdp.simulate(simdp.load_scenario(SCENARIO, chosen | {"cluster.stragglers": [SLOW]}))


@pytest.fixture(scope="module")
def traces(result, tmp_path_factory):
    path = put(tmp_path_factory.mktemp("ours") / "trace.json", chrome_trace.write(result))
    assert kind_of(path) == "traces"
    return read_traces(path)


def test_our_own_trace_is_read_by_rank(traces):
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    for trace in traces:
        assert (trace.source, trace.world_size, trace.device_name) == ("simdp", 4, "v100-sxm2-32gb")
        assert trace.steps.number.tolist() == [1, 2, 3]
        assert trace.origin_ns == 0
        assert trace.remarks == ()


def test_its_steps_compute_and_collectives_are_the_metrics(result, traces):
    metrics = result.metrics
    lasting = [trace.steps.end[2] - trace.steps.start[2] for trace in traces]
    assert lasting == pytest.approx([metrics["step_time_s"]] * 4, rel=1e-4)
    compute, sizes = [], set()
    for trace in traces:
        kernels, found = trace.kernels, trace.collectives
        mine = (kernels.kind == COMPUTE) & (kernels.step == 2)
        compute.append(Instants.of(kernels.start[mine], kernels.end[mine]).length())
        last = found.step == 2
        sizes.add(tuple((4 * found.num_elements[last]).tolist()))
        assert (kernels.kind[found.kernel] == COMMUNICATION).all()
        assert set(found.dtype.tolist()) == {"float32"}
        assert set(found.group_size.tolist()) == {4}
    spent = metrics["compute_s"] + metrics["update_s"]
    assert np.mean(compute) == pytest.approx(spent, rel=1e-3)
    assert compute[1] > 1.3 * compute[0]
    assert sizes == {tuple(metrics["bucket_bytes"])}


def test_a_late_rank_enters_last_and_all_leave_together(traces):
    first = [np.flatnonzero(trace.collectives.step == 2)[0] for trace in traces]
    entered = np.array([t.collectives.start[at] for t, at in zip(traces, first, strict=True)])
    left = np.array([t.collectives.end[at] for t, at in zip(traces, first, strict=True)])
    assert entered.argmax() == 1
    assert np.ptp(left) < 1e-8


def test_our_traces_by_rank_say_the_same_and_more(result, traces, tmp_path):
    result.save_traces(tmp_path)
    for trace, other in zip(read_traces(tmp_path), traces, strict=True):
        assert (trace.source, trace.rank, trace.remarks) == ("simdp", other.rank, ())
        assert trace.steps.number.tolist() == [1, 2, 3]
        found, same = trace.collectives, other.collectives
        assert found.num_elements.tolist() == same.num_elements.tolist()
        instants = (trace.origin_ns - other.origin_ns) * 1e-9 + found.end
        assert instants == pytest.approx(same.end, abs=1e-8)
        assert not np.isnan(trace.kernels.launched).any()
        assert not np.isnan(found.enqueued).any()


def test_a_part_of_the_ranks_is_called_one(result, tmp_path):
    text = chrome_trace.write(result).replace('"ranks": "0 ... 3 of 4"', '"ranks": "0, 2 of 4"')
    traces = read_traces(put(tmp_path / "trace.json", text))
    assert traces[0].remarks == ("It shows a part of the ranks: 0, 2 of 4.",)
