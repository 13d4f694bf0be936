"""Which samples each rank gets: repeated, missed, or in the same order in each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from simdp.torch.audit.changes import Change
from simdp.torch.audit.comparisons import RunView
from simdp.torch.audit.data_changes import (
    Draw,
    GivenBatches,
    GivenDraws,
    GivenIndices,
    GivenRows,
    Inputs,
)
from simdp.torch.audit.lines import Line
from simdp.torch.audit.records import BackwardRecord, BatchRecord, LoaderRecord, RankRecord


@dataclass
class SampleCheck:
    """Samples of a run, against those of the run that it is compared with."""

    seen_twice: int = 0  # in an epoch, beyond those of the other run
    missed: int = 0
    total: int = 0  # drawn
    differing: int = 0  # steps with other samples
    first: int | None = None  # the first of them
    identical: int = 0  # steps in which all ranks have the same samples
    steps: int = 0


def by_content(views: Sequence[RunView]) -> None:
    """Know samples by their content where the data sets of ranks differ, as parts of the data."""
    ranks = [rank for view in views for rank in view.record.ranks]
    for number in range(max(len(rank.loaders) for rank in ranks)):
        having = [rank for rank in ranks if number < len(rank.loaders)]
        if len({rank.loaders[number].content for rank in having} - {None}) < 2:
            continue
        for rank in having:
            rank.loaders[number].iterable = True
            for batch in rank.batches:
                if batch.loader == number and batch.rows:
                    batch.samples = batch.rows
            for backward in rank.backwards:
                if backward.batch is not None and rank.batches[backward.batch].loader == number:
                    backward.samples = rank.batches[backward.batch].samples


def training_loaders(rank: RankRecord) -> list[int]:
    """Return the numbers of loaders whose batches reached a backward pass."""
    used = {one.batch for one in rank.backwards if one.batch is not None}
    return sorted({rank.batches[batch].loader for batch in used})


def evaluation_loaders(rank: RankRecord) -> list[int]:
    """Return the numbers of loaders whose batches reached none."""
    used = set(training_loaders(rank))
    return sorted({batch.loader for batch in rank.batches} - used)


def evaluated(view: RunView) -> dict[int, set[int]]:
    """Return the samples of each loader that does not train."""
    found: dict[int, set[int]] = {}
    for rank in view.record.ranks:
        for number in evaluation_loaders(rank):
            if not rank.loaders[number].iterable:
                for batch in rank.batches:
                    if batch.loader == number:
                        found.setdefault(number, set()).update(batch.samples)
    return found


def check(base: RunView, view: RunView) -> SampleCheck:
    """Compare the samples of two runs step by step, and over epochs."""
    found = SampleCheck()
    for step in range(min(base.count, view.count)):
        mine, theirs = base.samples(step), view.samples(step)
        if not mine and not theirs:
            continue
        found.steps += 1
        found.total += sum(theirs.values())
        if mine != theirs:
            found.differing += 1
            if found.first is None:
                found.first = step
        by_rank = [
            Counter(sample for _, backward in passes for sample in backward.samples)
            for passes in view.backwards(step)
        ]
        if len(by_rank) > 1 and by_rank[0] and all(one == by_rank[0] for one in by_rank):
            found.identical += 1
    if training_loaders(view.first):
        _over_epochs(base, view, found)
    else:
        _over_steps(base, view, found)
    return found


def _over_steps(base: RunView, view: RunView, found: SampleCheck) -> None:
    """Count samples without a loader: over steps in which one run has all of the other's."""
    for step in range(min(base.count, view.count)):
        mine, theirs = base.samples(step), view.samples(step)
        if mine - theirs:
            continue
        grows = sum(base.samples(0).values()) != sum(view.samples(0).values())
        more = _repeats(theirs, mine) if grows else sum((theirs - mine).values())
        found.seen_twice += more


def _repeats(drawn: Counter[int], before: Counter[int]) -> int:
    """Return how many samples are repeats, beyond those of another run."""
    return sum(max(count - max(before[sample], 1), 0) for sample, count in drawn.items())


def _over_epochs(base: RunView, view: RunView, found: SampleCheck) -> None:
    for loader in training_loaders(view.first):
        mine, theirs = _epochs(base, loader), _epochs(view, loader)
        for epoch, (drawn, complete) in theirs.items():
            reference = mine.get(epoch)
            before = Counter[int]() if reference is None else reference[0]
            found.seen_twice += _repeats(drawn, before)
            if complete and reference is not None and reference[1]:
                found.missed += len(before.keys() - drawn.keys())


def _epochs(view: RunView, loader: int) -> dict[int, tuple[Counter[int], bool]]:
    """Return the samples drawn in each epoch of a loader, and whether it is complete."""
    found: dict[int, tuple[Counter[int], bool]] = {}
    for rank in view.record.ranks:
        last = max((batch.epoch for batch in rank.batches if batch.loader == loader), default=-1)
        for batch in _used(rank, loader):
            counted = found.setdefault(batch.epoch, (Counter(), batch.epoch < last))
            counted[0].update(batch.samples)
    return found


def _used(rank: RankRecord, loader: int) -> list[BatchRecord]:
    numbers = {backward.batch for backward in rank.backwards if backward.batch is not None}
    return [
        rank.batches[number] for number in sorted(numbers) if rank.batches[number].loader == loader
    ]


def repeated_order(view: RunView) -> tuple[LoaderRecord, int, int] | None:
    """Return a loader that shuffles, but has the order of the epoch before; its epochs.

    The epochs are those, from 1, and batches compared. Two batches at least must differ.
    """
    rank = view.first
    for number in training_loaders(rank):
        loader = rank.loaders[number]
        if not (loader.shuffles and loader.sets_epoch):
            continue
        by_epoch: dict[int, list[tuple[int, ...]]] = {}
        for batch in rank.batches:
            if batch.loader == number:
                by_epoch.setdefault(batch.epoch, []).append(batch.samples)
        for epoch, batches in by_epoch.items():
            before = by_epoch.get(epoch - 1)
            if before is None:
                continue
            count = min(len(before), len(batches))
            order = [sample for batch in batches[:count] for sample in batch]
            repeats = before[:count] == batches[:count] and len(set(batches)) > 1
            if count > 1 and repeats and order != sorted(order):
                return loader, epoch, count
    return None


def overlapping_subsets(view: RunView) -> tuple[LoaderRecord, int] | None:
    """Return a loader whose subsets on two ranks overlap without being equal; common samples."""
    first = view.first
    for number, loader in enumerate(first.loaders):
        mine = set(loader.subset or ())
        for other in view.record.ranks[1:]:
            if number >= len(other.loaders) or not mine:
                continue
            theirs = set(other.loaders[number].subset or ())
            common = len(mine & theirs)
            if common and mine != theirs:
                return loader, common
    return None


def line_of_loop(view: RunView, loader: LoaderRecord | None = None) -> Line | None:
    """Return the line of the loop over a training loader."""
    if loader is not None and loader.iterated is not None:
        return loader.iterated
    lines = (view.first.loaders[number].iterated for number in training_loaders(view.first))
    return next((line for line in lines if line is not None), None)


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
