"""The order in which an epoch goes through the data: from a file, drawn, or grouped by length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, Strict, model_validator

from simdp.arrays import Ints
from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.rng import stream
from simdp.spec import Bool, Spec, problem

MAX_MEGABATCH = 50
MIN_MEGABATCHES = 4
"""How many steps' samples are sorted by length together, and of how many such groups an epoch has
at least, where it is long enough (transformers: LengthGroupedSampler)."""


class Permutation(Spec):
    """An epoch's order from an npz file.

    Attributes
    ----------
    path : str
        A file with one array: shape `(num_samples,)` for every epoch the same, or
        `(num_epochs, num_samples)`, a row per epoch.
    """

    path: str


class TorchShuffle(Spec):
    """The order in which a script goes through the data with torch's own shuffle.

    ``distributed_sampler`` is randperm of the seed plus the epoch. The others have one generator,
    which goes on from epoch to epoch. A loader's iterator draws a 64-bit number from it for its
    workers; a sampler then draws the order, and randperm once more in vain, from the generator that
    it was given, or else only a seed for an order from the global one. Of that nothing else draws
    here: a script draws its first weights from it, too, unless it is seeded after them.

    Attributes
    ----------
    torch : {"distributed_sampler", "random_sampler", "data_loader", "data_loader_global_seed"}
        ``DistributedSampler(shuffle=True, seed=seed)``; ``RandomSampler(generator=g)``;
        ``DataLoader(shuffle=True, generator=g)``; ``DataLoader(shuffle=True)`` after
        ``torch.manual_seed(seed)``.
    seed : int
        Of the sampler or the generator, and not the scenario's.
    set_epoch : bool
        Of a distributed sampler: False for a script that forgets to call ``set_epoch``, so that
        every epoch has the order of the first.

    References
    ----------
    torch.utils.data: distributed.py, sampler.py, dataloader.py.
    """

    torch: Literal[
        "distributed_sampler", "random_sampler", "data_loader", "data_loader_global_seed"
    ]
    seed: Annotated[int, Strict()] = Field(0, ge=-(2**63), lt=2**63)
    set_epoch: Bool = True

    @model_validator(mode="after")
    def _only_one_is_told_the_epoch(self) -> Self:
        if not self.set_epoch and self.torch != "distributed_sampler":
            raise problem(
                f"set_epoch is of a distributed_sampler, but torch is {self.torch}; leave it out."
            )
        return self

    def order(self, num_samples: int, epoch: int) -> Ints:
        """Order of an epoch's samples, shape `(num_samples,)`."""
        from simdp.workload.torch_generator import TorchGenerator  # few runs need it

        if self.torch == "distributed_sampler":
            return TorchGenerator(self.seed + epoch * self.set_epoch).randperm(num_samples)
        generator, loader = TorchGenerator(self.seed), self.torch != "random_sampler"
        if self.torch == "data_loader_global_seed":
            generator.skip(4 * epoch + 2)
            return TorchGenerator(generator.random64()).randperm(num_samples)
        in_vain = num_samples - 1
        generator.skip(epoch * (num_samples - 1 + in_vain) + 2 * loader * (epoch + 1))
        return generator.randperm(num_samples)


Shuffle = Bool | Permutation | TorchShuffle
"""Whether each epoch has an order of its own, or which."""


def epoch_order(
    shuffle: bool | Permutation | TorchShuffle,
    num_samples: int,
    epoch: int,
    seed: int,
    base: Path,
) -> Ints:
    """Order of an epoch's samples, shape `(num_samples,)`."""
    if isinstance(shuffle, Permutation):
        return read_permutation(base / shuffle.path, num_samples, epoch)
    if isinstance(shuffle, TorchShuffle):
        return shuffle.order(num_samples, epoch)
    if shuffle:
        return stream(seed, "shuffle", epoch).permutation(num_samples)
    return np.arange(num_samples)


def grouped_by_length(order: Ints, lengths: Ints, samples_per_step: int) -> Ints:
    """Bring samples of similar length together, so that a step's ranks have equal work.

    The order is cut into megabatches of up to 50 steps, fewer where an epoch would have less than
    four of them, and each is sorted from long to short. Samples of equal length keep their order.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        The epoch's order.
    lengths : ndarray, shape `(num_samples,)`
        Of every sample.
    samples_per_step : int
        Of all ranks.

    References
    ----------
    The rule of Hugging Face's ``group_by_length``: transformers, trainer_pt_utils.py,
    get_length_grouped_indices; but the longest sample of all is not moved to the front.
    """
    megabatch = megabatch_steps(len(order), samples_per_step) * samples_per_step
    pieces = [order[begin : begin + megabatch] for begin in range(0, len(order), megabatch)]
    return np.concatenate([piece[np.argsort(-lengths[piece], kind="stable")] for piece in pieces])


def megabatch_steps(num_samples: int, samples_per_step: int) -> int:
    """How many steps' samples `grouped_by_length` sorts together."""
    return max(1, min(num_samples // (samples_per_step * MIN_MEGABATCHES), MAX_MEGABATCH))


def read_permutation(path: Path, num_samples: int, epoch: int) -> Ints:
    """Read an epoch's order from a file; later epochs than it has begin again with its first.

    Raises
    ------
    ScenarioError
        If the file does not hold one array of permutations of the data set.
    """
    stored = list(read_npz(path).values())
    rows = np.atleast_2d(stored[0]) if len(stored) == 1 else np.empty((0, 0))
    right = rows.ndim == 2 and rows.shape[1] == num_samples and len(rows) > 0
    if not right or (np.sort(rows, axis=1) != np.arange(num_samples)).any():
        raise ScenarioError(
            [
                f"{path}: is no order of the data set; store one array of shape ({num_samples},) "
                f"or (epochs, {num_samples}), each row a permutation of 0 ... {num_samples - 1}."
            ]
        )
    order: Ints = rows[epoch % len(rows)].astype(np.int64)
    return order
