"""WHAT IS LEARNED: model, data, loss, optimizer, and who trains on what in which step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, field_validator, model_validator

from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.rng import stream
from simdp.spec import Bool, Int, Spec, problem
from simdp.workload.datasets import DATASETS, AnyDataset, Dataset
from simdp.workload.losses import AnyLoss
from simdp.workload.models import AnyModel
from simdp.workload.optimizers import AnyOptimizer
from simdp.workload.optimizers.sgd import SGD
from simdp.workload.sampling import (
    Ints,
    StepBatches,
    distributed_sampler,
    steps_from_global_batches,
    steps_from_microbatches,
)

Array = NDArray[Any]
MicroSteps = Annotated[Int, Field(ge=1, le=10**6)]
MicroSizes = Annotated[list[Annotated[Int, Field(ge=1, le=10**9)]], Field(min_length=1)]

__all__ = ["Permutation", "Workload"]


class Permutation(Spec):
    """An epoch's order from an npz file.

    Attributes
    ----------
    path : str
        A file with one array: shape `(num_samples,)` for every epoch the same, or
        `(num_epochs, num_samples)`, a row per epoch.
    """

    path: str


class Workload(Spec):
    """What every rank does, apart from how they work together.

    Attributes
    ----------
    loss : Loss
        By default mse, or cross_entropy for a data set of classes.
    microbatch : int or None
        Samples per rank and micro-step; or ``global_batch``, samples of all ranks per step.
    grad_accum : int or list of int
        Micro-steps per step; a list gives their sizes per rank.
    dtype : {"float32", "float64"}
        Of parameters and compute.
    shuffle : bool or Permutation
        Whether each epoch has an order of its own.
    drop_last : bool
        Whether what does not fill every rank, or a whole step, is left out of an epoch.
    epochs, steps : int or None
        How long to train; one epoch if neither is given.
    mode, lr_schedule, precision, compute
        Accept only their defaults so far.
    """

    mode: Literal["training"] = "training"
    model: AnyModel
    weights: str | None = None
    dataset: AnyDataset
    loss: AnyLoss
    optimizer: AnyOptimizer = SGD()
    lr_schedule: Literal["none"] = "none"
    microbatch: Int | None = Field(None, ge=1, le=10**9)
    global_batch: Int | None = Field(None, ge=1, le=10**9)
    grad_accum: MicroSteps | MicroSizes = 1
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["full"] = "full"
    shuffle: Bool | Permutation = False
    drop_last: Bool = False
    compute: Literal["roofline"] = "roofline"
    epochs: Int | None = Field(None, ge=1, le=10**9)
    steps: Int | None = Field(None, ge=1, le=10**9)

    @model_validator(mode="before")
    @classmethod
    def _the_datasets_usual_loss(cls, data: Any) -> Any:
        """Fill in the loss that suits the data set, where none is named."""
        if not isinstance(data, dict) or "loss" in data:
            return data
        dataset = data.get("dataset")
        kind = dataset.get("kind") if isinstance(dataset, dict) else dataset
        known = DATASETS.get(kind) if isinstance(kind, str) else None
        return {**data, "loss": (known or Dataset).usual_loss}

    @field_validator("shuffle", mode="wrap")
    @classmethod
    def _yes_no_or_a_file(cls, value: Any, handler: Any) -> Any:
        """Choose the form by the value, so that an error speaks of the form that was written."""
        mapping = isinstance(value, dict | Permutation)
        return TypeAdapter(Permutation if mapping else Bool).validate_python(value)

    @field_validator("grad_accum", mode="wrap")
    @classmethod
    def _number_or_sizes(cls, value: Any, handler: Any) -> Any:
        """As for ``shuffle``."""
        form: Any = MicroSizes if isinstance(value, list) else MicroSteps
        return TypeAdapter(form).validate_python(value)

    @model_validator(mode="after")
    def _batches_are_clear(self) -> Workload:
        sized = isinstance(self.grad_accum, list)
        if self.microbatch is not None and self.global_batch is not None:
            raise problem("microbatch and global_batch are both given; keep one of them.")
        if self.microbatch is None and self.global_batch is None and not sized:
            raise problem(
                "microbatch is required but was not given; add microbatch: 32, samples per rank "
                "and micro-step, or global_batch: 256, cut over the ranks."
            )
        if self.microbatch is not None and sized:
            raise problem(
                "microbatch and a list of grad_accum both give the sizes of micro-steps; "
                "leave microbatch out."
            )
        if self.epochs is not None and self.steps is not None:
            raise problem("epochs and steps are both given; keep one of them.")
        return self

    @property
    def itemsize(self) -> int:
        """Bytes per element of parameters, gradients and activations."""
        return np.dtype(self.dtype).itemsize

    def samples_per_step(self, world_size: int) -> int:
        """Samples of all ranks in a full step."""
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.grad_accum, list):
            return sum(self.grad_accum) * world_size
        return (self.microbatch or 0) * self.grad_accum * world_size

    def steps_of_epoch(self, order: Ints, world_size: int) -> Iterator[StepBatches]:
        """Deal one epoch's order out to steps, micro-steps and ranks."""
        accumulate = self.grad_accum
        if self.global_batch is not None:
            return steps_from_global_batches(
                order, self.global_batch, world_size, accumulate, self.drop_last
            )
        per_rank = distributed_sampler(order, world_size, self.drop_last)
        return steps_from_microbatches(per_rank, self.microbatch or 0, accumulate, self.drop_last)

    def batches(self, world_size: int, seed: int, base: Path) -> Iterator[StepBatches]:
        """Who trains on what, step by step, for as many steps or epochs as are asked for.

        Parameters
        ----------
        world_size : int
            Number of ranks.
        seed : int
            Of the scenario; it draws each epoch's order where ``shuffle`` is true.
        base : Path
            Folder that relative paths start from.
        """
        num_samples = self.dataset.length(base)
        done = epoch = 0
        while self.steps is not None or epoch < (self.epochs or 1):
            order, before = self._order(num_samples, epoch, seed, base), done
            for batches in self.steps_of_epoch(order, world_size):
                if self.steps is not None and done == self.steps:
                    return
                yield batches
                done += 1
            assert done > before, "an epoch without a step; the scenario's checks refuse it"
            epoch += 1

    def num_steps(self, world_size: int, base: Path) -> int:
        """Number of steps that `batches` yields."""
        if self.steps is not None:
            return self.steps
        order = np.arange(self.dataset.length(base))
        return (self.epochs or 1) * sum(1 for _ in self.steps_of_epoch(order, world_size))

    def _order(self, num_samples: int, epoch: int, seed: int, base: Path) -> Ints:
        if isinstance(self.shuffle, Permutation):
            return read_permutation(base / self.shuffle.path, num_samples, epoch)
        if self.shuffle:
            return stream(seed, "shuffle", epoch).permutation(num_samples)
        return np.arange(num_samples)

    def initial_weights(self, seed: int, rank: int, base: Path) -> dict[str, Array]:
        """Make a rank's parameters before training: from the file, else drawn as torch does.

        Every rank draws its own, as processes with different seeds do; a strategy's constructor
        makes them equal.
        """
        if self.weights is not None:
            stored = read_npz(base / self.weights)
            return {p.name: stored[p.name].astype(self.dtype) for p in self.model.parameters()}
        return {
            p.name: stream(seed, "weights", rank, p.name)
            .uniform(-p.bound, p.bound, p.shape)
            .astype(self.dtype)
            for p in self.model.parameters()
        }

    def problems(self, base: Path) -> list[str]:
        """Say what is wrong with the files that this workload reads, led by the key of each."""
        found = []
        for key, check in (
            ("weights", self._problem_with_weights),
            ("dataset", self._problem_with_dataset),
            ("shuffle", self._problem_with_shuffle),
        ):
            try:
                wrong = check(base)
            except ScenarioError as error:
                wrong = "; ".join(error.problems)
            if wrong:
                found.append(f"{key}: {wrong}")
        return found

    def _problem_with_weights(self, base: Path) -> str | None:
        if self.weights is None:
            return None
        path = base / self.weights
        stored = read_npz(path)
        wanted = {p.name: p.shape for p in self.model.parameters()}
        wrong = [
            f"has no {name!r} of shape {wanted[name]}" for name in wanted if name not in stored
        ]
        wrong += [f"has {name!r}, which the model lacks" for name in stored if name not in wanted]
        for name in wanted.keys() & stored.keys():
            array = stored[name]
            if array.shape != wanted[name]:
                wrong.append(f"has {name!r} of shape {array.shape}, the model needs {wanted[name]}")
            elif array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                wrong.append(f"has {name!r} of {array.dtype} that is not all finite numbers")
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        return f"{path}: {'; '.join(sorted(wrong)[:3])}{more}." if wrong else None

    def _problem_with_dataset(self, base: Path) -> str | None:
        wrong = self.dataset.problem_with(self.model, self.loss, base)
        path = getattr(self.dataset, "path", None)
        return f"{base / path}: {wrong}" if wrong and path else wrong

    def _problem_with_shuffle(self, base: Path) -> str | None:
        if isinstance(self.shuffle, Permutation):
            read_permutation(base / self.shuffle.path, self.dataset.length(base), 0)
        return None


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
