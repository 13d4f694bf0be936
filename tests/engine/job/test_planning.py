"""Planning: what the runs of a job need follows from its scenario."""

import pytest
from for_each import for_each
from small_scenario import CLUSTER, WORKLOAD

import simdp
from simdp.engine.job.planning import planned, written
from simdp.engine.job.training import Length, length_of
from simdp.errors import ScenarioError
from simdp.job.targets import SamplesNeeded

NODES = {
    **CLUSTER,
    "world_size": 8,
    "devices_per_node": 2,
    "topology": "switch",
    "inter_node": {"topology": "switch", "link": "ib-hdr"},
}
LARGE = {
    "model": {"kind": "parameters", "num_params": 1_000_000_000},
    "microbatch": 1,
    "steps": 1000,
    "optimizer": "adam",
    "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "2 s"}]},
}
KEPT = {"every": 10, "storage": "10 GB/s"}


def large(load, checkpoint=KEPT, **top):
    return planned(load(cluster=NODES, workload=LARGE, checkpoint=checkpoint, **top))


def test_a_checkpoint_has_weights_and_state_once(load):
    saving = large(load).savings[-1]
    assert saving.blocking == saving.load == pytest.approx(12e9 / 10e9)


def test_in_mixed_precision_it_has_14_bytes_per_parameter(load):
    workload = {**LARGE, "precision": {"kind": "mixed", "dtype": "bfloat16"}}
    scenario = load(cluster=NODES, workload=workload, checkpoint=KEPT)
    assert written(scenario).whole == 14e9


@for_each(
    ("strategy", "per_rank", "per_node"),
    [
        ("ddp", 12e9, 12e9),
        ("fsdp", 1.5e9, 3e9),
        ({"kind": "hsdp", "shard_size": 2}, 6e9, 12e9),
        ({"kind": "zero1", "communication": "deepspeed"}, 1.5e9, 3e9),
    ],
)
def test_ranks_write_their_shards_and_plain_ddp_one_rank_all(strategy, per_rank, per_node, load):
    what = written(load(cluster=NODES, workload=LARGE, checkpoint=KEPT, strategy=strategy))
    assert (what.per_rank, what.per_node) == pytest.approx((per_rank, per_node), rel=1e-3)


def test_writers_that_are_asked_for_are_spread_over_the_nodes(load):
    kept = {**KEPT, "writers": 6}
    what = written(load(cluster=NODES, workload=LARGE, checkpoint=kept))
    assert what == pytest.approx((12e9, 2e9, 4e9))


def test_writers_of_a_node_share_its_way_to_storage(load):
    narrow = {**KEPT, "per_node": "1 GB/s"}
    assert large(load, narrow).savings[-1].blocking == pytest.approx(12.0)
    sharded = large(load, narrow, strategy="fsdp").savings[-1]
    assert sharded.blocking == pytest.approx(3.0, rel=1e-3)
    assert large(load, {**narrow, "incremental": "20 %"}).savings[-1][1:4] == pytest.approx(
        (2.4, 0.0, 12.0)
    )


def test_only_the_copy_to_the_hosts_holds_up_an_asynchronous_one(load):
    behind = large(load, {**KEPT, "mode": "asynchronous"}).savings[-1]
    assert behind.blocking == pytest.approx(12e9 / 31.51e9, rel=1e-3)  # pcie4-x16
    assert behind.background == pytest.approx(1.2)
    given = {"every": 10, "write": "9 s", "host_copy": "2 s", "mode": "asynchronous"}
    assert large(load, given).savings[-1][1:4] == (2.0, 9.0, 9.0)


def test_copies_in_memory_stand_before_storage(load):
    levels = [{"every": "10 s", "bandwidth": "6 GB/s"}, {"every": 3, "write": "1 s"}]
    plan = large(load, {**KEPT, "levels": levels}, recovery={"load": "7 s"})
    every = [(s.every, s.blocking, s.load) for s in plan.savings]
    assert every == [(5, 2.0, 2.0), (3, 1.0, 1.0), (10, pytest.approx(1.2), 7.0)]


def test_a_step_is_simulated_on_as_many_nodes_as_there_may_be(load):
    elastic = {"kind": "elastic", "min_nodes": 2}
    plan = large(load, recovery=elastic)
    assert sorted(plan.paces) == [2, 3, 4]
    assert all(2.0 < pace.step < 4 and pace.headway == 1 for pace in plan.paces.values())
    kept = {**WORKLOAD, "global_batch": 64, "microbatch": None, "epochs": 3}
    plan = planned(load(cluster=NODES, workload=kept, checkpoint=KEPT, recovery=elastic))
    assert {pace.headway for pace in plan.paces.values()} == {1.0}
    fewer = {**WORKLOAD, "epochs": 3}
    plan = planned(load(cluster=NODES, workload=fewer, checkpoint=KEPT, recovery=elastic))
    assert [plan.paces[n].headway for n in (2, 3, 4)] == [0.5, 0.75, 1.0]


