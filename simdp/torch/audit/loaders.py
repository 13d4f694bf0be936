"""Observes DataLoaders: which samples they return, and from which line."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    patches.wrap(DataLoader, "__init__", after(_created), seen)
    patches.wrap(DataLoader, "__iter__", _iterate, seen)
    patches.wrap(dataloader._BaseDataLoaderIter, "__next__", _next, seen)
    patches.wrap(fetching._MapDatasetFetcher, "fetch", _fetch, seen)
    for owner in (torch.utils.data, torch.utils.data.dataset):
        patches.wrap(owner, "random_split", _split, seen)
    patches.wrap(torch, "randperm", _split, seen)


def samplers(loader: Any) -> list[Any]:
    """Return all samplers of a loader, the outer ones first."""
    owners = [loader]
    for owner in owners:  # grows
        for name in ("batch_sampler", "sampler"):
            sampler = getattr(owner, name, None)
            if sampler is not None and not any(sampler is other for other in owners):
                owners.append(sampler)
    return owners[1:]


def has_epoch(sampler: Any) -> bool:
    """Return whether an order depends on an epoch that a script sets."""
    return hasattr(sampler, "set_epoch") or isinstance(getattr(sampler, "epoch", None), int)


def whole_indices(dataset: Any, indices: Any) -> tuple[int, ...]:
    """Return indices into the data set behind all subsets."""
    indices = list(indices)
    while isinstance(dataset, Subset):
        inner: Any = dataset.indices
        indices = [inner[index] for index in indices]
        dataset = dataset.dataset
    try:
        return tuple(int(index) for index in indices)
    except (TypeError, ValueError):
        return tuple(number_from(repr(index).encode()) for index in indices)


def behind_subsets(dataset: Any) -> Any:
    """Return the data set behind all subsets."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _created(here: Observation, loader: Any) -> None:
    if id(loader) in here.loaders:
        return
    here.loaders[id(loader)] = len(here.record.loaders)
    here.kept.insert(0, loader)
    dataset, inner = loader.dataset, samplers(loader)
    iterable, whole = isinstance(dataset, IterableDataset), behind_subsets(dataset)
    sets_epoch = any(has_epoch(source) for source in (*inner, dataset))
    if sets_epoch and not any(hasattr(sampler, "shuffle") for sampler in inner):
        shuffles = True
    else:
        shuffles = any(
            getattr(sampler, "shuffle", isinstance(sampler, RandomSampler)) for sampler in inner
        )
    subset = whole_indices(dataset, range(len(dataset))) if isinstance(dataset, Subset) else None
    size = None if iterable or not hasattr(whole, "__len__") else len(whole)
    here.record.loaders.append(
        LoaderRecord(running(), shuffles, sets_epoch, size, subset, iterable)
    )


def _iterate(here: Observation, original: Any, loader: Any) -> Any:
    iterator = original(loader)
    if id(loader) not in here.loaders:
        _created(here, loader)
    number = here.loaders[id(loader)]
    record = here.record.loaders[number]
    if record.content is None:
        record.content = content_of(loader.dataset)
    epoch = here.iterations.get(number, 0)
    here.iterations[number] = epoch + 1
    iterator._audited = [number, epoch, running(), 0]
    epochs = (getattr(source, "epoch", None) for source in (*samplers(loader), loader.dataset))
    record.set_epochs += [epoch for epoch in epochs if isinstance(epoch, int)][:1]
    return iterator


def _next(here: Observation, original: Any, iterator: Any) -> Any:
    if not hasattr(iterator, "_audited"):
        return original(iterator)
    number, epoch, line, place = iterator._audited
    here.fetched, here.loading = None, (number, here.loaded.get(number, 0))
    try:
        batch = original(iterator)
    finally:
        here.loading = None
    here.loaded[number] = here.loaded.get(number, 0) + 1
    iterator._audited[3] += 1
    samples, tensor = here.fetched, first_tensor(batch)
    rows = () if tensor is None else row_hashes(tensor)
    if samples is None:
        samples = rows
        _yielding(here.record.loaders[number], iterator)
    if torch.is_grad_enabled():  # else of an evaluation
        here.batch = len(here.record.batches)
        here.recent = [*here.recent[-AHEAD:], (here.batch, probes(batch))]
    line = running() or line
    here.record.batches.append(BatchRecord(number, epoch, samples, line, place, rows))
    return batch


