"""Loading: a DataLoader's worker processes, whose work each rank does by itself.

Numbers are those of the workers: each is seeded as torch seeds it, keeps generators of its own, and
gets every so-manyth batch. What they take is not charged; on a real host it is hidden by as many
cores.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterDataPipe, _utils, dataloader, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo, _generate_state

from simdp.errors import ProgramError
from simdp.torch.parts import Part
from simdp.torch.ranks import current


class Loading(Part):
    """DataLoaders with workers."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        inner: Any = dataloader
        before = inner._MultiProcessingDataLoaderIter

        def chosen(loader: Any) -> Any:
            return (before if current() is None else Workers)(loader)

        inner._MultiProcessingDataLoaderIter = chosen
        try:
            yield
        finally:
            inner._MultiProcessingDataLoaderIter = before


class _Worker:
    """One worker: its generators, and what it fetches with."""

    def __init__(self, loader: Any, number: int, base_seed: int) -> None:
        self._loader = loader
        seed = base_seed + number
        self._info = WorkerInfo(
            id=number, num_workers=loader.num_workers, seed=seed, dataset=loader.dataset
        )
        self._state: Any = None
        with self.at_work():
            random.seed(seed)
            torch.default_generator.manual_seed(seed)
            np.random.seed(_generate_state(base_seed, number))  # noqa: NPY002
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(number)
            self.resume()

    def resume(self) -> None:
        """Begin with the dataset anew."""
        loader = self._loader
        self._fetcher = dataloader._DatasetKind.create_fetcher(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the generators and ``get_worker_info`` be the worker's."""
        module: Any = _utils.worker
        before, info = _states(), get_worker_info()
        if self._state is not None:
            _put(self._state)
        module._worker_info = self._info
        try:
            yield
        finally:
            module._worker_info = info
            self._state = _states()
            _put(before)

    def fetch(self, index: Any) -> Any:
        """Fetch a batch."""
        with self.at_work():
            return self._fetcher.fetch(index)


def _states() -> tuple[Any, ...]:
    return (
        torch.default_generator.get_state(),
        random.getstate(),
        np.random.get_state(),  # noqa: NPY002
    )


def _put(states: tuple[Any, ...]) -> None:
    torch.default_generator.set_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002


class Workers(dataloader._BaseDataLoaderIter):
    """Goes through a DataLoader as its workers would.

    Parameters
    ----------
    loader : DataLoader
        Whose ``num_workers`` is above 0.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._num_workers = loader.num_workers
        self._loader = loader
        if isinstance(loader.dataset, IterDataPipe):
            raise ProgramError(
                "DataLoader: workers of an IterDataPipe are not served; use num_workers=0."
            )
        self._everybody: list[_Worker] = []
        self._begin()

    def _begin(self) -> None:
        if self._everybody and self._loader.persistent_workers:
            for worker in self._everybody:
                worker.resume()
        else:
            self._everybody = [
                _Worker(self._loader, number, self._base_seed)
                for number in range(self._num_workers)
            ]
        self._workers: list[Any] = list(self._everybody)
        self._turn = 0
        # Workers are asked for so many batches ahead, and the sampler draws that early.
        self._asked: list[Any] = []
        self._ask(self._loader.prefetch_factor * self._num_workers)

    def _ask(self, count: int) -> None:
        for _ in range(count):
            try:
                self._asked.append(next(self._sampler_iter))
            except StopIteration:
                return

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._begin()

    def _next_data(self) -> Any:
        while self._asked:
            index = self._asked.pop(0)
            place, self._turn = self._turn % self._num_workers, self._turn + 1
            worker = self._workers[place]
            if worker is None:
                self._ask(1)
                continue
            try:
                data = worker.fetch(index)
            except StopIteration:  # of an iterable dataset, this worker's part
                self._workers[place] = None
                if not any(self._workers):
                    raise
                self._ask(1)
                continue
            self._ask(1)
            return data
        raise StopIteration
