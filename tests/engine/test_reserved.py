"""Memory that torch's allocator reserves: its rules, and beside what was measured."""

from pathlib import Path

import pytest
from for_each import one_in

from simdp.engine.reserved import GATHER, CachingAllocator, reserved_memory
from simdp.scenario.loading import checked
from simdp.strategies import STRATEGIES

MIB = 2**20
GIB = 2.0**30


def test_segments_are_torchs():
    allocator = CachingAllocator()
    small, medium, large = (allocator.malloc(n) for n in (100, 3 * MIB, 39 * MIB / 2))
    assert allocator.reserved == (2 + 20 + 20) * MIB
    assert (small.nbytes, medium.nbytes, large.nbytes) == (512, 3 * MIB, 20 * MIB)


def test_what_is_free_is_joined_and_used_again():
    allocator = CachingAllocator()
    one, two = allocator.malloc(20 * MIB), allocator.malloc(30 * MIB)
    allocator.free(two)
    three = allocator.malloc(10 * MIB)  # of the 30, of which 20 are left
    assert allocator.reserved == 50 * MIB
    allocator.free(three)
    allocator.free(one)
    assert allocator.malloc(30 * MIB).nbytes == 30 * MIB
    assert (allocator.reserved, allocator.most_reserved) == (50 * MIB, 50 * MIB)


def test_a_segment_that_is_too_small_stays_reserved():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 50 * MIB


def test_at_the_capacity_free_segments_are_given_back():
    allocator = CachingAllocator(capacity=40 * MIB)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 30 * MIB


def test_an_expandable_segment_grows():
    allocator = CachingAllocator(is_expandable=True)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 40 * MIB  # whole pages of 20 MiB
    allocator.malloc(5 * MIB, GATHER)
    assert allocator.reserved == 60 * MIB


def scenario(model, dataset, microbatch, ranks=8, **options):
    cluster = {"machine": "dgx-a100", "world_size": ranks, "allocator": "cuda"}
    cluster |= options.pop("cluster", {})
    strategy = options.pop("strategy", "ddp")
    workload = {"model": model, "dataset": {"kind": dataset, "num_samples": 10**5}, "steps": 2}
    workload |= {"microbatch": microbatch, **options}
    raw = {"cluster": cluster, "workload": workload, "strategy": strategy, "numerics": False}
    return checked(raw, Path())


SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.mark.parametrize(
    ("samples", "measured"),
    one_in(5, [(16, 2.192), (8, 1.521), (32, 3.550), (64, 6.247), (128, 11.703)]),
)
def test_resnet152_allocates_what_torch_does(samples, measured):
    """Torch 2.12, DDP, V100, fp16 under autocast [GiB]: ddp_resnet152_2026.csv."""
    found = reserved_memory(
        scenario("resnet152", "images", samples, optimizer=SGD, precision={"kind": "amp"})
    )
    assert found.allocated == pytest.approx(measured * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("ranks", "compiled", "measured"),
    one_in(4, [(128, True, 62.0), (8, False, 82.4), (8, True, 77.0), (128, False, 67.0)]),
)
def test_llama_3_reserves_about_what_torchtitan_says(ranks, compiled, measured):
    """Torchtitan, 2024-12, FSDP2 on H100, every other product kept [GiB]."""
    found = reserved_memory(
        scenario(
            *("llama3-8b", "tokens", 2, ranks),
            optimizer="adamw",
            clip_grad_norm=1.0,
            recompute="selective_every_other",
            compile=compiled,
            keeps_outputs=False,
            cluster={"allocator": {"kind": "cuda", "expandable_segments": True}},
            strategy={
                **{"kind": "fsdp", "units": "torchtitan"},
                **{"param_dtype": "bfloat16", "reduce_dtype": "float32"},
            },
        )
    )
    assert found.reserved == pytest.approx(measured * GIB, rel=0.07)
    assert found.allocated < 0.9 * found.reserved


@pytest.mark.parametrize(
    "kind", one_in(3, [name for name in STRATEGIES if name != "parameter_server"])
)
def test_every_strategy_frees_what_it_allocates(kind):
    """Replayed in whole segments, never fewer bytes than the tensors' peak."""
    ranks = 1 if kind == "single" else 4
    batch = {"global_batch": 32} if kind == "data_parallel" else {}
    microbatch = None if batch else 8
    found = reserved_memory(
        scenario("resnet18", "images", microbatch, ranks, strategy=kind, optimizer="adam", **batch)
    )
    assert found.reserved >= found.allocated > 0
    assert found.reserved % (2 * MIB) == 0
