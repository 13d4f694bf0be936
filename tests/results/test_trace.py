"""Spans and traces: columns in order, lanes without overlap, and spans made as they are asked."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.engine.simulate import simulate
from simdp.results import metrics
from simdp.results.metrics import Idle
from simdp.results.trace import (
    ACTIVITIES,
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_SEND_LANE,
    SETUP,
    Span,
    TraceBuilder,
    columns_of,
    lane_name,
)
from simdp.scenario import load_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"


INSTANTS = st.integers(0, 4).map(float)


@pytest.fixture
def trace():
    """Two ranks, recorded out of order, one span at a time and as a block."""
    builder = TraceBuilder()
    builder.add_one(1, 0, COMPUTE_LANE, "update", "sgd", 3.0, 4.0)
    builder.add_one(0, 0, FIRST_SEND_LANE + 1, "transfer", "bucket 0", 1.0, 2.0, 8.0)
    both = np.array([0, 1])
    start, end = np.array([0.0, 0.5]), np.array([1.0, 3.0])
    builder.add(both, 0, COMPUTE_LANE, "forward", "l1", start, end)
    builder.add(both, 0, COMM_LANE, "comm", "bucket 0", start + 1, end + 1, np.array([8.0, 4.0]))
    builder.add_one(0, SETUP, COMM_LANE, "comm", "parameters", 0.0, 0.5, 2.0)
    return builder.build()


def test_spans_are_ordered_by_rank_lane_and_start(trace):
    keys = [(s.rank, s.lane, s.start) for s in trace.spans]
    assert keys == [
        (0, "compute", 0.0),
        (0, "comm", 0.0),
        (0, "comm", 1.0),
        (0, "send to 1", 1.0),
        (1, "compute", 0.5),
        (1, "compute", 3.0),
        (1, "comm", 1.5),
    ]


def test_a_span_has_the_values_that_were_recorded(trace):
    assert trace.spans[0] == Span(0, 0, "compute", "forward", "l1", 0.0, 1.0, 0.0)
    assert trace.spans[1] == Span(0, -1, "comm", "comm", "parameters", 0.0, 0.5, 2.0)
    assert trace.spans[3] == Span(0, 0, "send to 1", "transfer", "bucket 0", 1.0, 2.0, 8.0)
    assert trace.spans[6].nbytes == 4.0
    assert [type(value) for value in trace.spans[6]] == [
        int,
        int,
        str,
        str,
        str,
        float,
        float,
        float,
    ]


def test_spans_behave_like_a_list(trace):
    everything = list(trace.spans)
    assert len(trace) == len(trace.spans) == len(everything) == 7
    assert trace.spans[-1] == everything[-1]
    assert trace.spans[1:6:2] == everything[1:6:2]
    assert trace.spans[::-1] == everything[::-1]
    assert everything[2] in trace.spans
    assert trace.spans.index(everything[2]) == 2
    with pytest.raises(IndexError):
        trace.spans[7]


def test_select_marks_the_spans_of_some_activities(trace):
    marked = [
        s.activity
        for s, yes in zip(trace.spans, trace.select("comm", "update"), strict=True)
        if yes
    ]
    assert marked == ["comm", "comm", "update", "comm"]
    assert not trace.select().any()


def test_the_order_of_recording_leaves_no_mark():
    spans = [
        (r, 0, COMPUTE_LANE, a, n, 0.0, 0.0)
        for r in (0, 1)
        for a in ("forward", "copy")
        for n in "ba"
    ]
    found = []
    for rows in (spans, spans[::-1]):
        builder = TraceBuilder()
        for row in rows:
            builder.add_one(*row)
        found.append(builder.build())
    assert list(found[0].spans) == list(found[1].spans)
    assert found[0].names == found[1].names == ["a", "b"]


def test_a_span_of_no_length_comes_before_what_begins_at_its_instant():
    """Else a lane's spans would overlap in their order, and hidden time come out wrong."""
    builder = TraceBuilder()
    builder.add_one(0, 0, COMPUTE_LANE, "backward", "x", 0.0, 0.0)
    builder.add_one(0, 0, COMPUTE_LANE, "forward", "x", 0.0, 3.0)
    builder.add_one(0, 0, COMM_LANE, "comm", "x", 1.0, 2.0)
    trace = builder.build()
    assert [span.activity for span in trace.spans] == ["backward", "forward", "comm"]
    comm = trace.start[2:], trace.end[2:]
    assert Idle(trace, 1).within(np.array([0]), *comm).tolist() == [0.0]


