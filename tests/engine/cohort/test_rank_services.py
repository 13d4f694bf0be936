"""What ranks do for strategies beside the steps themselves."""

from pathlib import Path

import closed_forms
import pytest
from simdp.engine.cohort import Cohort
from small_scenario import FAST, WORKLOAD

from simdp.engine.choice import Planner
from simdp.engine.replicas import Replicas
from simdp.engine.samples import Samples
from simdp.engine.slowdown import Slowdown
from simdp.scenario import checked

ALPHA, BANDWIDTH = 5e-6, 25e9


def scenario(**cluster):
    raw = {"cluster": {**FAST, "world_size": 4, **cluster}, "workload": WORKLOAD}
    return checked(raw, Path())


def rank_of(chosen):
    cluster = chosen.cluster
    return Cohort(chosen, Slowdown(cluster, chosen.seed), Planner(cluster))


@pytest.mark.parametrize("nbytes", [4e3, 4e6])
def test_an_all_reduce_is_predicted_with_what_comes_before_it(nbytes):
    ring = closed_forms.ring_all_reduce_time(nbytes, 4, ALPHA, 1 / BANDWIDTH)
    plain = rank_of(scenario())
    assert plain.all_reduce_seconds(nbytes) == pytest.approx(ring, rel=1e-12)
    talkative = rank_of(scenario(overheads={"message": "100 us", "message_per_rank": "10 us"}))
    assert talkative.all_reduce_seconds(nbytes) == pytest.approx(ring + 140e-6, rel=1e-12)


def test_a_timed_all_reduce_is_predicted_by_its_cost():
    raw = {
        "cluster": {**FAST, "world_size": 4},
        "workload": WORKLOAD,
        "collectives": {"cost": "nccl"},
    }
    rank = rank_of(checked(raw, Path()))
    launch = next(rank.all_reduce_bytes(1e6, "asked"))
    assert rank.all_reduce_seconds(1e6) == launch.seconds > 0


@pytest.mark.parametrize("cards", [1, 2])
def test_a_node_sends_over_all_its_cards(cards):
    link = {"alpha": "1 us", "bandwidth": "3 GB/s"}
    outside = {"topology": "switch", "link": link, "links_per_node": cards}
    nodes = {"devices_per_node": 2, "topology": "switch", "inter_node": outside}
    assert rank_of(scenario(**nodes)).node_bandwidth == 3e9 * cards
    assert rank_of(scenario()).node_bandwidth == float("inf")


def test_flat_buffers_are_kept_until_gradients_are_sorted_in_another_way():
    chosen = scenario()
    replicas = Replicas(chosen, Samples(chosen))
    weight, bias = "layers.0.weight", "layers.0.bias"
    apart = [replicas.flat_buffers([name], "float32") for name in (weight, bias)]
    again = [replicas.flat_buffers([name], "float32") for name in (weight, bias)]
    assert [a is b for a, b in zip(apart, again, strict=True)] == [True, True]
    together = replicas.flat_buffers([weight, bias], "float32")
    assert replicas.flat_buffers([weight, bias], "float32") is together
    assert replicas.flat_buffers([bias], "float32") is not apart[1]
