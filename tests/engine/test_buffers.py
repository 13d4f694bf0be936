"""Flat buffers: where gradients lie while they travel."""

from pathlib import Path

from small_scenario import FAST, WORKLOAD

from simdp.engine.replicas import Replicas
from simdp.engine.samples import BatchSamples
from simdp.scenario import checked
from simdp.steps.ops import FillBucket
from simdp.steps.partition import Bucket
from simdp.steps.program import _room


class Counted(str):
    """A name that counts how often it is hashed."""

    hashes = 0

    def __hash__(self):
        Counted.hashes += 1
        return super().__hash__()


def test_flat_buffers_are_kept_until_gradients_are_sorted_in_another_way():
    chosen = checked({"cluster": {**FAST, "world_size": 4}, "workload": WORKLOAD}, Path())
    replicas = Replicas(chosen, BatchSamples(chosen))
    weight, bias = "layers.0.weight", "layers.0.bias"
    apart = [replicas.flat_buffers([name], "float32") for name in (weight, bias)]
    again = [replicas.flat_buffers([name], "float32") for name in (weight, bias)]
    assert [a is b for a, b in zip(apart, again, strict=True)] == [True, True]
    together = replicas.flat_buffers([weight, bias], "float32")
    assert replicas.flat_buffers([weight, bias], "float32") is together
    assert replicas.flat_buffers([bias], "float32") is not apart[1]


def test_the_names_of_a_bucket_are_hashed_once_and_not_for_each_of_its_gradients():
    chosen = checked({"cluster": {**FAST, "world_size": 2}, "workload": WORKLOAD}, Path())
    replicas = Replicas(chosen, BatchSamples(chosen))
    names = Counted("layers.0.weight"), Counted("layers.0.bias")
    first = replicas.flat_buffers(names, "float32")
    Counted.hashes = 0
    assert all(replicas.flat_buffers(names, "float32") is first for _ in range(100))
    assert Counted.hashes == 0
    replicas.forget_flat_buffers()
    assert replicas.flat_buffers(names, "float32") is not first

    bucket, other = Bucket(names, 8, "float32", 32.0, room=32.0), Bucket(("a",), 2, "float32", 8.0)
    Counted.hashes = 0
    fills = [FillBucket(bucket, "layers.0.weight", 2.0)] * 100 + [FillBucket(other, "a", 2.0)]
    assert _room((*fills, *fills)) == 32.0
    assert Counted.hashes <= 8
