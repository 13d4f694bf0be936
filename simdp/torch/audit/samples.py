"""Which samples each rank gets: repeated, missed, or in the same order in each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simdp.torch.audit.comparisons import RunView
from simdp.torch.audit.lines import Line
from simdp.torch.audit.records import LoaderRecord, RankRecord


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
    batches = {backward.batch for backward in rank.backwards if backward.batch is not None}
    return sorted({rank.batches[batch].loader for batch in batches})


def evaluation_loaders(rank: RankRecord) -> list[int]:
    """Return the numbers of loaders whose batches reached none."""
    used = set(training_loaders(rank))
    return sorted({batch.loader for batch in rank.batches} - used)


def evaluated(view: RunView) -> dict[int, set[int]]:
    """Return the samples of each loader that does not train."""
    by_loader: dict[int, set[int]] = {}
    for rank in view.record.ranks:
        loaders = evaluation_loaders(rank)
        for batch in rank.batches:
            if batch.loader in loaders and not rank.loaders[batch.loader].iterable:
                by_loader.setdefault(batch.loader, set()).update(batch.samples)
    return by_loader


def check(base: RunView, view: RunView) -> SampleCheck:
    """Compare the samples of two runs step by step, and over epochs."""
    counts = SampleCheck()
    for step in range(min(base.count, view.count)):
        before, drawn = base.samples(step), view.samples(step)
        if not before and not drawn:
            continue
        counts.steps += 1
        counts.total += drawn.total()
        if before != drawn:
            counts.differing += 1
            if counts.first is None:
                counts.first = step
        first, *others = [
            Counter(sample for _, backward in passes for sample in backward.samples)
            for passes in view.backwards(step)
        ]
        if others and first and all(own == first for own in others):
            counts.identical += 1
    if training_loaders(view.first):
        _over_epochs(base, view, counts)
    else:
        _over_steps(base, view, counts)
    return counts


def _over_steps(base: RunView, view: RunView, counts: SampleCheck) -> None:
    """Count samples without a loader: over steps in which one run has all of the other's."""
    grows = base.samples(0).total() != view.samples(0).total()
    for step in range(min(base.count, view.count)):
        before, drawn = base.samples(step), view.samples(step)
        if not before - drawn:
            counts.seen_twice += _repeats(drawn, before) if grows else (drawn - before).total()


def _repeats(drawn: Counter[int], before: Counter[int]) -> int:
    """Return how many samples are repeats, beyond those of another run."""
    return sum(max(count - max(before[sample], 1), 0) for sample, count in drawn.items())


def _over_epochs(base: RunView, view: RunView, counts: SampleCheck) -> None:
    for loader in training_loaders(view.first):
        reference = _epochs(base, loader)
        for epoch, (drawn, complete) in _epochs(view, loader).items():
            before, is_whole = reference.get(epoch, (Counter[int](), False))
            counts.seen_twice += _repeats(drawn, before)
            if complete and is_whole:
                counts.missed += len(before.keys() - drawn.keys())


def _epochs(view: RunView, loader: int) -> dict[int, tuple[Counter[int], bool]]:
    """Return the samples drawn in each epoch of a loader, and whether it is complete."""
    epochs: dict[int, tuple[Counter[int], bool]] = {}
    for rank in view.record.ranks:
        last = max((batch.epoch for batch in rank.batches if batch.loader == loader), default=-1)
        used = {backward.batch for backward in rank.backwards}
        for number, batch in enumerate(rank.batches):
            if number in used and batch.loader == loader:
                drawn, _ = epochs.setdefault(batch.epoch, (Counter(), batch.epoch < last))
                drawn.update(batch.samples)
    return epochs


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
            before = by_epoch.get(epoch - 1, [])
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
        own = set(loader.subset or ())
        for rank in view.record.ranks[1:]:
            other = set(rank.loaders[number].subset or ()) if number < len(rank.loaders) else set()
            common = len(own & other)
            if common and own != other:
                return loader, common
    return None


def line_of_loop(view: RunView, loader: LoaderRecord | None = None) -> Line | None:
    """Return the line of the loop over a training loader."""
    if loader is not None and loader.iterated is not None:
        return loader.iterated
    lines = (view.first.loaders[number].iterated for number in training_loaders(view.first))
    return next((line for line in lines if line is not None), None)
