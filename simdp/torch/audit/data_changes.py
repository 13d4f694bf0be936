"""Changes of the samples that ranks load: given batches, indices and draws, or all of them."""

from __future__ import annotations

import ast
import builtins
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Subset, dataloader
from torch.utils.data._utils import fetch as fetching

from simdp.torch.audit.changes import ByMode, Change, _rank
from simdp.torch.audit.comparisons import RunView
from simdp.torch.audit.lines import Line, directly, running
from simdp.torch.audit.loaders import has_epoch, samplers, whole_indices
from simdp.torch.audit.observation import LOSSES, mine, unobserved
from simdp.torch.audit.records import BackwardRecord, RankRecord
from simdp.torch.audit.sketches import values
from simdp.torch.generators import generator_states, restore_generators, seed_generators
from simdp.torch.ranks import Patches, Rank, current


class EpochsSet(Change):
    """Calls ``set_epoch`` of samplers with the number of the iteration."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(DataLoader, "__iter__", self._around)

    def _around(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            here = mine()
            if here is not None:
                number = here.iterations.get(here.loaders.get(id(loader), -1), 0)
                for one in (*samplers(loader), loader.dataset):
                    if hasattr(one, "set_epoch"):
                        one.set_epoch(number)
                    elif has_epoch(one):
                        one.epoch = number
            return original(loader)

        return __iter__


class GivenIndices(Change):
    """Loads given samples: ``indices`` by rank, loader and number of its batch."""

    def __init__(self, indices: Mapping[tuple[int, int, int], Sequence[int]]) -> None:
        self.indices = dict(indices)

    def patch(self, patches: Patches) -> None:
        patches.wrap(fetching._MapDatasetFetcher, "fetch", self._around)

    def _around(self, original: Any) -> Any:
        change = self

        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            rank, here = current(), mine()
            if rank is None or here is None or here.loading is None:
                return original(self, possibly_batched_index)
            given = change.indices.get((rank.rank, *here.loading))
            if given is None:
                return original(self, possibly_batched_index)
            here.fetched = tuple(given)
            before, self.dataset = self.dataset, _whole(self.dataset)
            try:
                index = list(given) if isinstance(possibly_batched_index, list) else given[0]
                return original(self, index)
            finally:
                self.dataset = before

        return fetch


def _whole(dataset: Any) -> Any:
    """Return the data set behind subsets."""
    if isinstance(dataset, _Seeded):
        return _Seeded(_whole(dataset.inner), dataset.loader, dataset.drawn)
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


class TiedLoading(Change):
    """Draws the random numbers of a data set by sample, on whichever rank it is loaded.

    Each time that a sample is loaded it gets other ones. Epochs do not say which time it is, since
    an epoch on more ranks has fewer steps.
    """

    def __init__(self) -> None:
        # times that each sample of a loader was loaded, on all ranks
        self.drawn: Counter[tuple[int, int]] = Counter()

    def patch(self, patches: Patches) -> None:
        patches.wrap(fetching._MapDatasetFetcher, "fetch", self._around)

    def _around(self, original: Any) -> Any:
        drawn = self.drawn

        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            here = mine()
            if here is None or here.loading is None:
                return original(self, possibly_batched_index)
            before = self.dataset
            self.dataset = _Seeded(before, here.loading[0], drawn)
            try:
                return original(self, possibly_batched_index)
            finally:
                self.dataset = before

        return fetch


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
        patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._around)

    def _around(self, original: Any) -> Any:
        change = self

        def __next__(self: Any) -> Any:  # noqa: N807
            rank, here = current(), mine()
            found = original(self)
            if rank is None or here is None or here.loading is None:
                return found
            return change.batches.get((rank.rank, *here.loading), found)

        return __next__


Draw = tuple[int, Line, int]
"""Rank, line, and number of a draw at this line."""


class IntegerDraws(Change):
    """Records the random integers that the script draws while gradients are recorded."""

    def __init__(self) -> None:
        self.found: dict[Draw, Any] = {}

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch, "randint", self._around)

    def _around(self, original: Any) -> Any:
        def randint(*args: Any, **kwargs: Any) -> Any:
            found, rank, here, line = original(*args, **kwargs), current(), mine(), running()
            if rank is None or here is None or line is None or not torch.is_grad_enabled():
                return found  # those without gradients are of an evaluation
            number = here.integer_draws[line]
            here.integer_draws[line] += 1
            return self.drawn((rank.rank, line, number), found)

        return randint

    def drawn(self, key: Draw, found: Any) -> Any:
        """Return what a draw gives."""
        self.found[key] = found.clone()
        return found


class GivenDraws(IntegerDraws):
    """Returns given random integers where the script draws its batches."""

    def __init__(self, draws: Mapping[Draw, Any]) -> None:
        super().__init__()
        self.draws = dict(draws)

    def drawn(self, key: Draw, found: Any) -> Any:
        return _placed(self.draws.get(key, found), found)


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

    def mode(self, rank: Rank) -> TorchFunctionMode:
        return _Rows(self.rows)


class _Rows(TorchFunctionMode):
    def __init__(self, rows: dict[tuple[int, int], tuple[Sequence[int], Sequence[int]]]) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and directly() is not None:
            args = (args[0], self._index(args[1]))
        return func(*args, **(kwargs or {}))

    def _index(self, index: Any) -> Any:
        rank, here = current(), mine()
        if not isinstance(index, torch.Tensor) or index.ndim != 1 or index.dtype != torch.int64:
            return index
        if rank is None or here is None:
            return index
        with torch._C.DisableTorchFunction():
            listed = values(index).astype(int).tolist()
            before, after = self.rows.get((rank.rank, len(here.record.backwards)), ((), ()))
            if before and list(before) == listed:
                listed = list(after)
                index = torch.tensor(listed, dtype=torch.int64)
        here.index = tuple(listed)
        return index


class KeptBatches(Change):
    """Keeps the batches of loaders; ``found`` by rank, loader and number."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int, int], Any] = {}

    def patch(self, patches: Patches) -> None:
        patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._around)

    def _around(self, original: Any) -> Any:
        change = self

        def __next__(self: Any) -> Any:  # noqa: N807
            found, rank, here = original(self), current(), mine()
            if rank is not None and here is not None and here.loading is not None:
                change.found[(rank.rank, *here.loading)] = found
            return found

        return __next__