@st.composite
def recorded(draw):
    """A builder with blocks and single spans of a few ranks, and a list of the same spans."""
    builder, rows = TraceBuilder(), []
    for _ in range(draw(st.integers(0, 8))):
        ranks = draw(st.lists(st.integers(0, 4), max_size=6))
        step, lane = draw(st.integers(-1, 2)), draw(st.integers(0, 4))
        activity, name = draw(st.sampled_from(ACTIVITIES)), draw(st.sampled_from("abc"))
        start = draw(st.lists(INSTANTS, min_size=len(ranks), max_size=len(ranks)))
        end = [instant + draw(INSTANTS) for instant in start]
        nbytes = [float(draw(st.integers(0, 1))) for _ in ranks]
        fixed = (step, lane_name(lane), activity, name)
        rows += [
            Span(rank, *fixed, *times, sent)
            for rank, *times, sent in zip(ranks, start, end, nbytes, strict=True)
        ]
        if draw(st.booleans()):
            arrays = np.array(start, dtype=float), np.array(end, dtype=float), np.array(nbytes)
            builder.add(np.array(ranks, dtype=np.int64), step, lane, activity, name, *arrays)
        else:
            for rank, *times, sent in zip(ranks, start, end, nbytes, strict=True):
                builder.add_one(rank, step, lane, activity, name, *times, sent)
    return builder, rows


def in_order(span):
    lane = ["compute", "comm", *(lane_name(FIRST_SEND_LANE + i) for i in range(5))].index(span.lane)
    facts = ACTIVITIES.index(span.activity), span.name
    return (span.rank, lane, span.start, span.end, *facts)


@pytest.mark.slow
@given(recorded())
def test_whatever_is_recorded_comes_out_once_and_in_order(made):
    builder, rows = made
    trace = builder.build()
    assert len(trace) == len(rows)
    spans = list(trace.spans)
    assert sorted(spans) == sorted(rows)
    assert [in_order(span) for span in spans] == sorted(map(in_order, rows))


@pytest.mark.slow
@given(recorded(), st.lists(st.integers(0, 5), max_size=4))
def test_the_spans_of_some_ranks_are_those_of_the_whole_trace(made, ranks):
    trace = made[0].build()
    some = trace.of_ranks(ranks)
    assert list(some.spans) == [span for span in trace.spans if span.rank in ranks]
    assert some.names == trace.names


def test_nobody_pays_for_an_order_that_nobody_asks_for(monkeypatch):
    """Metrics, and parts of a trace, go through blocks; columns of all spans are for plots."""
    builder, ranks = TraceBuilder(), np.arange(6)
    builder.add(ranks, 0, COMPUTE_LANE, "forward", "x", ranks * 0.0, ranks + 1.0)
    trace = builder.build()
    ordered = []
    monkeypatch.setattr(
        "simdp.results.trace.columns_of",
        lambda blocks: ordered.append(blocks) or columns_of(blocks),
    )
    metrics.times(trace, 6, 1, [6])
    assert (len(trace), len(trace.of_ranks(range(2)))) == (6, 2)
    assert ordered == []
    assert trace.rank.tolist() == list(range(6))
    assert len(trace.end) == 6
    assert ordered == [trace.blocks]


