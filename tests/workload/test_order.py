"""The order of an epoch: as the data lie, drawn, from a file, or grouped by length."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simdp.errors import ScenarioError
from simdp.workload.sampling import (
    Permutation,
    TorchShuffle,
    distributed_sampler,
    epoch_order,
    grouped_by_length,
    megabatch_steps,
    read_permutation,
)

# Grouped by length -------------------------------------------------------------------------------

# transformers 5.23: get_length_grouped_indices(LENGTHS, batch_size) with this torch.randperm.
LENGTHS = np.array([(7 * i * i + 3 * i) % 23 + 1 for i in range(37)])
ORDER = np.array([(11 * i + 5) % 37 for i in range(37)])
LENGTHS[ORDER[0]] = 30  # the longest is in the first megabatch, so that theirs moves nothing
# fmt: off
TRANSFORMERS = {
        3: [5, 8, 1, 27, 12, 19, 34, 16, 23, 30, 7, 33, 15, 4, 11, 22, 26, 0, 18, 21, 32, 29, 10,
        14, 25, 3, 36, 9, 6, 2, 24, 35, 20, 28, 17, 13, 31],
        4: [5, 8, 1, 27, 12, 34, 16, 23, 30, 15, 4, 19, 11, 22, 26, 0, 18, 7, 33, 29, 14, 25, 3, 36,
        21, 32, 10, 6, 2, 28, 17, 13, 9, 31, 24, 35, 20],
        20: [5, 18, 30, 7, 33, 29, 8, 1, 15, 27, 12, 4, 19, 34, 11, 22, 26, 16, 23, 0, 21, 32, 9,
        10, 6, 31, 14, 25, 2, 24, 35, 20, 28, 17, 3, 36, 13],
}
# fmt: on

orders = (
    st.integers(1, 400)
    .flatmap(
        lambda n: st.tuples(
            st.permutations(range(n)), st.lists(st.integers(1, 9), min_size=n, max_size=n)
        )
    )
    .map(lambda drawn: (np.array(drawn[0]), np.array(drawn[1])))
)


@for_each("samples_per_step", TRANSFORMERS)
def test_samples_are_grouped_as_hugging_face_does(samples_per_step):
    grouped = grouped_by_length(ORDER, LENGTHS, samples_per_step)
    assert grouped.tolist() == TRANSFORMERS[samples_per_step]


@pytest.mark.slow
@given(orders, st.integers(1, 50))
def test_every_sample_stays_in_its_megabatch(drawn, samples_per_step):
    order, lengths = drawn
    grouped = grouped_by_length(order, lengths, samples_per_step)
    size = megabatch_steps(len(order), samples_per_step) * samples_per_step
    for begin in range(0, len(order), size):
        piece = slice(begin, begin + size)
        assert sorted(grouped[piece]) == sorted(order[piece])


@pytest.mark.slow
@given(orders, st.integers(1, 50))
def test_a_megabatch_falls_from_long_to_short_and_keeps_the_order_of_equals(
    drawn, samples_per_step
):
    order, lengths = drawn
    grouped = grouped_by_length(order, lengths, samples_per_step)
    size = megabatch_steps(len(order), samples_per_step) * samples_per_step
    place = np.argsort(order)
    for begin in range(0, len(order), size):
        piece = grouped[begin : begin + size]
        keys = [(-lengths[sample], place[sample]) for sample in piece]
        assert keys == sorted(keys)


@pytest.mark.slow
@given(orders, st.integers(1, 50))
def test_grouping_again_changes_nothing(drawn, samples_per_step):
    order, lengths = drawn
    once = grouped_by_length(order, lengths, samples_per_step)
    assert grouped_by_length(once, lengths, samples_per_step).tolist() == once.tolist()


def test_grouping_leaves_the_order_that_it_is_given():
    kept = ORDER.copy()
    grouped_by_length(ORDER, LENGTHS, 4)
    assert ORDER.tolist() == kept.tolist()


@for_each(
    ("num_samples", "samples_per_step", "steps"),
    [(10**6, 32, 50), (6400, 32, 50), (6399, 32, 49), (256, 32, 2), (255, 32, 1), (5, 32, 1)],
)
def test_a_megabatch_is_50_steps_or_a_quarter_of_the_epoch(num_samples, samples_per_step, steps):
    assert megabatch_steps(num_samples, samples_per_step) == steps


# Drawn, and from a file --------------------------------------------------------------------------


def test_without_shuffle_the_order_is_that_of_the_data(tmp_path):
    assert epoch_order(False, 5, 3, 0, tmp_path).tolist() == [0, 1, 2, 3, 4]


@given(n=st.integers(1, 100), epoch=st.integers(0, 5), seed=st.integers(0, 2**40))
def test_a_drawn_order_is_a_permutation_and_drawn_again_the_same(n, epoch, seed):
    order = epoch_order(True, n, epoch, seed, None)
    assert sorted(order) == list(range(n))
    assert order.tolist() == epoch_order(True, n, epoch, seed, None).tolist()


def test_an_order_is_read_from_its_file(tmp_path):
    np.savez(tmp_path / "order.npz", np.array([[2, 0, 1], [1, 2, 0]]))
    found = [epoch_order(Permutation(path="order.npz"), 3, e, 0, tmp_path) for e in range(3)]
    assert [order.tolist() for order in found] == [[2, 0, 1], [1, 2, 0], [2, 0, 1]]
    assert all(order.dtype == np.int64 for order in found)


@for_each(
    "arrays",
    [
        {"a": np.array([0, 1]), "b": np.array([0, 1])},
        {"a": np.array([0, 1, 2, 3])},
        {"a": np.array([1, 2, 3])},
        {"a": np.zeros((1, 1, 3))},
        {"a": np.zeros((0, 3))},
        {},
    ],
    ids=["two arrays", "too long", "from 1", "three axes", "no epoch", "nothing"],
)
def test_what_is_no_order_is_refused(arrays, tmp_path):
    np.savez(tmp_path / "order.npz", **arrays)
    with pytest.raises(ScenarioError, match="is no order of the dataset; store one array"):
        read_permutation(tmp_path / "order.npz", 3, 0)


# torch's own -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded():
    with np.load(Path(__file__).parents[1] / "golden" / "g17_shuffle.npz") as archive:
        return dict(archive)


SAMPLERS = {
    "random_sampler": "RandomSampler|n=100",
    "data_loader": "DataLoader(shuffle)|n=40|batch=7",
    "data_loader_global_seed": "DataLoader(shuffle, global seed)|n=40|batch=7",
}


@for_each("sampler", SAMPLERS)
@for_each("seed", [0, 1])
def test_two_epochs_of_a_loader_are_torchs(sampler, seed, recorded):
    wanted = recorded[f"{SAMPLERS[sampler]}|seed={seed}|two epochs"]
    chosen = TorchShuffle(torch=sampler, seed=seed)
    for epoch, order in enumerate(wanted):
        found = epoch_order(chosen, len(order), epoch, 7, None)
        np.testing.assert_array_equal(found, order)


@for_each("seed", [0, 1])
@for_each("world_size", [1, 2, 3, 8])
@for_each("drop_last", [False, True])
def test_every_rank_gets_what_torchs_distributed_sampler_gives_it(
    seed, world_size, drop_last, recorded
):
    chosen = TorchShuffle(torch="distributed_sampler", seed=seed)
    case = f"DistributedSampler|n=101|world={world_size}|seed={seed}"
    for epoch in (0, 1):
        dealt = distributed_sampler(chosen.order(101, epoch), world_size, drop_last)
        wanted = recorded[f"{case}|epoch={epoch}|drop_last={drop_last}"]
        np.testing.assert_array_equal(dealt, wanted)


def test_without_set_epoch_every_epoch_has_the_order_of_the_first():
    forgets = TorchShuffle(torch="distributed_sampler", seed=3, set_epoch=False)
    assert forgets.order(20, 4).tolist() == forgets.order(20, 0).tolist()


def test_set_epoch_belongs_to_the_distributed_sampler():
    with pytest.raises(ValidationError, match="set_epoch is of a distributed_sampler, but torch"):
        TorchShuffle(torch="data_loader", set_epoch=False)