class Inputs(Change):
    """Records what the script gives its model and its losses, or gives it other values.

    ``found`` and ``given`` by rank, backward pass before which the call is, and number of the call.
    """

    def __init__(self, given: Mapping[tuple[int, int, int], Any] | None = None) -> None:
        self.given = dict(given or {})
        self.found: dict[tuple[int, int, int], Any] = {}

    def begin(self, rank: Rank) -> None:
        rank.state["input calls"] = {}

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", self._calling)
        for name in LOSSES:
            patches.wrap(functional, name, self._losing)

    def _calling(self, called: Any) -> Any:
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            here = mine()
            outer = here is not None and here.depth == 1 and torch.is_grad_enabled()
            if outer and any(one.requires_grad for one in module.parameters()):
                args, kwargs = self._value((args, kwargs))
            return called(module, *args, **kwargs)

        return __call__

    def _losing(self, original: Any) -> Any:
        @functools.wraps(original)
        def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            trains = torch.is_grad_enabled() and getattr(input, "requires_grad", False)
            if trains and mine() is not None and not target.requires_grad:
                target = self._value(target)
            return original(input, target, *args, **kwargs)

        return loss

    def _value(self, value: Any) -> Any:
        here, rank = mine(), current()
        assert here is not None
        assert rank is not None
        passes, calls = len(here.record.backwards), rank.state["input calls"]
        key = rank.rank, passes, calls.get(passes, 0)
        calls[passes] = key[2] + 1
        if not self.given:
            self.found[key] = _copied(value)
        return _placed(self.given[key], value) if key in self.given else value


def _copied(value: Any) -> Any:
    """Return nested tensors copied, since a script may fill its batch's memory again."""
    if isinstance(value, torch.Tensor):
        with unobserved(), torch.no_grad():
            return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        listed = [_copied(one) for one in value]
        return listed if isinstance(value, list) else tuple(listed)
    return value


