"""What a step is made of, block by block, against a walk along every rank's own spans."""

from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import MINIMAL

from simdp.engine.simulate import simulate
from simdp.results import metrics
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, FIRST_SEND_LANE, SETUP, TraceBuilder
from simdp.scenario import checked

STRAGGLERS = [
    {"kind": "slow_rank", "rank": 1, "factor": 1.7},
    {"kind": "lognormal", "sigma": 0.3},
    {"kind": "pause", "rank": 2, "every": "20 us", "duration": "7 us"},
]


def hidden_time(trace, world_size):
    """Part of each span during which its rank's compute stream is busy, rank by rank."""
    hidden = np.zeros(len(trace))
    for rank in range(world_size):
        work = (trace.rank == rank) & (trace.lane == COMPUTE_LANE)
        mine = (trace.rank == rank) & trace.select("comm", "wait")
        if not work.any():
            continue
        # Busy time until an instant grows linearly inside each span of work and rests between.
        length = trace.end[work] - trace.start[work]
        grown = np.cumsum(length)
        instants = np.column_stack([trace.start[work], trace.end[work]]).ravel()
        until = np.column_stack([grown - length, grown]).ravel()
        hidden[mine] = np.interp(trace.end[mine], instants, until)
        hidden[mine] -= np.interp(trace.start[mine], instants, until)
    return hidden


def oracle(trace, world_size, num_steps):
    """The same figures by sums over spans."""
    first = 1 if num_steps > 1 else 0
    ends = np.zeros((world_size, num_steps + 1))
    np.maximum.at(ends, (trace.rank, trace.step - SETUP), trace.end)
    ends = np.maximum.accumulate(ends, axis=1)
    length, hidden = trace.end - trace.start, hidden_time(trace, world_size)

    def total(values, *activities):
        mask = trace.select(*activities) & (trace.step >= first)
        sums = np.bincount(trace.rank[mask], values[mask], minlength=world_size)
        return sums / (num_steps - first)

    parts = {
        "compute_s": total(length, "forward", "backward"),
        "update_s": total(length, "update"),
        "exposed_comm_s": total(length - hidden, "comm"),
        "wait_s": total(length - hidden, "wait"),
    }
    step_time = (ends[:, -1] - ends[:, first]) / (num_steps - first)
    return ends, {
        "step_time_s": step_time,
        **parts,
        "comm_s": total(length, "comm"),
        "other_s": step_time - sum(parts.values()),
        "bytes_sent": total(trace.nbytes, "comm"),
    }


def assert_agrees(trace, world_size, num_steps):
    ends, wanted = oracle(trace, world_size, num_steps)
    np.testing.assert_array_equal(metrics.step_ends(trace, world_size, num_steps), ends)
    found = metrics.per_rank(trace, world_size, num_steps)._asdict()
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        # A difference of instants is as exact as the instants are.
        close = 1e-12 * ends[:, -1].max() if name.endswith("_s") else 0.0
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=close, err_msg=name)
    simulated = metrics.times(trace, world_size, num_steps, [1] * num_steps)["simulated_s"]
    assert simulated == trace.end.max(initial=0.0)


@st.composite
def played(draw):
    """Steps as a clock records them: blocks of all or some ranks, or one span at a time."""
    world_size, num_steps = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    builder, single = TraceBuilder(), draw(st.booleans())
    clock, free = np.zeros(world_size), np.zeros(world_size)
    everyone = np.arange(world_size)

    def add(step, lane, activity, start, end, nbytes=0.0):
        ranks = everyone
        if rng.random() < 0.3:
            ranks = everyone[rng.random(world_size) < 0.6]
        if single:
            for rank in rng.permutation(ranks).tolist():
                builder.add_one(rank, step, lane, activity, "x", start[rank], end[rank], nbytes)
        elif len(ranks) == world_size:
            builder.add(ranks, step, lane, activity, "x", start, end, nbytes)
        else:
            builder.add(ranks, step, lane, activity, "x", start[ranks], end[ranks], nbytes)

    for step in range(SETUP, num_steps):
        for kind in draw(st.lists(st.sampled_from("fbuclllw"), max_size=10)):
            later = clock + rng.random(world_size)
            if kind in "fbuc":
                activity = {"f": "forward", "b": "backward", "u": "update", "c": "copy"}[kind]
                add(step, COMPUTE_LANE, activity, clock, later)
                clock = later
            elif kind == "l":
                enter = np.maximum(clock, free)
                begin = np.maximum(enter, clock.max())
                free = begin + 2 * rng.random(world_size)
                add(step, COMM_LANE, "wait", enter, begin)
                add(step, COMM_LANE, "comm", begin, free, float(rng.integers(1, 9)))
                senders = rng.integers(0, world_size, 4)  # which may repeat
                lanes = FIRST_SEND_LANE + rng.integers(0, world_size, 4)
                arrays = begin[senders], free[senders]
                builder.add(senders, step, lanes, "transfer", "x", *arrays, 1.0)
            else:
                clock = np.maximum(clock, free)
        clock = free = np.maximum(clock, free)
    return builder.build(), world_size, num_steps


@pytest.mark.slow
@draws(15, 30)
@given(played())
def test_blocks_of_all_or_some_ranks_give_what_their_spans_give(made):
    assert_agrees(*made)


def test_a_rank_is_done_with_the_last_of_several_spans_of_one_block():
    builder, senders = TraceBuilder(), np.array([1, 0, 1])
    end = np.array([5.0, 2.0, 3.0])
    builder.add(senders, 0, FIRST_SEND_LANE + np.arange(3), "transfer", "x", end - 1, end)
    assert metrics.step_ends(builder.build(), 3, 1).tolist() == [[0, 2], [0, 5], [0, 0]]


@for_each("fabric", ["vector", "event"])
@for_each("stragglers", [[], STRAGGLERS], ids=["calm", "stragglers"])
def test_real_steps_of_both_clocks_give_what_their_spans_give(fabric, stragglers):
    raw = {
        **MINIMAL,
        "cluster": {**MINIMAL["cluster"], "world_size": 4, "stragglers": stragglers},
        "strategy": {"kind": "ddp", "bucket_cap": "64 B", "charge_copies": True},
        "numerics": False,
    }
    raw["workload"] = {**MINIMAL["workload"], "grad_accum": 2, "steps": 3}
    result = simulate(checked(raw, Path()), fabric=fabric)
    num_steps = len(result.metrics["lr"])
    assert num_steps == 3
    assert result.metrics["exposed_comm_s"] > 0
    assert_agrees(result.trace, 4, num_steps)
