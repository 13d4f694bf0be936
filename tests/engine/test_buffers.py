"""Flat buffers: where gradients lie while they travel."""

from pathlib import Path

from small_scenario import FAST, WORKLOAD

from simdp.engine.replicas import Replicas
from simdp.engine.samples import Samples
from simdp.scenario import checked


def test_flat_buffers_are_kept_until_gradients_are_sorted_in_another_way():
    chosen = checked({"cluster": {**FAST, "world_size": 4}, "workload": WORKLOAD}, Path())
    replicas = Replicas(chosen, Samples(chosen))
    weight, bias = "layers.0.weight", "layers.0.bias"
    apart = [replicas.flat_buffers([name], "float32") for name in (weight, bias)]
    again = [replicas.flat_buffers([name], "float32") for name in (weight, bias)]
    assert [a is b for a, b in zip(apart, again, strict=True)] == [True, True]
    together = replicas.flat_buffers([weight, bias], "float32")
    assert replicas.flat_buffers([weight, bias], "float32") is together
    assert replicas.flat_buffers([bias], "float32") is not apart[1]
