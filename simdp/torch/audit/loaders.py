"""Observes DataLoaders: which samples they return, and from which line."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, dataloader
from torch.utils.data._utils import fetch as fetching

from simdp.torch.audit.lines import Line, directly, is_script, running
from simdp.torch.audit.observation import Observation, add, after, seen, unobserved
from simdp.torch.audit.records import BatchRecord, LoaderRecord
from simdp.torch.audit.sketches import probe, values
from simdp.torch.generators import generator_states, restore_generators, seed_generators
from simdp.torch.ranks import Patches


def patch(patches: Patches) -> None:
    """Observe all loaders, and the draws of splits and orders."""
    patches.wrap(DataLoader, "__init__", after(_created))
    patches.wrap(DataLoader, "__iter__", _iterating)
    patches.wrap(dataloader._BaseDataLoaderIter, "__next__", _returning)
    patches.wrap(fetching._MapDatasetFetcher, "fetch", _fetching)
    for owner in (torch.utils.data, torch.utils.data.dataset):
        patches.wrap(owner, "random_split", _splitting)
    patches.wrap(torch, "randperm", _splitting)


def samplers(loader: Any) -> list[Any]:
    """Return all samplers of a loader, the outer ones first."""
    found: list[Any] = []
    todo = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    while todo:
        one = todo.pop(0)
        if one is None or any(one is known for known in found):
            continue
        found.append(one)
        todo += [getattr(one, "batch_sampler", None), getattr(one, "sampler", None)]
    return found


def has_epoch(sampler: Any) -> bool:
    """Return whether an order depends on an epoch that a script sets."""
    return hasattr(sampler, "set_epoch") or isinstance(getattr(sampler, "epoch", None), int)


def whole_indices(dataset: Any, indices: Any) -> tuple[int, ...]:
    """Return indices into the data set behind all subsets."""
    found = list(indices)
    while isinstance(dataset, Subset):
        inner: Any = dataset.indices
        found = [inner[index] for index in found]
        dataset = dataset.dataset
    try:
        return tuple(int(index) for index in found)
    except (TypeError, ValueError):
        return tuple(int.from_bytes(digest(repr(index).encode()), "big") for index in found)


def _created(here: Observation, loader: Any) -> None:
    if id(loader) in here.loaders:
        return
    here.loaders[id(loader)] = len(here.record.loaders)
    here.kept.insert(0, loader)
    dataset, inner = loader.dataset, samplers(loader)
    iterable = isinstance(dataset, IterableDataset)
    setting = [one for one in (*inner, dataset) if has_epoch(one)]
    shuffles = any(getattr(one, "shuffle", isinstance(one, RandomSampler)) for one in inner)
    if setting and not any(hasattr(one, "shuffle") for one in inner):
        shuffles = True
    subset = None
    if isinstance(dataset, Subset):
        subset = whole_indices(dataset, range(len(dataset)))
    base = dataset
    while isinstance(base, Subset):
        base = base.dataset
    size = None if iterable or not hasattr(base, "__len__") else len(base)
    here.record.loaders.append(
        LoaderRecord(running(), shuffles, bool(setting), size, subset, iterable)
    )


def _iterating(original: Any) -> Any:
    def __iter__(self: Any) -> Any:  # noqa: N807
        found, here = original(self), seen()
        if here is not None:
            if id(self) not in here.loaders:
                _created(here, self)
            number = here.loaders[id(self)]
            if here.record.loaders[number].content is None:
                here.record.loaders[number].content = content_of(self.dataset)
            epoch = here.iterations.get(number, 0)
            here.iterations[number] = epoch + 1
            found._audited = [number, epoch, running(), 0]
            for one in (*samplers(self), self.dataset):
                if isinstance(getattr(one, "epoch", None), int):
                    here.record.loaders[number].set_epochs.append(one.epoch)
                    break
        return found

    return __iter__


def _returning(original: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807
        here = seen()
        if here is None or not hasattr(self, "_audited"):
            return original(self)
        number, epoch, line, place = self._audited
        here.fetched, here.loading = None, (number, here.loaded.get(number, 0))
        try:
            found = original(self)
        finally:
            here.loading = None
        here.loaded[number] = here.loaded.get(number, 0) + 1
        self._audited[3] += 1
        samples, tensor = here.fetched, first_tensor(found)
        rows = () if tensor is None else row_hashes(tensor)
        if samples is None:
            samples = rows
            _yielding(here.record.loaders[number], self)
        if torch.is_grad_enabled():  # else of an evaluation
            here.batch = len(here.record.batches)
            here.recent = [*here.recent[-AHEAD:], (here.batch, probes(found))]
        line = running() or line
        here.record.batches.append(
            BatchRecord(number, epoch, samples, line, here.step, place, rows)
        )
        return found

    return __next__


def content_of(dataset: Any) -> int | None:
    """Return a hash of the first, the middle and the last sample; None if it has none.

    Data sets of ranks that differ in it are parts of the data, and an index is another sample.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return None
    before, size = generator_states(), len(dataset)
    found = [b"%d" % size]
    try:
        for place in {0, size // 2, size - 1} if size else ():
            with unobserved():
                seed_generators(place)
                found += _contents(dataset[place])
    except Exception:  # whatever a data set of the script raises
        return None
    finally:
        restore_generators(before)
    return int.from_bytes(digest(b"|".join(found)), "big")


def _contents(value: Any) -> list[bytes]:
    """Return the values in a sample."""
    if isinstance(value, torch.Tensor):
        return [] if value.is_meta else [values(value).tobytes()]
    if isinstance(value, np.ndarray):
        return [value.tobytes()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [found for one in value for found in _contents(one)]
    return [repr(value).encode()] if isinstance(value, str | bytes | int | float) else []


def _yielding(loader: LoaderRecord, iterator: Any) -> None:
    """Record the line at which an iterable data set of the script yields."""
    frame = getattr(
        getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None), "gi_frame", None
    )
    if frame is not None and is_script(frame.f_code.co_filename):
        loader.line = Line(frame.f_code.co_filename, frame.f_lineno)


def _fetching(original: Any) -> Any:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        here = seen()
        if here is not None:
            given = possibly_batched_index
            listed = given if isinstance(given, list | tuple) else [given]
            here.fetched = whole_indices(self.dataset, listed)
        before = None if here is None else generator_states()
        found = original(self, possibly_batched_index)
        if here is not None and here.loading is not None and drawn_since(before):
            add(here.record.augmented, here.record.loaders[here.loading[0]].line)
        return found

    return fetch


AHEAD = 64
"""Batches that a script may load before it trains on one, as Trainer does to accumulate."""


def probes(value: Any) -> list[Any]:
    """Return the probes of nested tensors."""
    if isinstance(value, torch.Tensor):
        known = value.ndim and not value.is_meta and value.numel()
        found = probe(value) if known else None
        return [] if found is None else [found]
    if isinstance(value, dict) or isinstance(getattr(value, "data", None), dict):
        value = list((value if isinstance(value, dict) else value.data).values())
    if isinstance(value, list | tuple):
        return [found for one in value for found in probes(one)]
    return []


def match(here: Observation, given: Any) -> None:
    """Find the batch whose tensors the model is given, since a script may load others before.

    It is the last one if none is, since its values were changed.
    """
    with unobserved():
        mine = probes(given)
    best = 0
    for number, theirs in here.recent:
        equal = sum(any(np.array_equal(one, other) for other in theirs) for one in mine)
        if equal and equal >= best:
            best, here.used = equal, number
    if here.used is None:
        here.used = here.batch


def drawn_since(states: Any) -> bool:
    """Return whether torch's, Python's or NumPy's generator was used since they had states."""
    torch_now, python_now, numpy_now = generator_states()
    same = torch.equal(states[0], torch_now) and states[1] == python_now
    return not (
        same and states[2][2] == numpy_now[2] and np.array_equal(states[2][1], numpy_now[1])
    )


def first_tensor(value: Any) -> Any:
    """Return the first tensor with a batch dimension in nested values; None without one."""
    if isinstance(value, torch.Tensor):
        return value if value.ndim else None
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "data") and isinstance(getattr(value, "data", None), dict):
        value = list(value.data.values())
    if isinstance(value, list | tuple):
        for one in value:
            found = first_tensor(one)
            if found is not None:
                return found
    return None


def digest(text: bytes) -> bytes:
    """Return a hash of 6 bytes."""
    return hashlib.blake2b(text, digest_size=6).digest()


def row_hashes(tensor: Any) -> tuple[int, ...]:
    """Return a number for the content of each row of a tensor."""
    if tensor.is_meta or hasattr(tensor, "_local_tensor"):
        return ()
    flat = values(tensor).reshape(tensor.shape[0], -1) if tensor.numel() else np.zeros((0, 1))
    return tuple(int.from_bytes(digest(row.tobytes()), "big") for row in flat)


def _splitting(original: Any) -> Any:
    @functools.wraps(original)
    def split(*args: Any, **kwargs: Any) -> Any:
        here = seen()
        line = directly()
        if here is not None and line is not None:
            add(here.record.splits, line)
        with unobserved():
            return original(*args, **kwargs)

    return split
