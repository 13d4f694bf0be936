"""A strategy is a loop and nothing beside it: time, links and memory follow from what it yields."""

from itertools import count
from typing import Literal

import pytest
from every_strategy import run_of, scenario
from for_each import for_each

import simdp
from simdp.steps.ops import AllReduce, FillBucket, ScaleLoss, Take, Update, Wait
from simdp.steps.passes import backward, forward, send_all
from simdp.strategies import STRATEGIES
from simdp.strategies.base import Strategy

WIDTHS = [64, 512, 256, 8]
ELEMENTS = 64 * 512 + 512 + 512 * 256 + 256 + 256 * 8 + 8
MODEL = {"model": {"kind": "mlp", "widths": WIDTHS}, "steps": 3}
TREE = {"topology": "switch"}
ALIKE = {"kind": "ddp", "bucket_order": "reverse_registration", "bucket_cap": "1 GB"}
ALIKE |= {"overlap": False, "charge_copies": False}


class AllAtOnce(Strategy):
    """Sum all gradients when the last one is ready."""

    kind: Literal["all_at_once"] = "all_at_once"

    def setup(self, facts):
        yield from send_all(facts, facts.parameters, "parameters", 0, count())

    def train_step(self, facts, step):
        yield ScaleLoss(by_shard=False)
        for micro in range(step.num_micro_steps):
            yield from forward(facts, micro)
            yield from backward(facts, micro)
        bucket = facts.bucket(facts.ready_order)
        for name in bucket.names:
            yield FillBucket(bucket, name, facts.world_size)
        yield AllReduce(0, "gradients", bucket.nbytes, bucket)
        yield Wait((0,))
        yield Take(bucket)
        yield Update()


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(STRATEGIES._homes, "all_at_once", (__name__, AllAtOnce.__name__))


def both(collective="ring", cluster=None, **options):
    """A run of it, and of DDP with one bucket that is sent at the end."""
    given = {**MODEL, **options}
    return [
        simdp.simulate(scenario(strategy, 8, cluster or TREE, {"all_reduce": collective}, **given))
        for strategy in ({"kind": "all_at_once"}, ALIKE)
    ]


@for_each("collective", ["ring", "tree", "double_binary_tree", "halving_doubling"])
@for_each("topology", ["switch", "ring", "full_mesh"])
def test_it_takes_the_time_that_its_collectives_take_on_shared_links(collective, topology):
    own, ddp = both(collective, {"topology": topology})
    assert own.network["fabric"] == ddp.network["fabric"]
    assert own.network["why"] == ddp.network["why"]
    for metric in ("step_time_s", "comm_s", "exposed_comm_s", "bytes_sent_per_rank"):
        assert own.metrics[metric] == pytest.approx(ddp.metrics[metric], rel=1e-12)


def test_links_that_its_tree_shares_are_known():
    own, _ = both("tree", {"topology": "ring"})
    assert own.network["fabric"] == "event"
    assert "shared" in own.network["why"]


def test_the_buffer_that_travels_is_in_memory():
    own, ddp = both()
    assert own.metrics["peak_memory_bytes"] == ddp.metrics["peak_memory_bytes"]
    assert own.metrics["memory_bytes"] == ddp.metrics["memory_bytes"]
    assert own.metrics["memory_bytes"]["buckets"] == 4 * ELEMENTS
    assert own.metrics["bucket_bytes"] == [4 * ELEMENTS]


def test_it_learns_what_ddp_learns_bit_for_bit():
    own, ddp = both(numerics=True)
    assert own.metrics["loss"] == ddp.metrics["loss"]
    for name, weights in ddp.replicas[0].items():
        assert own.replicas[0][name].tobytes() == weights.tobytes()


def test_what_it_calls_is_announced():
    chosen = scenario({"kind": "all_at_once"}, **MODEL)
    assert chosen.calls() == [("broadcast", 0), ("all_reduce", 0)]
    assert run_of(chosen).program.bucket_room == 4 * ELEMENTS


def test_a_collective_that_it_calls_is_checked_before_it_runs(refuse):
    """The small scenario's topology is a ring, without a switch that could sum."""
    (line,) = refuse(strategy="all_at_once", collectives={"all_reduce": "nvls"})
    assert line.startswith("collectives.all_reduce: nvls")
