"""The Chrome trace: valid JSON, a process per rank, a thread per stream, an event per span."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import simdp
from simdp.reports import chrome_trace
from simdp.reports.chrome_trace import STEPS_TID
from simdp.results.metrics import Metrics
from simdp.results.result import Result
from simdp.results.trace import (
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_SEND_LANE,
    SETUP,
    TraceBuilder,
)

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
    return Result(scenario, {}, Metrics(), builder.build())


def test_every_rank_is_a_process_in_its_order(written):
    assert names(written, "process_name") == {
        (rank, None): {"name": f"rank {rank}"} for rank in range(4)
    }
    assert names(written, "process_sort_index") == {
        (rank, None): {"sort_index": rank} for rank in range(4)
    }


def test_every_stream_is_a_named_thread(written, result):
    found = {(rank, args["name"]) for (rank, _), args in names(written, "thread_name").items()}
    steps = {(rank, "steps") for rank in range(4)}
    assert found == {(span.rank, span.lane) for span in result.trace.spans} | steps
    assert len(names(written, "thread_name")) == len(found)


def spans(written):
    """The events of spans, by rank, stream and correlation, which counts them."""
    found = [event for event in events(written, "X") if event["tid"] != STEPS_TID]
    return sorted(found, key=lambda event: event["args"]["correlation"])


def test_every_span_is_a_complete_event_in_microseconds(written, result):
    threads = names(written, "thread_name")
    found = spans(written)
    assert [event["args"]["correlation"] for event in found] == [
        number + 1 for number in range(len(result.trace))
    ]
    for event, span in zip(found, result.trace.spans, strict=True):
        assert event["pid"] == span.rank
        assert threads[event["pid"], event["tid"]] == {"name": span.lane}
        assert event["args"]["activity"] == span.activity
        assert event["args"]["step"] == span.step + 1
        assert event["args"].get("bytes", 0) == span.nbytes
        assert event["ts"] + event["dur"] == pytest.approx(span.end * 1e6, rel=0, abs=2e-6)
        if span.activity != "comm":  # which begins with its wait
            assert event["ts"] == pytest.approx(span.start * 1e6, rel=0, abs=1e-6)


def test_a_collective_lasts_from_when_its_rank_comes_and_holds_its_wait(written, result):
    comm = {e["args"]["correlation"]: e for e in spans(written) if e["args"]["activity"] == "comm"}
    waits = [
        e for e in spans(written) if e["cat"] == "wait" and e["name"] == "wait for the slowest"
    ]
    assert waits
    for wait in waits:
        around = comm[wait["args"]["correlation"] + 1]  # the next one of the same stream
        assert around["ts"] == wait["ts"]
        assert around["dur"] > wait["dur"]
        assert around["tid"] == wait["tid"]
    listed = [
        event["args"]["correlation"]
        for event in events(written, "X")
        if "correlation" in event["args"]
    ]
    assert all(
        listed.index(wait["args"]["correlation"] + 1) < listed.index(wait["args"]["correlation"])
        for wait in waits
    )  # Perfetto nests the second of two that begin at once


def test_collectives_have_the_fields_of_torchs_traces(written, result):
    itemsize, sizes = 4, result.metrics["bucket_bytes"]
    reduced = [e for e in spans(written) if e["name"].startswith("ncclDevKernel_AllReduce bucket")]
    assert reduced
    for event in reduced:
        args = event["args"]
        assert event["cat"] == "kernel"
        assert (args["Collective name"], args["Group size"]) == ("allreduce", 4)
        assert args["dtype"] == "Float"
        assert args["In msg nelems"] == args["Out msg nelems"]
    last = [e["args"]["In msg nelems"] * itemsize for e in reduced if e["args"]["step"] == 2]
    assert sorted(last) == sorted(sizes * 4)


def test_every_step_of_every_rank_is_annotated(written, result):
    marks = [event for event in events(written, "X") if event["tid"] == STEPS_TID]
    assert {event["cat"] for event in marks} == {"user_annotation"}
    found = {(event["pid"], event["name"]): event for event in marks}
    assert set(found) == {(r, f"ProfilerStep#{step}") for r in range(4) for step in (1, 2)}
    for rank in range(4):
        first, second = (found[rank, f"ProfilerStep#{step}"] for step in (1, 2))
        assert first["ts"] + first["dur"] == pytest.approx(second["ts"], abs=1e-5)
        end = result.step_ends[rank, 2] * 1e6
        assert second["ts"] + second["dur"] == pytest.approx(end, abs=1e-5)


def test_arrows_join_events_that_there_are(written):
    starts = {event["id"]: event for event in events(written, "s")}
    ends = {event["id"]: event for event in events(written, "f")}
    assert starts.keys() == ends.keys() != set()
    of_spans = [(e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"]) for e in spans(written)]
    for number, source in starts.items():
        target = ends[number]
        assert (source["cat"], target["bp"]) == ("ac2g", "e")
        for event in (source, target):
            place = event["pid"], event["tid"]
            assert any(
                (pid, tid) == place and begin - 1e-6 <= event["ts"] <= end + 1e-6
                for pid, tid, begin, end in of_spans
            )
        assert source["ts"] <= target["ts"] + 1e-6


def test_counters_are_what_the_ranks_keep(written, result):
    highest = [0.0] * 4
    for event in events(written, "C"):
        assert event["name"] == "memory"
        allocated = event["args"]["Total Allocated"]
        highest[event["pid"]] = max(highest[event["pid"]], allocated)
    assert highest == pytest.approx(result.metrics["peak_memory_bytes"])


def test_neighbours_on_a_thread_touch_and_never_overlap():
    builder = TraceBuilder()
    for i in range(1000):
        builder.add_one(0, 0, COMPUTE_LANE, "forward", "x", i / 7e6, (i + 1) / 7e6)
    scenario = {"name": "sevenths", "seed": 0, "cluster": {"world_size": 1}}
    written = json.loads(chrome_trace.write(Result(scenario, {}, Metrics(), builder.build())))
    for before, after in pairwise(spans(written)):
        assert round(before["ts"] + before["dur"], 6) == after["ts"]


def test_steps_count_from_1_and_the_setup_is_0(written):
    assert {event["args"]["step"] for event in events(written, "X")} == {0, 1, 2}


def test_nothing_else_is_written(written):
    assert set(written) == {
        "schemaVersion",
        "deviceProperties",
        "distributedInfo",
        "displayTimeUnit",
        "baseTimeNanoseconds",
        "traceName",
        "otherData",
        "traceEvents",
    }
    assert {event["ph"] for event in written["traceEvents"]} == {"M", "X", "s", "f", "C"}
    assert written["distributedInfo"]["world_size"] == 4
    assert written["deviceProperties"] == [{"id": 0, "name": "v100-sxm2-32gb"}]
    assert written["otherData"] == {"scenario": "8gpu_ring", "seed": 0, "ranks": "0 ... 3 of 4"}


def test_a_name_may_hold_anything():
    odd = 'a "quoted" \\ näme\n'
    (event,) = spans(json.loads(chrome_trace.write(by_hand(1, [1], odd))))
    assert event["name"] == f"forward {odd}"


@pytest.mark.parametrize(
    ("most", "kept"),
    [(100, [0, 1, 2]), (9, [0, 1, 2]), (8, [0, 2]), (7, [0, 2]), (6, [0]), (1, [0])],
)
def test_beyond_the_limit_the_last_ranks_are_left_out_and_the_file_says_so(monkeypatch, most, kept):
    monkeypatch.setattr(chrome_trace, "MAX_EVENTS", most)
    written = json.loads(chrome_trace.write(by_hand(3, [3, 2, 4])))
    which = {1: "0", 2: "0, 2", 3: "0 ... 2"}[len(kept)]  # rank 2 is the slowest
    assert written["otherData"]["ranks"] == f"{which} of 3"
    assert sorted({event["pid"] for event in written["traceEvents"]}) == kept
    assert len(spans(written)) == sum([3, 2, 4][rank] for rank in kept)


def with_transfers(world_size, num_steps, per_call):
    """Two spans per rank and step, and a collective of so many transfers in each step."""
    builder, ranks = TraceBuilder(), np.arange(world_size)
    for step in range(SETUP, num_steps):
        start, end = np.full(world_size, float(step + 1)), np.full(world_size, step + 2.0)
        if step > SETUP:
            builder.add(ranks, step, COMPUTE_LANE, "forward", "l1", start, end)
            builder.add(ranks, step, COMM_LANE, "comm", "all_reduce bucket 0", start, end, 8.0)
        for one in range(per_call):
            times = start[:1] + one / per_call, start[:1] + (one + 1) / per_call
            lane = FIRST_SEND_LANE + np.array([1])
            builder.add(np.array([0]), step, lane, "transfer", "bucket 0", *times, 8.0)
    scenario = {"name": "by hand", "seed": 3, "cluster": {"world_size": world_size}}
    return Result(scenario, {}, Metrics(), builder.build())


def kept(monkeypatch, result, most):
    """What a file with a limit says, its ranks, first step and transfers, and all its spans."""
    monkeypatch.setattr(chrome_trace, "MAX_EVENTS", most)
    written = json.loads(chrome_trace.write(result))
    shown = spans(written)
    said = {key: written["otherData"].get(key) for key in ("ranks", "steps", "transfers")}
    num_ranks = len({event["pid"] for event in shown})
    first = min(event["args"]["step"] for event in shown)
    num_transfers = sum(event["cat"] == "transfer" for event in shown)
    return said, num_ranks, first, num_transfers, len(shown)


@pytest.mark.parametrize(
    ("most", "transfers", "said"),
    [
        (44, 20, None),  # 3 steps x 4 ranks x 2 spans, and 4 calls of 5 transfers
        (43, 15, "the first 15 of 20"),
        (34, 10, "the first 10 of 20"),
        (33, 5, "the first 5 of 20"),
        (28, 0, "none of 20"),
        (24, 0, "none of 20"),
    ],
)
def test_transfers_of_late_collectives_go_before_any_rank_does(monkeypatch, most, transfers, said):
    found = kept(monkeypatch, with_transfers(4, 3, 5), most)
    told = {"ranks": "0 ... 3 of 4", "steps": None, "transfers": said}
    assert found == (told, 4, 0 if transfers else 1, transfers, 24 + transfers)


@pytest.mark.parametrize(
    ("most", "ranks", "steps"),
    [
        (39, 9, None),  # of 10 ranks of 4 spans, 9 fit with all steps
        (32, 8, None),
        (31, 10, "2 ... 2 of 2"),  # a step is 20 spans
        (20, 10, "2 ... 2 of 2"),
        (19, 9, "2 ... 2 of 2"),
        (3, 1, "2 ... 2 of 2"),  # a rank and a step there is always
        (1, 1, "2 ... 2 of 2"),
    ],
)
def test_early_steps_go_only_if_a_few_ranks_would_not_fit_with_them(
    monkeypatch, most, ranks, steps
):
    result = with_transfers(10, 2, 0)
    said, num_ranks, first, transfers, shown = kept(monkeypatch, result, most)
    listed = f"0 ... {ranks - 1}" if ranks > 1 else "0"
    assert said == {"ranks": f"{listed} of 10", "steps": steps, "transfers": None}
    assert (num_ranks, first, transfers) == (ranks, 2 if steps else 1, 0)
    assert shown == ranks * 2 * (1 if steps else 2)


def test_transfers_go_with_the_steps_and_ranks_that_they_belong_to(monkeypatch):
    said, ranks, first, transfers, shown = kept(monkeypatch, with_transfers(10, 2, 3), 26)
    assert said["steps"] == "2 ... 2 of 2"
    assert said["transfers"] == "the first 3 of 9"  # of the last step
    assert (ranks, first, transfers, shown) == (10, 2, 3, 23)
    said, ranks, first, transfers, shown = kept(monkeypatch, with_transfers(10, 2, 3), 19)
    assert said["transfers"] == "none of 9"
    assert (ranks, first, transfers, shown) == (9, 2, 0, 18)


def test_a_setup_alone_is_cut_by_ranks(monkeypatch):
    builder, ranks = TraceBuilder(), np.arange(6)
    builder.add(ranks, SETUP, COMM_LANE, "comm", "x", ranks * 0.0, ranks + 1.0)
    scenario = {"name": "by hand", "seed": 3, "cluster": {"world_size": 6}}
    said, num_ranks, first, _, shown = kept(
        monkeypatch, Result(scenario, {}, Metrics(), builder.build()), 4
    )
    assert said == {"ranks": "0 ... 3 of 6", "steps": None, "transfers": None}
    assert (num_ranks, first, shown) == (4, 0, 4)


@pytest.mark.slow
def test_a_run_of_many_ranks_makes_a_file_of_its_limit():
    """And asks for no order of all spans on the way, which would take seconds."""
    builder, ranks = TraceBuilder(), np.arange(10_000)
    for step in range(3):
        start, end = np.full(10_000, float(step)), np.full(10_000, step + 1.0)
        builder.add(ranks, step, COMPUTE_LANE, "forward", "l1", start, end)
    scenario = {"name": "by hand", "seed": 3, "cluster": {"world_size": 10_000}}
    made = Result(scenario, {}, Metrics(), builder.build())
    written = json.loads(chrome_trace.write(made))
    assert len(spans(written)) == chrome_trace.MAX_EVENTS // 3 * 3
    assert written["otherData"]["ranks"] == "0 ... 8332 of 10000"
    assert "_columns" not in vars(made.trace)


def test_a_rank_that_did_nothing_still_has_its_process():
    written = json.loads(chrome_trace.write(by_hand(2, [1])))
    assert len(names(written, "process_name")) == 2


def test_a_run_without_spans_is_valid():
    written = json.loads(chrome_trace.write(by_hand(2, [])))
    assert events(written, "X") == []


def test_a_loaded_result_has_no_trace_to_write(result):
    with pytest.raises(AssertionError, match="only a result that was just simulated"):
        chrome_trace.write(Result(result.scenario, {}, Metrics()))


def test_writing_leaves_the_result_as_it_is(result):
    trace = result.trace
    columns = ("rank", "step", "lane", "activity", "name", "start", "end", "nbytes")
    before = {name: getattr(trace, name).copy() for name in columns}
    assert chrome_trace.write(result) == chrome_trace.write(result)
    for name, column in before.items():
        np.testing.assert_array_equal(getattr(trace, name), column)
