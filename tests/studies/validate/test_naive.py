"""The naive predictors that a simulation should beat."""

import pytest
from measured_times import step

from simdp.scenario.placement import wiring_of
from simdp.studies.validate.jobs import add_linear, ring_collective_time, ring_step_time, same_work

PARAMETERS = 4 * 3 + 3
CLUSTER = {"devices_per_node": 2, "inter_node": {"link": {"alpha": "1 us", "bandwidth": "1 GB/s"}}}


def test_a_ring_takes_compute_and_what_the_slowest_link_needs(load):
    nbytes = 4 * PARAMETERS
    inside = load({"cluster.topology": "switch"})
    assert ring_step_time(inside, 1e-3) == pytest.approx(1e-3 + 2 * 3 / 4 * nbytes / 25e9)
    across = load({f"cluster.{key}": value for key, value in CLUSTER.items()})
    assert ring_step_time(across, 1e-3) == pytest.approx(1e-3 + 2 * 3 / 4 * nbytes / 1e9)


def test_a_ring_by_itself_takes_its_hops_and_what_the_slowest_link_needs(load):
    inside = wiring_of(load({"cluster.topology": "switch"}).cluster)
    alpha = inside.intra_alpha
    found = ring_collective_time("all_reduce", 1e9, inside)
    assert found == pytest.approx(2 * 3 * alpha + 2 * 3 / 4 * 1e9 / 25e9)
    assert ring_collective_time("all_gather", 1e9, inside) == pytest.approx(found / 2)
    across = wiring_of(load({f"cluster.{key}": value for key, value in CLUSTER.items()}).cluster)
    hops = 4 * across.intra_alpha + 2 * 1e-6
    found = ring_collective_time("all_reduce", 1e9, across)
    assert found == pytest.approx(hops + 2 * 3 / 4 * 1e9 / 1e9, rel=1e-5)


def test_one_rank_has_nobody_to_send_to(load):
    assert ring_step_time(load({"cluster.world_size": 1}), 1e-3) == 1e-3


def test_sixteen_bit_gradients_are_half_as_many_bytes(load):
    full = load({"cluster.topology": "switch"})
    half = load({"cluster.topology": "switch", "workload.precision": "mixed"})
    assert ring_step_time(half, 0.0) == pytest.approx(ring_step_time(full, 0.0) / 2)


def test_work_is_the_same_on_more_ranks_and_not_with_another_batch(load):
    assert same_work(load({"cluster.world_size": 2})) == same_work(load())
    assert same_work(load({"workload.microbatch": 4})) != same_work(load())
    assert same_work(load({"cluster.device": "t4-16gb"})) != same_work(load())


def test_linear_scaling_grows_the_throughput_of_the_fewest_ranks():
    one = step(0.1, world_size=2, samples=64.0)
    more = step(0.3, world_size=8, samples=256.0)
    strong = step(0.3, world_size=8, samples=64.0)
    found = add_linear([more, one, strong], ["resnet"] * 3)
    assert [point.linear for point in found] == pytest.approx([0.1, None, 0.025])


def test_linear_scaling_starts_from_the_same_work_on_the_same_cluster():
    points = [
        step(0.1, world_size=1, samples=32.0),
        step(0.2, world_size=1, samples=32.0, cluster="rack"),
        step(0.3, world_size=1, samples=32.0),
        step(0.4, world_size=2, samples=64.0),
    ]
    found = add_linear(points, ["a", "a", "b", "b"])
    assert [point.linear for point in found] == pytest.approx([None, None, None, 0.3])


def test_without_the_same_work_on_fewer_ranks_linear_scaling_starts_from_the_scenarios_fewest():
    points = [
        step(0.4, world_size=1, samples=128.0),  # four micro-steps
        step(0.1, world_size=4, samples=128.0),
        step(0.1, world_size=4, samples=128.0, scenario="another"),
    ]
    found = add_linear(points, ["a", "b", "b"])
    assert [point.linear for point in found] == pytest.approx([None, 0.1, None])


def test_linear_scaling_prefers_the_points_own_scenario():
    points = [
        step(0.1, world_size=1, samples=32.0, scenario="no_ddp"),
        step(0.2, world_size=1, samples=32.0, scenario="ddp"),
        step(0.4, world_size=2, samples=64.0, scenario="ddp"),
        step(0.4, world_size=2, samples=64.0, scenario="horovod"),
    ]
    found = add_linear(points, ["a"] * 4)
    assert [point.linear for point in found] == pytest.approx([None, None, 0.2, 0.1])