def content_of(dataset: Any) -> int | None:
    """Return a hash of the first, the middle and the last sample; None if it has none.

    Data sets of ranks that differ in it are parts of the data, and an index is another sample.
    """
    dataset = behind_subsets(dataset)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return None
    before, size = generator_states(), len(dataset)
    contents = [b"%d" % size]
    try:
        for place in {0, size // 2, size - 1} if size else ():
            with unobserved():
                seed_generators(place)
                contents += _contents(dataset[place])
    except Exception:  # whatever a data set of the script raises
        return None
    finally:
        restore_generators(before)
    return number_from(b"|".join(contents))


def _contents(value: Any) -> list[bytes]:
    if isinstance(value, torch.Tensor):
        return [] if value.is_meta else [values(value).tobytes()]
    if isinstance(value, np.ndarray):
        return [value.tobytes()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [content for inner in value for content in _contents(inner)]
    return [repr(value).encode()] if isinstance(value, str | bytes | int | float) else []


def _yielding(loader: LoaderRecord, iterator: Any) -> None:
    """Record the line at which an iterable data set of the script yields."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    frame = getattr(getattr(fetcher, "dataset_iter", None), "gi_frame", None)
    if frame is not None and is_script(frame.f_code.co_filename):
        loader.line = Line(frame.f_code.co_filename, frame.f_lineno)


def _fetch(here: Observation, original: Any, fetcher: Any, index: Any) -> Any:
    here.fetched = whole_indices(
        fetcher.dataset, index if isinstance(index, list | tuple) else [index]
    )
    before = generator_states()
    batch = original(fetcher, index)
    if here.loading is not None and drawn_since(before):
        add(here.record.augmented, here.record.loaders[here.loading[0]].line)
    return batch


AHEAD = 64
"""Batches that a script may load before it trains on one, as Trainer does to accumulate."""


def probes(value: Any) -> list[Any]:
    """Return the probes of nested tensors."""
    if isinstance(value, torch.Tensor):
        sketch = probe(value) if value.ndim and not value.is_meta and value.numel() else None
        return [] if sketch is None else [sketch]
    return [sketch for inner in _inner(value) for sketch in probes(inner)]


def _inner(value: Any) -> Sequence[Any]:
    """Return the values in a list, a tuple or a dictionary, also one of transformers."""
    entries = value if isinstance(value, dict) else getattr(value, "data", None)
    if isinstance(entries, dict):
        return list(entries.values())
    return value if isinstance(value, list | tuple) else ()


def match(here: Observation, arguments: Any) -> None:
    """Find the batch whose tensors the model is given, since a script may load others before.

    It is the last one if none is, since its values were changed.
    """
    with unobserved():
        inputs = probes(arguments)
    best = 0
    for number, loaded in here.recent:
        equal = sum(any(np.array_equal(probe, other) for other in loaded) for probe in inputs)
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
    tensors = (first_tensor(inner) for inner in _inner(value))
    return next((tensor for tensor in tensors if tensor is not None), None)


def number_from(content: bytes) -> int:
    """Return a hash of 6 bytes, as a number."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big")


def row_hashes(tensor: Any) -> tuple[int, ...]:
    """Return a number for the content of each row of a tensor."""
    if tensor.is_meta or hasattr(tensor, "_local_tensor"):
        return ()
    flat = values(tensor).reshape(tensor.shape[0], -1) if tensor.numel() else np.zeros((0, 1))
    return tuple(number_from(row.tobytes()) for row in flat)


def _split(here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
    line = directly(3)
    if line is not None:
        add(here.record.splits, line)
    with unobserved():
        return original(*args, **kwargs)
