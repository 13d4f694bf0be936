"""Changes of the samples that ranks load: given batches, indices and draws, or all of them."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch as fetching

from simdp.torch.audit.changes import ByMode, Change
from simdp.torch.audit.comparisons import RunView
from simdp.torch.audit.lines import Line, directly, running
from simdp.torch.audit.loaders import behind_subsets, has_epoch, samplers, whole_indices
from simdp.torch.audit.observation import LOSSES, Observation, mine, unobserved
from simdp.torch.audit.records import BackwardRecord, RankRecord
from simdp.torch.audit.sketches import values
from simdp.torch.generators import generator_states, restore_generators, seed_generators
from simdp.torch.ranks import MARKS, Patches, Rank, current


class EpochsSet(Change):
    """Calls ``set_epoch`` of samplers with the number of the iteration."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(DataLoader, "__iter__", self._iterate, mine)

    def _iterate(self, here: Observation, original: Any, loader: Any) -> Any:
        number = here.iterations.get(here.loaders.get(id(loader), -1), 0)
        for source in (*samplers(loader), loader.dataset):
            if hasattr(source, "set_epoch"):
                source.set_epoch(number)
            elif has_epoch(source):
                source.epoch = number
        return original(loader)


class GivenIndices(Change):
    """Loads given samples: ``indices`` by rank, loader and number of its batch."""

    def __init__(self, indices: Mapping[tuple[int, int, int], Sequence[int]]) -> None:
        self.indices = dict(indices)

    def patch(self, patches: Patches) -> None:
        patches.wrap(fetching._MapDatasetFetcher, "fetch", self._fetch, mine)

    def _fetch(self, here: Observation, original: Any, fetcher: Any, index: Any) -> Any:
        indices = (
            None if here.loading is None else self.indices.get((here.rank.rank, *here.loading))
        )
        if indices is None:
            return original(fetcher, index)
        here.fetched = tuple(indices)
        with _in_place(fetcher, _whole(fetcher.dataset)):
            return original(fetcher, list(indices) if isinstance(index, list) else indices[0])


@contextmanager
def _in_place(fetcher: Any, dataset: Any) -> Iterator[None]:
    """Let a fetcher take samples of another data set inside."""
    before, fetcher.dataset = fetcher.dataset, dataset
    try:
        yield
    finally:
        fetcher.dataset = before


def _whole(dataset: Any) -> Any:
    if isinstance(dataset, _Seeded):
        return _Seeded(_whole(dataset.inner), dataset.loader, dataset.drawn)
    return behind_subsets(dataset)


class TiedLoading(Change):
    """Draws the random numbers of a data set by sample, on whichever rank it is loaded.

    Each time that a sample is loaded it gets other ones. Epochs do not say which time it is, since
    an epoch on more ranks has fewer steps.
    """

    def __init__(self) -> None:
        # times that each sample of a loader was loaded, on all ranks
        self.drawn: Counter[tuple[int, int]] = Counter()

    def patch(self, patches: Patches) -> None:
        patches.wrap(fetching._MapDatasetFetcher, "fetch", self._fetch, mine)

    def _fetch(self, here: Observation, original: Any, fetcher: Any, index: Any) -> Any:
        if here.loading is None:
            return original(fetcher, index)
        with _in_place(fetcher, _Seeded(fetcher.dataset, here.loading[0], self.drawn)):
            return original(fetcher, index)


class _Seeded:
    """A data set whose generators start anew with each sample."""

    def __init__(self, inner: Any, loader: int, drawn: Counter[tuple[int, int]]) -> None:
        self.inner, self.loader, self.drawn = inner, loader, drawn

    def __getitem__(self, index: Any) -> Any:
        sample = whole_indices(self.inner, [index])[0]
        before = generator_states()
        seed_generators((sample * 1009 + self.drawn[self.loader, sample]) % 2**32)
        self.drawn[self.loader, sample] += 1
        try:
            return self.inner[index]
        finally:
            restore_generators(before)


