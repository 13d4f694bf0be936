"""The Chrome trace: valid JSON, a process per rank, a thread per stream, an event per span."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import simdp
from simdp.reports import chrome_trace
from simdp.results.result import Result
from simdp.results.trace import COMPUTE_LANE, TraceBuilder

SCENARIO = Path(__file__).parents[2] / "scenarios" / "8gpu_ring.yaml"


@pytest.fixture(scope="module")
def result():
    chosen = {"workload.steps": 2, "numerics": False, "cluster.world_size": 4}
    return simdp.simulate(simdp.load_scenario(SCENARIO, chosen))


@pytest.fixture(scope="module")
def written(result):
    return json.loads(chrome_trace.write(result))


def events(written, phase):
    return [event for event in written["traceEvents"] if event["ph"] == phase]


def names(written, of):
    return {
        (event["pid"], event.get("tid")): event["args"]
        for event in events(written, "M")
        if event["name"] == of
    }


def by_hand(world_size, counts, name="x"):
    """A result whose ranks have so many spans each."""
    builder = TraceBuilder()
    for rank, count in enumerate(counts):
        for i in range(count):
            builder.add_one(rank, 0, COMPUTE_LANE, "forward", name, float(i), i + 1.0)
    scenario = {"name": "by hand", "seed": 3, "cluster": {"world_size": world_size}}
    return Result(scenario, {}, {}, builder.build())


def test_every_rank_is_a_process_in_its_order(written):
    assert names(written, "process_name") == {
        (rank, None): {"name": f"rank {rank}"} for rank in range(4)
    }
    assert names(written, "process_sort_index") == {
        (rank, None): {"sort_index": rank} for rank in range(4)
    }


def test_every_stream_is_a_named_thread(written, result):
    found = {(rank, args["name"]) for (rank, _), args in names(written, "thread_name").items()}
    assert found == {(span.rank, span.lane) for span in result.trace.spans}
    assert len(names(written, "thread_name")) == len(found)


def test_every_span_is_a_complete_event_in_microseconds(written, result):
    threads = names(written, "thread_name")
    found = events(written, "X")
    assert len(found) == len(result.trace)
    for event, span in zip(found, result.trace.spans, strict=True):
        assert event["pid"] == span.rank
        assert threads[event["pid"], event["tid"]] == {"name": span.lane}
        assert (event["cat"], event["name"]) == (span.activity, span.name)
        assert event["ts"] == pytest.approx(span.start * 1e6, rel=0, abs=1e-6)
        assert event["dur"] == pytest.approx((span.end - span.start) * 1e6, rel=0, abs=2e-6)
        assert event["args"] == {"step": span.step + 1, "nbytes": span.nbytes}


def test_neighbours_on_a_thread_touch_and_never_overlap():
    builder = TraceBuilder()
    for i in range(1000):
        builder.add_one(0, 0, COMPUTE_LANE, "forward", "x", i / 7e6, (i + 1) / 7e6)
    scenario = {"name": "sevenths", "seed": 0, "cluster": {"world_size": 1}}
    written = json.loads(chrome_trace.write(Result(scenario, {}, {}, builder.build())))
    for before, after in pairwise(events(written, "X")):
        assert round(before["ts"] + before["dur"], 6) == after["ts"]


def test_steps_count_from_1_and_the_setup_is_0(written):
    assert {event["args"]["step"] for event in events(written, "X")} == {0, 1, 2}


def test_nothing_else_is_written(written):
    assert set(written) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert {event["ph"] for event in written["traceEvents"]} == {"M", "X"}
    assert written["otherData"] == {"scenario": "8gpu_ring", "seed": 0, "ranks": "0 ... 3 of 4"}


def test_a_name_may_hold_anything():
    odd = 'a "quoted" \\ näme\n'
    (event,) = events(json.loads(chrome_trace.write(by_hand(1, [1], odd))), "X")
    assert event["name"] == odd


@pytest.mark.parametrize(
    ("most", "kept"),
    [(100, [0, 1, 2]), (9, [0, 1, 2]), (8, [0, 1]), (5, [0, 1]), (4, [0]), (1, [0])],
)
def test_beyond_the_limit_the_last_ranks_are_left_out_and_the_file_says_so(monkeypatch, most, kept):
    monkeypatch.setattr(chrome_trace, "MAX_EVENTS", most)
    written = json.loads(chrome_trace.write(by_hand(3, [3, 2, 4])))
    assert written["otherData"]["ranks"] == f"0 ... {kept[-1]} of 3"
    assert sorted({event["pid"] for event in written["traceEvents"]}) == kept
    assert len(events(written, "X")) == sum([3, 2, 4][: len(kept)])


def test_a_rank_that_did_nothing_still_has_its_process():
    written = json.loads(chrome_trace.write(by_hand(2, [1])))
    assert len(names(written, "process_name")) == 2


def test_a_run_without_spans_is_valid():
    written = json.loads(chrome_trace.write(by_hand(2, [])))
    assert events(written, "X") == []


def test_a_loaded_result_has_no_trace_to_write(result):
    with pytest.raises(AssertionError, match="only a result that was just simulated"):
        chrome_trace.write(Result(result.scenario, {}, {}))


def test_writing_leaves_the_result_as_it_is(result):
    trace = result.trace
    columns = ("rank", "step", "lane", "activity", "name", "start", "end", "nbytes")
    before = {name: getattr(trace, name).copy() for name in columns}
    assert chrome_trace.write(result) == chrome_trace.write(result)
    for name, column in before.items():
        np.testing.assert_array_equal(getattr(trace, name), column)
