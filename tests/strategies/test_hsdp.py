"""HSDP: groups that each have all pieces, and two streams."""

from itertools import pairwise
from pathlib import Path

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from recorded_mlp import trained
from sharded_runs import elements, play, sent, spans
from small_workload import program, workload

import simdp
from simdp.engine.clocks import clock as clocks
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.steps.program import flat
from simdp.strategies.fsdp import HSDP

pytestmark = pytest.mark.slow

NODES = {
    "devices_per_node": 2,
    "inter_node": {"topology": "switch", "link": {"alpha": "10 us", "bandwidth": "5 GB/s"}},
}
RAILS = {**NODES, "inter_node": {**NODES["inter_node"], "links_per_node": 2}}
DEEP = {"widths": [1024] * 7, "microbatch": 256, "dtype": "float32", "numerics": False}


@draws(4, 10)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_bytes_are_those_of_both_levels(widths, shard_size, num_groups):
    result = play(
        {"kind": "hsdp", "shard_size": shard_size}, shard_size * num_groups, widths=widths
    )
    inside = 3 * (shard_size - 1) / shard_size
    across = 2 * (num_groups - 1) / num_groups / shard_size
    padded = sum(-(-b // shard_size) * shard_size * (a + 1) for a, b in pairwise(widths))
    wanted = (inside + across) * 8 * padded
    assert sent(result) == pytest.approx([wanted] * (shard_size * num_groups), rel=1e-12)


@draws(3, 5)
@given(st.sampled_from([(2, 4), (2, 6), (3, 6)]), st.integers(1, 2), st.booleans())
def test_replicas_of_shards_learn_what_ddp_does(sizes, accumulate, clips):
    local, world_size = sizes
    options = {"grad_accum": accumulate, "clip_grad_norm": 0.1 if clips else None}
    cluster = {**NODES, "devices_per_node": local}
    sharded = play("hsdp", world_size, cluster, **options)
    plain = play("ddp", world_size, cluster, **options)
    assert sharded.metrics["replicas_identical"] is True
    for own in sharded.replicas:
        for name, weights in plain.replicas[0].items():
            assert own[name] == pytest.approx(weights, rel=0, abs=1e-12)


def test_shards_lie_inside_a_node_unless_told_otherwise():
    memory = {
        size: play({"kind": "hsdp", "shard_size": size}, 4, NODES, **DEEP).metrics["memory_bytes"]
        for size in (None, 1, 2, 4)
    }
    assert memory[None] == memory[2]
    assert memory[1]["parameters"] == 2 * memory[2]["parameters"] == 4 * memory[4]["parameters"]


def test_pieces_are_summed_across_nodes_on_a_stream_of_their_own_once_they_are_there():
    result = play("hsdp", 4, RAILS, **DEEP)
    assert result.network["why"].startswith("no link is shared")
    inside = [s for s in spans(result) if s.name.startswith("reduce_scatter")]
    every = [s for s in result.trace.spans if s.rank == 0 and s.step == 1]
    across = [s for s in every if s.lane == "comm 2" and s.activity == "comm"]
    assert [s.name for s in across] == [f"all_reduce layers.{n}" for n in (5, 4, 3, 2, 1, 0)]
    for piece, whole in zip(across, inside, strict=True):
        assert piece.start >= whole.end - 1e-15
    gathers = [s for s in spans(result) if s.name.startswith("all_gather")]
    # While a piece is on its way across, the next unit is gathered inside.
    assert any(g.start < a.end and a.start < g.end for g in gathers for a in across)


def test_what_two_streams_do_at_the_same_time_is_exposed_once():
    for cluster in (NODES, RAILS):
        found = play("hsdp", 4, cluster, **DEEP).metrics
        parts = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
        assert sum(found[part] for part in parts) == pytest.approx(found["step_time_s"], rel=1e-9)
        assert found["comm_s"] > found["exposed_comm_s"] > 0


def test_both_clocks_agree_on_two_streams():
    slow = [{"kind": "slow_rank", "rank": 1, "factor": 1.7}]
    result = play("hsdp", 4, {**RAILS, "stragglers": slow}, **DEEP)
    found = checked(result.scenario, Path())
    assert result.network["fabric"] == "vector"
    other = simdp.simulate(found, fabric="event")
    for name in ("step_time_s", "exposed_comm_s", "comm_s", "wait_s"):
        assert other.metrics[name] == pytest.approx(result.metrics[name], rel=1e-9)


def test_a_network_card_that_both_streams_need_is_shared():
    result = play({"kind": "hsdp", "shard_size": 4}, 8, NODES, numerics=False)
    assert result.network["fabric"] == "event"
    assert "is shared" in result.network["why"]


def test_fixed_shares_stand_in_where_a_groups_collective_has_too_many_transfers(monkeypatch):
    few = play("hsdp", 8, NODES, **DEEP)
    chunks = -(-4 * elements(DEEP["widths"]) // 2**19)
    longest = chunks * 3 * 2  # a broadcast along four nodes, by both ranks of a node
    monkeypatch.setattr(clocks, "MAX_EVENT_TRANSFERS", longest)
    assert play("hsdp", 8, NODES, **DEEP).network["fabric"] == few.network["fabric"] == "event"
    monkeypatch.setattr(clocks, "MAX_EVENT_TRANSFERS", longest - 1)
    many = play("hsdp", 8, NODES, **DEEP)
    assert many.network["fabric"] == "fixed-share vector"
    assert many.network["why"].partition(";")[0].endswith(f"of {longest} transfers")
    for name in ("step_time_s", "comm_s", "exposed_comm_s"):
        assert many.metrics[name] == pytest.approx(few.metrics[name], rel=1e-9)


def test_what_was_chosen_for_groups_is_told_with_their_names():
    raw = play("hsdp", 4, NODES, numerics=False).scenario
    raw["collectives"] |= {"all_gather": "auto", "all_reduce": "auto"}
    chosen = simdp.simulate(checked(raw, Path())).network["chosen"]
    assert set(chosen) == {"all_gather (shard)", "all_reduce (replicate)"}
    assert all(entries for entries in chosen.values())


def test_where_nodes_are_slow_replicas_of_nodes_beat_shards_over_all():
    hsdp, fsdp = (play(kind, 8, NODES, **DEEP).metrics["step_time_s"] for kind in ("hsdp", "fsdp"))
    assert hsdp < fsdp


def test_told_times_are_those_of_the_groups():
    cost = {"kind": "nccl"}
    raw = play("hsdp", 4, NODES, **DEEP).scenario
    raw["collectives"]["cost"] = cost
    result = simdp.simulate(checked(raw, Path()))
    gathers = [s for s in spans(result) if s.name.startswith("all_gather")]
    whole = simdp.simulate(checked({**raw, "strategy": {"kind": "fsdp"}}, Path()))
    longer = [s for s in spans(whole) if s.name.startswith("all_gather")]
    assert max(s.end - s.start for s in gathers) < min(s.end - s.start for s in longer)


def test_a_size_that_does_not_divide_the_ranks_is_refused():
    wrong = HSDP(shard_size=4).problem_with(6, workload())
    assert wrong == "shard_size: 4 does not divide the 6 ranks; use one of 1, 2, 3, 6."


def test_algorithms_that_cannot_serve_the_groups_are_refused():
    raw = play("hsdp", 4, NODES, numerics=False).scenario
    raw["collectives"]["reduce_scatter"] = {"kind": "nvls"}
    with pytest.raises(ScenarioError, match=r"collectives\.reduce_scatter: in shard groups nvls"):
        checked(raw, Path())


def test_sums_go_across_after_the_last_micro_step_alone():
    # torch 2.14, two units and two micro-steps: 4 reduce_scatter and 2 all_reduce.
    runs = {
        when: trained(
            {"kind": "hsdp", "shard_size": 2, "units": ["b"], "all_reduce": when},
            4,
            steps=3,
            dtype="float64",
            grad_accum=2,
        )
        for when in ("every", "last")
    }
    losses = [runs[when].metrics["loss"] for when in runs]
    # The mean of four ranks' losses in torch; the same for both but for rounding.
    assert losses[0] == pytest.approx([1.0717368649917303, 1.133800988707976, 1.0911232108652578])
    assert losses[1] == pytest.approx(losses[0], rel=1e-14)
    chosen = workload(grad_accum=2)
    calls = {}
    for when in runs:
        found = flat(program(HSDP(shard_size=2, all_reduce=when), chosen, local_size=2).steady)
        kinds = [type(op).__name__ for op in found]
        calls[when] = kinds.count("AllReduce") / kinds.count("ReduceScatter")
    assert calls == {"every": 1.0, "last": 0.5}
