"""Packed spans: what a browser unpacks is what the trace holds, or says what is left out."""

import zlib
from base64 import b64decode

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.reports.page.timeline import pack, packed, shown
from simdp.results.trace import ACTIVITIES, lane_name

CHANGES = {"workload.steps": 4, "numerics": False}
JITTER = {"cluster.stragglers": [{"kind": "lognormal", "sigma": 0.2}]}


def unpack(found):
    kind = np.dtype(found["type"].lower())
    planes = np.frombuffer(zlib.decompress(b64decode(found["bytes"])), dtype=np.uint8)
    rows = np.ascontiguousarray(planes.reshape(kind.itemsize, found["length"]).T)
    return rows.view(kind).reshape(-1).astype(np.int64)


def spans_of(data):
    """Rank, lane, activity, name, step, start and end of each span, as timeline.js reads them."""
    kind, gap, length = (unpack(data[key]) for key in ("kind", "gap", "length"))
    first = np.concatenate([[0], np.cumsum(unpack(data["counts"]))])
    rows = []
    for rank, group in zip(unpack(data["ranks"]), unpack(data["group"]), strict=True):
        now, before = 0, None
        for at in range(first[group], first[group + 1]):
            lane, activity, name, step = data["kinds"][kind[at]]
            now = (0 if lane != before else now) + gap[at]
            start, now, before = now, now + length[at], lane
            where = (data["lanes"][lane], data["activities"][activity], data["names"][name], step)
            rows.append((int(rank), *where, start * data["tick"], now * data["tick"]))
    return rows


def run(**more):
    return simdp.simulate(simdp.load_scenario("scenarios/8gpu_ring.yaml", {**CHANGES, **more}))


@for_each("few", [0, 10**6])
def test_every_span_of_a_small_run_is_there(few):
    result = run(**JITTER)
    data = packed(shown(result, few=few))
    trace = result.trace
    steps = ~trace.select("transfer") & (trace.step >= 0)
    expected = [
        (
            int(trace.rank[i]),
            lane_name(int(trace.lane[i])),
            ACTIVITIES[trace.activity[i]],
            trace.names[trace.name[i]],
            int(trace.step[i]),
            trace.start[i] - data["begin"],
            trace.end[i] - data["begin"],
        )
        for i in np.flatnonzero(steps)
    ]
    found = spans_of(data)
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    times, exact = (np.array([row[5:] for row in rows]) for rows in (found, expected))
    assert np.abs(times - exact).max() <= 0.51 * data["tick"]


def test_ranks_that_do_the_same_share_their_spans():
    found = shown(run(**{"cluster.stragglers": []}), few=0)
    assert found.ranks == [list(range(8))]
    data = packed(found)
    assert len(spans_of(data)) == 8 * data["kind"]["length"]


def test_of_more_spans_than_there_is_room_for_phases_are_one():
    found = shown(run(**JITTER), most=120)
    assert found.merged is not None
    data = packed(found)
    rows = spans_of(data)
    one_by_one = {int(rank) for rank in found.exact.rank}
    assert len(one_by_one) < 8
    rank = next(rank for rank in range(8) if rank not in one_by_one)
    phases = [row[2] for row in rows if row[0] == rank and row[1] == "compute"]
    assert phases == ["forward", "backward", "update"] * (len(phases) // 3)
    assert data["kind"]["length"] <= 120


def test_of_still_more_whole_ranks_are_left_out_and_the_slowest_is_kept():
    result = run(**JITTER)
    found = shown(result, most=60)
    assert len(found.ranks) < found.num_groups == 8
    slowest = next(iter(found.slow))
    assert [slowest] in found.ranks
    least = shown(result, most=2)  # one rank of each kind stays
    assert set(least.exact.rank.tolist()) == {slowest}
    assert len(set(least.merged.rank.tolist())) == 1


def test_many_ranks_have_a_row_for_each_group_as_in_a_picture():
    more = {"numerics": False, "cluster.topology": "switch", "cluster.world_size": 64}
    found = shown(run(**more))
    assert sorted(rank for row in found.rows for rank in row) == list(range(64))
    rows = packed(found)["rows"]
    assert len(rows) == found.num_rows <= 3
    (slow,) = (row for row in rows if row["name"] == "▲ 3 · 2×")
    assert (slow["rank"], slow["count"]) == (3, 1)
    assert packed(shown(run()))["rows"] == []


def test_groups_that_have_no_room_are_counted():
    more = {"numerics": False, "cluster.topology": "switch", "cluster.world_size": 64}
    found = shown(run(**more, **JITTER))
    assert len(found.rows) == 16 < found.num_rows


def test_steps_tell_when_they_begin_and_end():
    data = packed(shown(run()))
    assert [step for step, _, _ in data["steps"]] == [1, 2, 3, 4]
    assert all(begin < end for _, begin, end in data["steps"])
    assert data["steps"][2][1] == pytest.approx(data["view"][0])


@for_each("values", [[], [0, 1, 2**32 - 1], [7] * 1000])
def test_numbers_come_back(values):
    assert unpack(pack(np.array(values, dtype=np.int64), np.uint32)).tolist() == values
    negative = [-value // 2 for value in values]
    assert unpack(pack(np.array(negative, dtype=np.int64), np.int32)).tolist() == negative


def test_repeated_numbers_take_little_room():
    assert len(pack(np.tile(np.arange(50), 1000), np.uint32)["bytes"]) < 2000