@pytest.mark.long
def test_a_strategys_sizes_are_kept(load):
    hsdp = {"kind": "hsdp", "shard_size": 4}
    elastic = {"kind": "elastic", "min_nodes": 1}
    assert sorted(large(load, recovery=elastic, strategy=hsdp).paces) == [2, 4]


def test_slow_ranks_and_data_are_told_apart(load):
    slow = {**NODES, "stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 1.5}]}
    plan = planned(load(cluster=slow, workload=LARGE))
    assert plan.pace.shares.straggler == pytest.approx(1 / 3, rel=0.02)
    assert sum(plan.pace.shares) == pytest.approx(1)
    late = {**LARGE, "input": {"per_sample": "3 s", "workers": 1}}
    plan = planned(load(cluster=NODES, workload=late))
    assert plan.pace.shares.data == pytest.approx(1 / 3, rel=0.02)


def test_a_group_heals_over_the_network_between_nodes(load):
    groups = {"kind": "replica_groups", "quorum": "20 ms"}
    plan = large(load, recovery=groups)
    assert plan.heal == pytest.approx(12e9 / 25e9)
    assert plan.pace.shares.other == pytest.approx(0.01, rel=0.02)
    assert large(load, recovery={**groups, "heal_bandwidth": "1 GB/s"}).heal == 12.0


@for_each("stragglers", [[], [{"kind": "jitter", "sigma": 0.2}]])
def test_a_step_of_a_strategy_with_a_period_is_the_mean_of_whole_periods(stragglers, load):
    local = {"kind": "local_sgd", "local_steps": 12, "warmup_steps": 5}
    cluster = {**NODES, "stragglers": stragglers}
    found = planned(load(cluster=cluster, workload=LARGE, strategy=local)).pace.step
    workload = {**LARGE, "steps": 13}
    steady = load(cluster=cluster, workload=workload, strategy={**local, "warmup_steps": 0},
                  numerics=False)  # fmt: skip
    metrics = simdp.simulate(steady).metrics
    assert metrics["comm_s"] > 0
    assert found == pytest.approx(metrics["step_time_s"], rel=1e-9)


def test_replica_groups_cost_time_in_every_step(load):
    alone = large(load).pace.step
    groups = {"kind": "replica_groups", "group_nodes": 2}
    messages = large(load, recovery=groups).pace.step - alone
    assert messages == pytest.approx(4 * 14e-6, rel=1e-6)  # of ib-hdr
    hsdp = {"kind": "hsdp", "shard_size": 4}
    plain = large(load, strategy=hsdp).pace.step
    over = {**groups, "quorum": "0 s", "exchange_bandwidth": "10 GB/s"}
    pace = large(load, strategy=hsdp, recovery=over).pace
    # 4e9 bytes of gradients over 4 ranks, 2 of them on a node; 2 groups, so 2 (2 - 1) / 2 of it
    assert pace.step - plain == pytest.approx(2e9 / 10e9)
    assert pace.shares.other == pytest.approx(0.2 / pace.step)
    whole = large(load, strategy="ddp", recovery=over).pace.step - large(load).pace.step
    assert whole == pytest.approx(8e9 / 10e9)


def test_a_job_is_as_long_as_its_workload(load):
    assert length_of(load(workload=LARGE, cluster=NODES))[:2] == (1000, False)
    assert length_of(load(workload={**WORKLOAD, "epochs": 3}))[:2] == (6, True)
    short = load(workload={**WORKLOAD, "dataset": {"kind": "regression", "num_samples": 6400}},
                 numerics=False)  # fmt: skip
    assert short.workload.steps == 2
    assert length_of(short)[:2] == (200, True)


def test_a_job_without_an_end_is_refused(load):
    endless = load(workload={key: LARGE[key] for key in LARGE if key != "steps"}, cluster=NODES)
    with pytest.raises(ScenarioError, match=r"workload.steps: the job has no end.*add steps"):
        length_of(endless)


def test_a_job_with_a_target_takes_what_that_takes(load):
    samples = load(target={"samples": 3200}, workload={**WORKLOAD, "steps": 5})
    assert length_of(samples)[:2] == (100, True)
    spread = Length(100, True, SamplesNeeded(3200, 320), 32)
    drawn = [spread.drawn(0, number) for number in range(200)]
    assert sum(drawn) / 200 == pytest.approx(100, rel=0.03)
    assert len(set(drawn)) == 200
    reached = load(target={"loss": 100.0, "window": 1}, workload={**WORKLOAD, "steps": 5})
    assert length_of(reached)[:2] == (1, False)
    with pytest.raises(ScenarioError, match="the loss is not reached in all steps"):
        length_of(load(target={"loss": 1e-9, "window": 1}, workload={**WORKLOAD, "steps": 5}))