class GivenBatches(Change):
    """Returns given batches of loaders without indices: by rank, loader and number."""

    def __init__(self, batches: Mapping[tuple[int, int, int], Any]) -> None:
        self.batches = dict(batches)

    def patch(self, patches: Patches) -> None:
        patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._next, mine)

    def _next(self, here: Observation, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        if here.loading is None:
            return batch
        return self.batches.get((here.rank.rank, *here.loading), batch)


Draw = tuple[int, Line, int]
"""Rank, line, and number of a draw at this line."""


class IntegerDraws(Change):
    """Records the random integers that the script draws while gradients are recorded."""

    def __init__(self) -> None:
        self.kept: dict[Draw, Any] = {}

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch, "randint", self._draw, mine)

    def _draw(self, here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
        integers, line = original(*args, **kwargs), running()
        if line is None or not torch.is_grad_enabled():
            return integers  # those without gradients are of an evaluation
        number = here.integer_draws[line]
        here.integer_draws[line] += 1
        return self.drawn((here.rank.rank, line, number), integers)

    def drawn(self, key: Draw, integers: Any) -> Any:
        """Return what a draw gives."""
        self.kept[key] = integers.clone()
        return integers


class GivenDraws(IntegerDraws):
    """Returns given random integers where the script draws its batches."""

    def __init__(self, draws: Mapping[Draw, Any]) -> None:
        super().__init__()
        self.draws = dict(draws)

    def drawn(self, key: Draw, integers: Any) -> Any:
        return _placed(self.draws.get(key, integers), integers)


class GivenRows(ByMode):
    """Takes given rows where the script indexes tensors by its batch: by rank and backward pass.

    The indices are the observed samples, also where none are given: then it only records. A mode is
    needed, since a method of tensors cannot be replaced.
    """

    def __init__(
        self, rows: Mapping[tuple[int, int], tuple[Sequence[int], Sequence[int]]] | None = None
    ) -> None:
        super().__init__()
        self.rows = dict(rows or {})

    def call(self, rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.Tensor.__getitem__ and directly(3) is not None:
            args = (args[0], self._index(args[1]))
        return func(*args, **kwargs)

    def _index(self, index: Any) -> Any:
        here = mine()
        if not isinstance(index, torch.Tensor) or index.ndim != 1 or index.dtype != torch.int64:
            return index
        if here is None:
            return index
        with torch._C.DisableTorchFunction():
            rows = values(index).astype(int).tolist()
            before, after = self.rows.get((here.rank.rank, len(here.record.backwards)), ((), ()))
            if before and list(before) == rows:
                rows = list(after)
                index = torch.tensor(rows, dtype=torch.int64)
        here.index = tuple(rows)
        return index


class KeptBatches(Change):
    """Keeps the batches of loaders; ``kept`` by rank, loader and number."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int, int], Any] = {}

    def patch(self, patches: Patches) -> None:
        patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._next, mine)

    def _next(self, here: Observation, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        if here.loading is not None:
            self.kept[(here.rank.rank, *here.loading)] = batch
        return batch


class Inputs(Change):
    """Keeps what the script gives its model and its losses, or gives it other values.

    ``kept`` and ``imposed`` by rank, backward pass before which the call is, and number of the
    call.
    """

    def __init__(self, imposed: Mapping[tuple[int, int, int], Any] | None = None) -> None:
        self.imposed = dict(imposed or {})
        self.kept: dict[tuple[int, int, int], Any] = {}
        self.calls: Counter[tuple[Rank, int]] = Counter()  # by backward pass

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", self._call, mine)
        for name in LOSSES:
            patches.wrap(functional, name, self._lose, mine)

    def _call(self, here: Observation, called: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        outer = here.depth == 1 and torch.is_grad_enabled()
        if outer and any(parameter.requires_grad for parameter in module.parameters()):
            args, kwargs = self._value(here, (args, kwargs))
        return called(module, *args, **kwargs)

    def _lose(
        self, here: Observation, original: Any, input: Any, target: Any, *args: Any, **kwargs: Any
    ) -> Any:
        trains = torch.is_grad_enabled() and getattr(input, "requires_grad", False)
        if trains and not target.requires_grad:
            target = self._value(here, target)
        return original(input, target, *args, **kwargs)

    def _value(self, here: Observation, value: Any) -> Any:
        passes = len(here.record.backwards)
        key = here.rank.rank, passes, self.calls[here.rank, passes]
        self.calls[here.rank, passes] += 1
        if not self.imposed:
            self.kept[key] = _copied(value)
        return _placed(self.imposed[key], value) if key in self.imposed else value


def _copied(value: Any) -> Any:
    """Return nested tensors copied, since a script may fill its batch's memory again."""
    if isinstance(value, torch.Tensor):
        with unobserved(), torch.no_grad():
            return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_copied(inner) for inner in value)
    return value


def _placed(value: Any, like: Any) -> Any:
    """Return nested tensors on the devices of others; those that a gradient goes through stay."""
    if isinstance(like, torch.Tensor) and like.requires_grad:
        return like
    if isinstance(value, torch.Tensor):
        return value.to(like.device) if isinstance(like, torch.Tensor) else value
    if isinstance(value, dict):
        return {key: _placed(inner, like[key]) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_placed(*pair) for pair in zip(value, like, strict=True))
    return value


class ScaledMetrics(Change):
    """Multiplies the numbers that ranks reduce at some lines, each by another factor.

    Only rank 0 prints. Without ``lines`` nothing else is changed.
    """

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.lines = list(lines)
        self.calls: Counter[int] = Counter()  # by rank

    def begin(self, rank: Rank) -> None:
        if rank.rank:
            rank.state[MARKS] = {"stdout": None, "stderr": None}

    def patch(self, patches: Patches) -> None:
        for owner in (dist, dist.distributed_c10d):
            for name in ("all_reduce", "reduce"):
                patches.wrap(owner, name, self._reduce, current)

    def _reduce(self, rank: Rank, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work, line = original(tensor, *args, **kwargs), running()
        if line in self.lines and work is None and tensor.is_floating_point():
            self.calls[rank.rank] += 1
            with unobserved(), torch.no_grad():
                factors = torch.arange(tensor.numel()) + 0.5 + self.calls[rank.rank] % 7
                tensor.mul_(factors.reshape(tensor.shape).to(tensor))
        return work


class WholeSlices(ByMode):
    """Gives every rank all rows where it takes every n-th one of a tensor without gradients."""

    def call(self, rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.Tensor.__getitem__ and not torch.is_grad_enabled():
            index = args[1]
            if isinstance(index, slice) and _is_share(index.step):
                args = (args[0], slice(None))
        return func(*args, **kwargs)


class WholeParts(Change):
    """Gives every rank all items where the script takes every n-th one: in slices and ranges.

    Python's own sequences cannot be observed, so that the script is compiled anew.
    """

    def rewritten(self, code: CodeType) -> CodeType:
        """Return the script's code, with its slices and ranges given to this change."""
        file = code.co_filename
        tree = ast.fix_missing_locations(_Parts().visit(ast.parse(Path(file).read_bytes())))
        return compile(tree, file, "exec", dont_inherit=True)

    def patch(self, patches: Patches) -> None:
        patches.put(builtins, PART, _part)
        patches.put(builtins, RANGE, _range)


PART, RANGE = "__simdp_part__", "__simdp_range__"
"""Names of the functions that rewritten scripts call."""


class _Parts(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        cut = node.slice
        if not isinstance(node.ctx, ast.Load) or not isinstance(cut, ast.Slice) or not cut.step:
            return node
        bounds = [bound or ast.Constant(None) for bound in (cut.lower, cut.upper, cut.step)]
        call = ast.Call(ast.Name(PART, ast.Load()), [node.value, *bounds], [])
        return ast.copy_location(call, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "range" and len(node.args) == 3:
            node.func = ast.copy_location(ast.Name(RANGE, ast.Load()), node.func)
        return node


def _is_share(step: Any) -> bool:
    rank = current()
    return rank is not None and step == rank.runtime.cluster.world_size > 1


def _part(value: Any, lower: Any, upper: Any, step: Any) -> Any:
    return value[:upper] if _is_share(step) else value[lower:upper:step]


def _range(start: int, stop: int, step: int) -> range:
    rank = current()
    if rank is not None and _is_share(step):
        return range(start - rank.rank, stop)
    return range(start, stop, step)


class WholeEvaluation(Change):
    """Gives every rank all samples of loaders that do not train, one in each batch."""

    def __init__(self, samples: Mapping[int, Sequence[int]]) -> None:
        self.samples = {loader: list(indices) for loader, indices in samples.items()}

    def patch(self, patches: Patches) -> None:
        patches.wrap(DataLoader, "__iter__", self._iterate, mine)
        patches.wrap(DataLoader, "__len__", self._length, mine)

    def _samples(self, here: Observation, loader: Any) -> list[int] | None:
        return self.samples.get(here.loaders.get(id(loader), -1))

    def _iterate(self, here: Observation, original: Any, loader: Any) -> Any:
        samples = self._samples(here, loader)
        if samples is None:
            return original(loader)
        dataset, collate = behind_subsets(loader.dataset), loader.collate_fn
        with unobserved():
            whole: Any = DataLoader(dataset, batch_size=1, sampler=samples, collate_fn=collate)
        return original(whole)

    def _length(self, here: Observation, original: Any, loader: Any) -> int:
        samples = self._samples(here, loader)
        return int(original(loader)) if samples is None else len(samples)


# Ties ---------------------------------------------------------------------------------------------


def tied(source: RunView, target: RunView) -> Change | None:
    """Return the change that gives one run the samples of another, step by step.

    Each batch of the target, of fewer ranks, gets those that the source's ranks have in the same
    place, or one of them where the target accumulates as many more batches. None without indices,
    or where the numbers of batches do not fit.
    """
    indices: dict[tuple[int, int, int], list[int]] = {}
    rows: dict[tuple[int, int], tuple[tuple[int, ...], list[int]]] = {}
    for step in range(min(source.count, target.count)):
        drawn = [
            [samples for *_, samples in _loaded(record, passes)]
            for record, passes in zip(source.record.ranks, source.backwards(step), strict=True)
        ]
        for rank, every in enumerate(target.backwards(step)):
            record = target.record.ranks[rank]
            passes = _loaded(record, every)
            if not passes:
                continue
            flat = arranged(drawn[rank :: target.world_size], len(passes))
            if flat is None:
                return None
            for (number, backward, _), parts in zip(passes, flat, strict=True):
                samples = [sample for part in parts for sample in part]
                if backward.indexed:
                    rows[rank, number] = backward.samples, samples
                    continue
                key = _batch_of(target, rank, backward)
                if key is None or record.loaders[key[1]].iterable:
                    return None
                indices[key] = samples
    return GivenRows(rows) if rows else GivenIndices(indices)


def _loaded(
    rank: RankRecord, passes: Sequence[tuple[int, BackwardRecord]]
) -> list[tuple[int, BackwardRecord, tuple[int, ...]]]:
    """Return each batch of a step's passes once, with its first pass, and all its samples."""
    loaded: dict[tuple[bool, int], tuple[int, BackwardRecord, tuple[int, ...]]] = {}
    for number, backward in passes:
        batch = backward.batch
        samples = backward.samples if batch is None else rank.batches[batch].samples
        key = (False, number) if batch is None else (True, batch)
        loaded.setdefault(key, (number, backward, samples))
    return list(loaded.values())


def tied_draws(
    source: RunView, target: RunView, draws: dict[Draw, Any], own: dict[Draw, Any]
) -> Change | None:
    """Return the change that gives one run the random integers that another one draws.

    ``draws`` and ``own`` are those of the source and of the target.
    """
    tied: dict[Draw, Any] = {}
    draws_of_a_pass = _draws_of_a_pass(draws, source)
    if not draws_of_a_pass or draws_of_a_pass != _draws_of_a_pass(own, target):
        return None
    for rank in range(target.world_size):
        others = range(rank, source.world_size, target.world_size)
        for line, count in draws_of_a_pass.items():
            share = [
                [
                    [draws[other, line, number * count + place] for place in range(count)]
                    for number in range(len(source.record.ranks[other].backwards))
                ]
                for other in others
            ]
            flat = arranged(share, len(target.record.ranks[rank].backwards))
            if flat is None:
                return None
            for number, parts in enumerate(flat):
                for place in range(count):
                    drawn = [part[place] for part in parts]
                    if any(integers.ndim == 0 for integers in drawn):
                        return None
                    tied[rank, line, number * count + place] = torch.cat(drawn)
    return GivenDraws(tied)


def _draws_of_a_pass(draws: dict[Draw, Any], view: RunView) -> dict[Line, int]:
    """Return the draws of each backward pass by line; empty if ranks differ in them.

    Lines that draw less often are not of batches. A script that draws a batch ahead has some left
    at its end.
    """
    by_rank = []
    for number, rank in enumerate(view.record.ranks):
        counts = Counter(line for drawing, line, _ in draws if drawing == number)
        passes = max(len(rank.backwards), 1)
        by_rank.append({line: count // passes for line, count in counts.items() if count >= passes})
    return by_rank[0] if all(counted == by_rank[0] for counted in by_rank) else {}


def tied_batches(source: RunView, target: RunView, batches: dict[Any, Any]) -> Change | None:
    """Return the change that gives one run the batches that loaders of another one return.

    ``batches`` are those of the source, by rank, loader and number. None where they cannot be
    joined along the samples.
    """
    tied: dict[tuple[int, int, int], Any] = {}
    for step in range(min(source.count, target.count)):
        contents = [
            [batches.get(_batch_of(source, rank, backward)) for _, backward in passes]
            for rank, passes in enumerate(source.backwards(step))
        ]
        for rank, passes in enumerate(target.backwards(step)):
            if not passes:
                continue
            flat = arranged(contents[rank :: target.world_size], len(passes))
            if flat is None:
                return None
            for (_, backward), parts in zip(passes, flat, strict=True):
                joined, key = _joined(parts), _batch_of(target, rank, backward)
                if key is None or joined is None:
                    return None
                tied[key] = joined
    return GivenBatches(tied) if tied else None


def tied_inputs(
    source: RunView, target: RunView, inputs: dict[Any, Any]
) -> tuple[Change | None, int]:
    """Return the change that gives one run's model and losses the inputs of another one.

    ``inputs`` are those of the source, by rank, backward pass and number of the call. Also the
    number of steps that it holds for: it ends before the first whose inputs cannot be joined.
    """
    tied: dict[tuple[int, int, int], Any] = {}
    calls: dict[tuple[int, int], dict[int, Any]] = {}
    for (rank, number, call), value in inputs.items():
        calls.setdefault((rank, number), {})[call] = value
    for step in range(min(source.count, target.count)):
        if not any(target.backwards(step)):  # done before the target was resumed
            continue
        contents = [
            [calls.get((rank, number), {}) for number, _ in passes]
            for rank, passes in enumerate(source.backwards(step))
        ]
        for rank, passes in enumerate(target.backwards(step)):
            flat = arranged(contents[rank :: target.world_size], len(passes))
            if flat is None or not passes:
                return (Inputs(tied) if step else None), step
            for (number, _), parts in zip(passes, flat, strict=True):
                if any(part.keys() != parts[0].keys() for part in parts):
                    return (Inputs(tied) if step else None), step
                for call in parts[0]:
                    joined = _joined([part[call] for part in parts])
                    if joined is None:
                        return (Inputs(tied) if step else None), step
                    tied[rank, number, call] = joined
    return (Inputs(tied) if tied else None), min(source.count, target.count)


def _joined(parts: list[Any]) -> Any:
    """Return nested tensors joined along axis 0; None where shapes or types do not fit."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(type(part) is not type(first) for part in parts):
        return None
    if isinstance(first, torch.Tensor):
        if any(part.shape[1:] != first.shape[1:] for part in parts) or not first.ndim:
            return None
        return torch.cat(list(parts))
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            return None
        joined = _joined([[part[key] for key in first] for part in parts])
        return None if joined is None else dict(zip(first, joined, strict=True))
    if isinstance(first, list | tuple):
        if any(len(part) != len(first) for part in parts):
            return None
        joined = [_joined(list(column)) for column in zip(*parts, strict=True)]
        unlike = [
            value is None and own is not None for value, own in zip(joined, first, strict=True)
        ]
        return None if any(unlike) else type(first)(joined)
    return first if all(part is first or part == first for part in parts) else None


def arranged(share: list[list[Any]], count: int) -> list[list[Any]] | None:
    """Return what each of ``count`` passes gets, from the passes of several ranks.

    Passes of several ranks in one place become one; or each becomes one, where there are as many.
    """
    longest = max((len(passes) for passes in share), default=0)
    places = [
        [passes[place] for passes in share if place < len(passes)] for place in range(longest)
    ]
    if longest == count:
        return places
    flat = [[part] for parts in places for part in parts]
    return flat if len(flat) == count else None


def _batch_of(view: RunView, rank: int, backward: BackwardRecord) -> tuple[int, int, int] | None:
    """Return rank and loader of a backward pass's batch, and its number among the loader's."""
    if backward.batch is None:
        return None
    batches = view.record.ranks[rank].batches
    loader = batches[backward.batch].loader
    return rank, loader, sum(batch.loader == loader for batch in batches[: backward.batch])
