"""Who trains on what: an epoch's order is dealt out to steps, micro-steps and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simdp.arrays import Ints
from simdp.spec import Bool, Spec
from simdp.workload.datasets import Dataset
from simdp.workload.input import Input
from simdp.workload.losses import Loss
from simdp.workload.models import Model
from simdp.workload.order import Permutation, TorchShuffle, epoch_order, grouped_by_length
from simdp.workload.packing import Packing, Packs
from simdp.workload.rebalance import Rebalance
from simdp.workload.sampling import (
    START,
    Incomplete,
    Parts,
    Start,
    StepBatches,
    distributed_sampler,
    kinds_of,
    steps_from_global_batches,
    steps_from_microbatches,
    uneven_sampler,
)

STEPS_WITHOUT_DATA = 2
"""How long a run is that says nothing of it and has no epoch: a step to warm up, a steady one."""


class DropLast(Spec):
    """What is left out of an epoch, as two arguments of a script say.

    Attributes
    ----------
    sampler : bool
        ``DistributedSampler(drop_last=...)``: whether samples that do not fill every rank are left
        out; false repeats samples of the head of the order in their place.
    loader : bool
        ``DataLoader(drop_last=...)``: whether a rank's last micro-batch is left out if it is not
        full. What stays of a step is a step of fewer micro-steps.
    """

    sampler: Bool = False
    loader: Bool = False


class Dealing(Spec):
    """What of a `Workload` follows from its batches and its data set."""

    if TYPE_CHECKING:  # keys of the workload
        model: Model
        dataset: Dataset
        loss: Loss
        microbatch: int | None
        global_batch: int | None
        grad_accum: int | list[int]
        samples_per_rank: list[int] | None
        rebalance: Rebalance | None
        group_by_length: bool
        packing: Packing | None
        shuffle: bool | Permutation | TorchShuffle
        drop_last: bool | DropLast
        input: Input | None
        epochs: int | None
        steps: int | None

    def samples_per_step(self, world_size: int) -> int:
        """Samples of all ranks in a full step."""
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.grad_accum, list):
            return sum(self.grad_accum) * world_size
        return (self.microbatch or 0) * self.grad_accum * world_size

    def least_dealt(self, world_size: int) -> int:
        """Samples of an epoch below which what is left of it is dropped."""
        drops = self.drop_last
        if not isinstance(drops, DropLast):
            return self.samples_per_step(world_size) if drops else 1
        sizes = self.grad_accum
        full = sizes[0] if isinstance(sizes, list) else self.microbatch or 0
        each = full if drops.loader else 1
        return each * world_size if drops.sampler else (each - 1) * world_size + 1

    def steps_of_epoch(self, order: Ints, world_size: int, first: int = 0) -> Iterator[StepBatches]:
        """Deal one epoch's order out to steps, the ``first`` of them, micro-steps and ranks."""
        accumulate, rule, drops = self.grad_accum, self.rebalance, self.drop_last
        if self.global_batch is not None:

            def by_speed(step: int, num_samples: int) -> Ints:
                assert rule is not None
                return rule.sizes(first + step, num_samples, world_size)

            sizes = None if rule is None else by_speed
            return steps_from_global_batches(
                order, self.global_batch, world_size, accumulate, bool(drops), sizes
            )
        if self.samples_per_rank is not None:
            per_rank: Ints | Parts = uneven_sampler(order, self.samples_per_rank)
        else:
            cuts = drops.sampler if isinstance(drops, DropLast) else drops
            per_rank = distributed_sampler(order, world_size, cuts)
        if isinstance(drops, DropLast):
            incomplete: Incomplete = "micro-batch" if drops.loader else None
        else:
            incomplete = "step" if drops else None
        return steps_from_microbatches(per_rank, self.microbatch or 0, accumulate, incomplete)

    def batches(
        self, world_size: int, seed: int, base: Path, start: Start = START
    ) -> Iterator[StepBatches]:
        """Who trains on what, step by step, for as many steps or epochs as are asked for.

        Parameters
        ----------
        world_size : int
            Number of ranks.
        seed : int
            Of the scenario; it draws each epoch's order where ``shuffle`` is true.
        base : Path
            Folder that relative paths start from.
        start : Start
            Where it goes on: what is left of that epoch's order is dealt as by torch's elastic one.
        """
        if not self.dataset.has_samples:
            yield from islice(self._full_steps(world_size), start.num_steps, None)
            return
        num_samples = self.num_samples(base)
        lengths = self.lengths(seed, base) if self.group_by_length else {}
        epoch, dealt, done = start.upcoming(num_samples, self.least_dealt(world_size))
        while self.steps is not None or epoch < (self.epochs or 1):
            order = epoch_order(self.shuffle, num_samples, epoch, seed, base)
            if lengths:
                longest = np.maximum.reduce(list(lengths.values()))
                order = grouped_by_length(order, longest, self.samples_per_step(world_size))
            waiting = None
            for batches in self.steps_of_epoch(order[dealt:], world_size, done):
                if waiting is not None:
                    yield waiting
                waiting, done = replace(batches, epoch=epoch), done + 1
                if done == self.steps:
                    break
            assert waiting is not None, "an epoch without a step; the scenario's checks refuse it"
            yield replace(waiting, closes_epoch=True)
            if done == self.steps:
                return
            epoch, dealt = epoch + 1, 0

    def _full_steps(self, world_size: int) -> Iterator[StepBatches]:
        """Steps without a data set: every one has all its samples, of which none is looked at."""
        (full,) = self._one_without_data(world_size)
        num_steps = self.steps or self._steps_without_data
        for step in range(num_steps):
            if self.rebalance is not None:
                (full,) = self._one_without_data(world_size, step)
            yield replace(full, closes_epoch=step == num_steps - 1)

    def _one_without_data(self, world_size: int, step: int = 0) -> Iterator[StepBatches]:
        nobody = np.broadcast_to(np.int64(0), self.samples_per_step(world_size))
        if self.global_batch is not None:
            return self.steps_of_epoch(nobody, world_size, step)
        dealt = Parts.even(nobody, world_size)
        return steps_from_microbatches(dealt, self.microbatch or 0, self.grad_accum, False)

    @property
    def _steps_without_data(self) -> int:
        """Workers that began together hand over their batches together, so that all take a turn."""
        return max(STEPS_WITHOUT_DATA, 1 + (self.input.workers if self.input else 0))

    def num_samples(self, base: Path) -> int:
        """Samples of an epoch, or packs; 0 without a data set."""
        packs = self.packs(base)
        return self.dataset.length(base) if packs is None else len(packs.first)

    def lengths(self, seed: int, base: Path) -> dict[str, Ints]:
        """Length of every sample without its padding, by input; none where nothing is padded.

        Of packs, their tokens.
        """
        packs = self.packs(base)
        if packs is not None:
            return {"x": packs.tokens}
        return self.dataset.lengths_of(self.model, self.loss, seed, base)

    def packs(self, base: Path) -> Packs | None:
        """The data set's samples as they are joined, if they are."""
        if self.packing is None:
            return None
        lengths = self.dataset.drawn_lengths(self.model, 0, base)
        if lengths is None:  # the scenario's checks refuse this
            return None
        return self.packing.packs(lengths, self.packing.most(self.model))

    def kinds_of_steps(
        self, world_size: int, num_samples: int, start: Start = START
    ) -> tuple[list[StepBatches], int]:
        """Steps that differ in more than which samples they have, and how many steps there are.

        ``num_samples`` are those of the data set, if there is one; the others as of `batches`. The
        first step's kind comes first.
        """
        if self.rebalance is not None and self.rebalance.every is not None:
            one_by_one = [
                self.model_copy(update={"rebalance": rule}).kinds_of_steps(
                    world_size, num_samples, start
                )
                for rule in self.rebalance.each()
            ]
            return [kind for kinds, _ in one_by_one for kind in kinds], one_by_one[0][1]
        if not self.dataset.has_samples:
            num_steps = self.steps or self._steps_without_data
            (full,) = self._one_without_data(world_size)
            closing = replace(full, closes_epoch=True)
            return ([full, closing] if num_steps > 1 else [closing]), num_steps

        def epoch(num_samples: int) -> list[StepBatches]:
            return list(islice(self.steps_of_epoch(np.arange(num_samples), world_size), self.steps))

        start = start.upcoming(num_samples, self.least_dealt(world_size))
        rest = epoch(num_samples - start.num_samples)
        each = epoch(num_samples) if start.num_samples else rest
        epochs = (self.epochs or 1) - start.epoch - 1
        num_steps = self.steps or start.num_steps + len(rest) + epochs * len(each)
        return kinds_of(rest, each, num_steps - start.num_steps), num_steps

    def num_epochs(self, world_size: int, base: Path) -> int:
        """Number of epochs that a run begins; one where there is no data set."""
        if self.steps is None or not self.dataset.has_samples:
            return self.epochs or 1
        order = np.arange(self.num_samples(base))
        return -(-self.steps // max(sum(1 for _ in self.steps_of_epoch(order, world_size)), 1))

    def num_steps(self, world_size: int, base: Path, start: Start = START) -> int:
        """Number of steps of a run, of those before the start too."""
        if self.steps is not None:
            return self.steps
        return self.kinds_of_steps(world_size, self.num_samples(base), start)[1]