def test_arrays_are_kept_and_not_copied():
    """So that what begins where the last work ended costs no memory for its start."""
    builder, first = TraceBuilder(), np.arange(4)
    instants = [np.full(4, float(i)) for i in range(3)]
    for start, end in pairwise(instants):
        builder.add(first.copy(), 0, COMPUTE_LANE, "forward", "x", start, end, np.full(4, 8.0))
    one, two = builder.build().blocks
    assert one.start is instants[0]
    assert one.end is two.start is instants[1]
    assert one.ranks is two.ranks
    assert one.nbytes == two.nbytes == 8.0
    assert isinstance(one.nbytes, float)


def test_an_empty_trace_has_no_spans():
    trace = TraceBuilder().build()
    assert (len(trace), list(trace.spans), trace.names) == (0, [], [])


def test_an_unknown_activity_is_our_fault():
    with pytest.raises(ValueError, match="not in tuple"):
        TraceBuilder().add_one(0, 0, COMPUTE_LANE, "dance", "x", 0.0, 1.0)


def test_lanes_have_names():
    assert [lane_name(lane) for lane in range(4)] == ["compute", "comm", "send to 0", "send to 1"]


# Real runs

QUICK = {"numerics": False, "sweep": {}}
OVERRIDES = {
    "8gpu_ring": {**QUICK, "workload.steps": 3},
    "naive_vs_overlap": QUICK,
    "ring_vs_tree": {**QUICK, "cluster.world_size": 8, "collectives.all_reduce": "tree"},
    "seed_mlp": QUICK,
    "straggler": {**QUICK, "cluster.stragglers.0.factor": 2},
    "two_nodes": {**QUICK, "collectives.all_reduce": "tree"},
}


@pytest.fixture(scope="module", params=OVERRIDES)
def played(request):
    scenario = load_scenario(SCENARIOS / f"{request.param}.yaml", OVERRIDES[request.param])
    return simulate(scenario, keep_trace=True)


@pytest.mark.slow
def test_spans_of_a_lane_never_overlap(played):
    """Beyond rounding: an instant is shared by the end of one span and the start of the next."""
    for one, next_one in pairwise(played.trace.spans):
        if (one.rank, one.lane) == (next_one.rank, next_one.lane):
            assert next_one.start >= one.end - 1e-12 * one.end, (one, next_one)


def test_no_span_ends_before_it_starts_or_begins_before_the_run(played):
    trace = played.trace
    assert (trace.start >= 0).all()
    assert (trace.end >= trace.start).all()
    assert (trace.nbytes >= 0).all()
    assert trace.end.max() == pytest.approx(played.metrics["simulated_s"], rel=1e-12)


def test_every_rank_takes_part_in_every_step(played):
    trace = played.trace
    steps = range(len(played.metrics["lr"]))
    done = set(zip(trace.rank.tolist(), trace.step.tolist(), strict=True))
    assert {(rank, step) for rank in range(played.world_size) for step in steps} <= done


def test_lanes_hold_what_belongs_to_them(played):
    compute = {"forward", "backward", "copy", "update"}
    for span in played.trace.spans:
        assert span.activity in ACTIVITIES
        assert (span.lane == "compute") == (span.activity in compute)
        assert span.lane.startswith("send to ") == (span.activity == "transfer")
        assert span.lane != f"send to {span.rank}"


def test_a_transfer_lies_inside_its_collective(played):
    """It starts after the last of its two ranks has entered, and ends before its sender leaves."""
    calls = {}
    for span in played.trace.spans:
        if span.lane == "comm":
            calls.setdefault((span.rank, span.step), []).append(span)
    for span in played.trace.spans:
        if span.activity == "transfer":
            slack = 1e-12 * span.end
            own = calls[span.rank, span.step]
            assert any(
                call.name.endswith(span.name) and call.end >= span.end - slack for call in own
            ), span
            assert min(call.start for call in own) <= span.start + slack