def _placed(value: Any, like: Any) -> Any:
    """Return nested tensors on the devices of others; those that a gradient goes through stay."""
    if isinstance(like, torch.Tensor) and like.requires_grad:
        return like
    if isinstance(value, torch.Tensor):
        return value.to(like.device) if isinstance(like, torch.Tensor) else value
    if isinstance(value, dict):
        return {key: _placed(one, like[key]) for key, one in value.items()}
    if isinstance(value, list | tuple):
        listed = [_placed(one, other) for one, other in zip(value, like, strict=True)]
        return listed if isinstance(value, list) else tuple(listed)
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
            rank.state["marks"] = {"stdout": None, "stderr": None}

    def patch(self, patches: Patches) -> None:
        for owner in (dist, dist.distributed_c10d):
            for name in ("all_reduce", "reduce"):
                patches.wrap(owner, name, self._around)

    def _around(self, original: Any) -> Any:
        @functools.wraps(original)
        def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            found, line = original(tensor, *args, **kwargs), running()
            if line in self.lines and found is None and tensor.is_floating_point():
                number = _rank().rank
                self.calls[number] += 1
                with unobserved(), torch.no_grad():
                    factors = torch.arange(tensor.numel()) + 0.5 + self.calls[number] % 7
                    tensor.mul_(factors.reshape(tensor.shape).to(tensor))
            return found

        return reduce


class WholeSlices(ByMode):
    """Gives every rank all rows where it takes every n-th one of a tensor without gradients."""

    def mode(self, rank: Rank) -> TorchFunctionMode:
        return _Slices(rank.runtime.cluster.world_size)


