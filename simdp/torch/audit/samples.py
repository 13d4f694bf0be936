"""Which samples each rank gets: repeated, missed, or in the same order in each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simdp.torch.audit.comparisons import RunView
from simdp.torch.audit.lines import Line
from simdp.torch.audit.records import BatchRecord, LoaderRecord, RankRecord


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