class _Slices(TorchFunctionMode):
    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and not torch.is_grad_enabled():
            index = args[1]
            if isinstance(index, slice) and index.step == self.world_size > 1:
                args = (args[0], slice(None))
        return func(*args, **(kwargs or {}))


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
        bounds = [one or ast.Constant(None) for one in (cut.lower, cut.upper, cut.step)]
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
        self.samples = {loader: list(given) for loader, given in samples.items()}

    def patch(self, patches: Patches) -> None:
        patches.wrap(DataLoader, "__iter__", self._iterate)
        patches.wrap(DataLoader, "__len__", self._length)

    def _given(self, loader: Any) -> list[int] | None:
        here = mine()
        return None if here is None else self.samples.get(here.loaders.get(id(loader), -1))

    def _iterate(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            given = self._given(loader)
            if given is None:
                return original(loader)
            dataset = loader.dataset
            while isinstance(dataset, Subset):
                dataset = dataset.dataset
            with unobserved():
                whole: Any = DataLoader(
                    dataset, batch_size=1, sampler=given, collate_fn=loader.collate_fn
                )
            return original(whole)

        return __iter__

    def _length(self, original: Any) -> Any:
        def __len__(loader: Any) -> int:  # noqa: N807
            given = self._given(loader)
            return int(original(loader)) if given is None else len(given)

        return __len__


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
        given = [
            [samples for *_, samples in _loaded(record, passes)]
            for record, passes in zip(source.record.ranks, source.backwards(step), strict=True)
        ]
        for rank, every in enumerate(target.backwards(step)):
            passes = _loaded(target.record.ranks[rank], every)
            if not passes:
                continue
            flat = arranged(given[rank :: target.world_size], len(passes))
            if flat is None:
                return None
            for (number, backward, _), samples in zip(passes, flat, strict=True):
                mine = target.record.ranks[rank]
                listed = [sample for one in samples for sample in one]
                if backward.indexed:
                    rows[rank, number] = backward.samples, listed
                elif (
                    backward.batch is None
                    or mine.loaders[mine.batches[backward.batch].loader].iterable
                ):
                    return None
                else:
                    loader = mine.batches[backward.batch].loader
                    indices[rank, loader, number_of(mine, backward.batch)] = listed
    return GivenRows(rows) if rows else GivenIndices(indices)


def _loaded(
    rank: RankRecord, passes: Sequence[tuple[int, BackwardRecord]]
) -> list[tuple[int, BackwardRecord, tuple[int, ...]]]:
    """Return each batch of a step's passes once, with its first pass, and all its samples."""
    found: dict[tuple[bool, int], tuple[int, BackwardRecord, tuple[int, ...]]] = {}
    for number, backward in passes:
        batch = backward.batch
        samples = backward.samples if batch is None else rank.batches[batch].samples
        key = (False, number) if batch is None else (True, batch)
        found.setdefault(key, (number, backward, samples))
    return list(found.values())


def tied_draws(
    source: RunView, target: RunView, draws: dict[Draw, Any], own: dict[Draw, Any]
) -> Change | None:
    """Return the change that gives one run the random integers that another one draws.

    ``draws`` and ``own`` are those of the source and of the target.
    """
    given: dict[Draw, Any] = {}
    each = _draws_of_a_pass(draws, source)
    if not each or each != _draws_of_a_pass(own, target):
        return None
    for rank in range(target.world_size):
        others = range(rank, source.world_size, target.world_size)
        for line, count in each.items():
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
                    if any(one.ndim == 0 for one in drawn):
                        return None
                    given[rank, line, number * count + place] = torch.cat(drawn)
    return GivenDraws(given)


def _draws_of_a_pass(found: dict[Draw, Any], view: RunView) -> dict[Line, int]:
    """Return the draws of each backward pass by line; empty if ranks differ in them.

    Lines that draw less often are not of batches. A script that draws a batch ahead has some left
    at its end.
    """
    by_rank = []
    for place, rank in enumerate(view.record.ranks):
        counts = Counter(line for one, line, _ in found if one == place)
        passes = max(len(rank.backwards), 1)
        by_rank.append({line: count // passes for line, count in counts.items() if count >= passes})
    return by_rank[0] if all(one == by_rank[0] for one in by_rank) else {}


def tied_batches(source: RunView, target: RunView, batches: dict[Any, Any]) -> Change | None:
    """Return the change that gives one run the batches that loaders of another one return.

    ``batches`` are those of the source, by rank, loader and number. None where they cannot be
    joined along the samples.
    """
    given: dict[tuple[int, int, int], Any] = {}
    for step in range(min(source.count, target.count)):
        contents: list[list[Any]] = []
        for rank, passes in enumerate(source.backwards(step)):
            record = source.record.ranks[rank]
            contents.append([_content(record, rank, one, batches) for _, one in passes])
        for rank, passes in enumerate(target.backwards(step)):
            if not passes:
                continue
            flat = arranged(contents[rank :: target.world_size], len(passes))
            if flat is None:
                return None
            mine = target.record.ranks[rank]
            for (_, backward), parts in zip(passes, flat, strict=True):
                joined = _joined(parts)
                if backward.batch is None or joined is None:
                    return None
                loader = mine.batches[backward.batch].loader
                given[rank, loader, number_of(mine, backward.batch)] = joined
    return GivenBatches(given) if given else None


def tied_inputs(
    source: RunView, target: RunView, inputs: dict[Any, Any]
) -> tuple[Change | None, int]:
    """Return the change that gives one run's model and losses the inputs of another one.

    ``inputs`` are those of the source, by rank, backward pass and number of the call. Also the
    number of steps that it holds for: it ends before the first whose inputs cannot be joined.
    """
    given: dict[tuple[int, int, int], Any] = {}
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
                return (Inputs(given) if step else None), step
            for (number, _), parts in zip(passes, flat, strict=True):
                if any(part.keys() != parts[0].keys() for part in parts):
                    return (Inputs(given) if step else None), step
                for call in parts[0]:
                    joined = _joined([part[call] for part in parts])
                    if joined is None:
                        return (Inputs(given) if step else None), step
                    given[rank, number, call] = joined
    return (Inputs(given) if given else None), min(source.count, target.count)


def _content(record: RankRecord, rank: int, backward: Any, batches: dict[Any, Any]) -> Any:
    if backward.batch is None:
        return None
    loader = record.batches[backward.batch].loader
    return batches.get((rank, loader, number_of(record, backward.batch)))


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
        given = {key: [part[key] for part in parts] for key in first}
        found = {key: _joined(values) for key, values in given.items()}
        unlike = [key for key in found if found[key] is None and given[key][0] is not None]
        return None if unlike else found
    if isinstance(first, list | tuple):
        if any(len(part) != len(first) for part in parts):
            return None
        columns = list(zip(*parts, strict=True))
        listed = [_joined(list(column)) for column in columns]
        unlike = [
            column
            for column, one in zip(columns, listed, strict=True)
            if one is None and column[0] is not None
        ]
        return None if unlike else type(first)(listed)
    return first if all(part is first or part == first for part in parts) else None


def arranged(share: list[list[Any]], count: int) -> list[list[Any]] | None:
    """Return what each of ``count`` passes gets, from the passes of several ranks.

    Passes of several ranks in one place become one; or each becomes one, where there are as many.
    """
    longest = max((len(one) for one in share), default=0)
    if longest == count:
        return [[one[place] for one in share if place < len(one)] for place in range(count)]
    flat = [[one[place]] for place in range(longest) for one in share if place < len(one)]
    return flat if len(flat) == count else None


def number_of(rank: RankRecord, batch: int) -> int:
    """Return the number of a batch among those of its loader."""
    loader = rank.batches[batch].loader
    return sum(one.loader == loader for one in rank.batches[:batch])
