"""Suspects of a difference: when one applies, and the changes that neutralise it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from simdp.results.audit import Cause, Experiment, LegitimateCause
from simdp.torch.audit import changes as ch
from simdp.torch.audit import comparisons, data_changes, samples
from simdp.torch.audit.comparisons import Difference, RunView, Tensors, relative
from simdp.torch.audit.lines import (
    Line,
    argument,
    assigned,
    by_world_size,
    computes,
    followed,
    guard,
    rate_line,
)
from simdp.torch.audit.records import BackwardRecord, ranks_counted
from simdp.torch.audit.sketches import norm

Changes = Sequence[ch.Change]

PREDICTED = 1e-3
"""Relative difference of predicted gradients up to which an experiment is worth a run."""


@dataclass
class Suspect:
    """One possible cause, and how to neutralise it.

    ``changes`` returns the changes of the run that is compared with, and those of a run on more
    ranks; it is called before each experiment.
    """

    cause: Cause | LegitimateCause
    legitimate: bool
    change: str  # what the experiment does, as "weighted by tokens"
    changes: Callable[[], tuple[Changes, Changes]]
    line: Line | None
    evidence: str = ""
    remedy: str = ""
    findings: bool = True  # whether it is a cause; else only makes runs comparable


def experiment(suspect: Suspect, before: Difference, after: Difference) -> Experiment:
    """Return the experiment that neutralised a suspect, by the first tensor that differed."""
    row = before.first
    if row is None:
        return Experiment(suspect.cause, suspect.change, before.size, after.size, after.bound)
    return Experiment(suspect.cause, suspect.change, row.size, after.of(row), row.bound)


@dataclass
class Pair:
    """Two runs that are compared, and their difference."""

    base: RunView
    view: RunView
    difference: Difference


# Legitimate ---------------------------------------------------------------------------------------


def order_of_samples(
    pair: Pair, check: samples.SampleCheck, tie: ch.Change | None
) -> Suspect | None:
    """Give the run on fewer ranks the samples of the other one."""
    if not check.differing or tie is None:
        return None
    cause, legitimate, evidence, remedy, line = _sample_cause(pair, check)
    return Suspect(
        cause or "rounding",
        legitimate,
        f"given the samples of {pair.view.world_size} ranks",
        lambda: ([tie], []),
        line,
        evidence,
        remedy,
        findings=cause is not None,
    )


def _sample_cause(
    pair: Pair, check: samples.SampleCheck
) -> tuple[Cause | LegitimateCause | None, bool, str, str, Line | None]:
    view, n = pair.view, pair.view.world_size
    training = samples.training_loaders(view.first)
    loader = view.first.loaders[training[0]] if training else None
    created = None if loader is None else loader.line
    if loader is None and view.first.splits:
        created = view.first.splits[-1]
    if loader is None and view.first.index_draws:
        created = view.first.index_draws[-1]
    if created is None and view.first.trained:
        created = view.first.trained[0]
    if check.identical and check.identical >= 0.5 * check.steps:
        evidence = (
            f"in {check.identical} of {check.steps} steps all {n} ranks have the same samples"
        )
        remedy = "give each rank its own samples, as DistributedSampler does"
        line = argument(guard(created), ("sampler", "batch_sampler"))
        return "same_data_on_every_rank", False, evidence, remedy, line
    split = samples.overlapping_subsets(view)
    if split is not None:
        evidence = f"subsets of ranks share {split[1]} samples, and are not equal"
        remedy = "draw the split with a generator whose seed is the same on every rank"
        return "different_seed_split", False, evidence, remedy, _split_line(view, created)
    if check.seen_twice:
        padded = _padded(pair)
        if padded is not None and check.seen_twice <= padded:
            evidence = f"the sampler repeats {check.seen_twice} samples to fill the last batch"
            remedy = "drop_last=True, or weight them"
            return "sampler_padding_duplicates", True, evidence, remedy, created
        evidence = f"{check.seen_twice} samples of an epoch are seen twice, {check.missed} missed"
        remedy = "draw the order with the same seed on every rank, then take every n-th"
        return "different_seed_split", False, evidence, remedy, _split_line(view, created)
    sizes = f"{pair.base.world_size} and {n}"
    how = f"{sizes} ranks take samples in another order"
    return None, True, how, "they were compared with the same samples", None


def _split_line(view: RunView, created: Line | None) -> Line | None:
    lines = [line for line in view.first.splits if line is not None]
    return lines[-1] if lines else created


def _padded(pair: Pair) -> int | None:
    """Return how many samples a sampler may repeat in all epochs; None if it does not pad."""
    padded = 0
    loaders = samples.training_loaders(pair.view.first)
    if not loaders:  # the script's own order: the last batch of an epoch differs
        return (pair.view.world_size - 1) * samples.check(pair.base, pair.view).differing
    for number in loaders:
        loader = pair.view.first.loaders[number]
        epochs = {batch.epoch for batch in pair.view.first.batches if batch.loader == number}
        size = len(loader.subset) if loader.subset is not None else loader.size
        if size is None or not loader.sets_epoch:
            return None
        padded += (-size % pair.view.world_size) * len(epochs)
    return padded


BY_SAMPLE = "with dropout drawn by sample"
"""Experiment that is tried before one without dropout."""


def layers(pair: Pair) -> list[Suspect]:
    """Return the suspects among layers: batch norm, dropout, and other random draws."""
    first = pair.view.first
    lines = {
        "each rank draws its own dropout": first.dropouts,
        "the data set draws random numbers, as for augmentation, on each rank": first.augmented,
        "each rank draws its own random numbers": first.draws,
    }
    return [
        *([_batch_norm(pair)] if first.norms else []),
        *(
            Suspect("dropout_streams", True, change, on_both(kind), drawing[0], evidence)
            for (evidence, drawing), changes in zip(lines.items(), TIED_DRAWS, strict=True)
            for change, kind in (changes.items() if drawing else ())
        ),
    ]


TIED_DRAWS: tuple[dict[str, Callable[[], ch.Change]], ...] = (
    {BY_SAMPLE: ch.TiedDropout, "without dropout": ch.NoDropout},
    {"with the random numbers of the data set drawn by sample": data_changes.TiedLoading},
    {"with random numbers drawn by sample": ch.TiedDraws},
)
"""Changes of dropout, of the data set's draws and of the script's, in the order of the suspects."""


def on_both(kind: Callable[[], ch.Change]) -> Callable[[], tuple[Changes, Changes]]:
    """Return the changes of a suspect that is neutralised on both runs."""
    return lambda: ([kind()], [kind()])


def _batch_norm(pair: Pair) -> Suspect:
    """Return the suspect of batch norm over each rank's samples."""
    micro = {
        count
        for view in (pair.base, pair.view)
        for step in range(view.count)
        for count in view.micro_steps(step)
    }
    synced = micro - {0} == {1}
    change = "statistics of all ranks" if synced else "statistics frozen"
    kind = ch.SyncedBatchNorm if synced else ch.FrozenBatchNorm
    return Suspect(
        "batchnorm_local_statistics",
        True,
        f"with batch norm's {change}",
        on_both(kind),
        pair.view.first.norms[0],
        "batch norm uses the statistics of each rank's batch",
        "nn.SyncBatchNorm.convert_sync_batchnorm, where batches per rank are small",
    )


# Wrong --------------------------------------------------------------------------------------------


def weights_of_ranks(pair: Pair) -> list[Suspect]:
    """Return suspects whose ranks begin with, or keep, other weights or buffers."""
    view = pair.view
    suspects = []
    names = comparisons.differing(view, 0, "initial weights")
    if names:
        late = [name for name in names if name in view.first.late]
        line = view.first.makers.get((late or names)[0])
        suspects.append(
            Suspect(
                "unsynchronised_parameters",
                False,
                "with the first weights of rank 0 on every rank, and gradients averaged",
                lambda: (
                    [],
                    [ch.BroadcastWeights(), ch.AveragedAtStep(late or None)]
                    if late or not view.first.wrappers
                    else [ch.BroadcastWeights()],
                ),
                line,
                f"{_some(names)} begin with other values on each rank",
                "create it before DistributedDataParallel, or broadcast it from rank 0",
            )
        )
    buffers = [
        name
        for place in range(1, min(4, len(view.first.steps)))
        for name in comparisons.differing(view, place, "buffers")
    ]
    if buffers and not view.first.broadcasts_buffers:
        suspects.append(
            Suspect(
                "unsynchronised_parameters",
                False,
                "with buffers averaged over ranks",
                lambda: ([], [ch.AveragedBuffers()]),
                _buffer_line(view, buffers),
                f"{_some(list(dict.fromkeys(buffers)))} differs between ranks",
                "broadcast_buffers=True, or reduce it yourself",
            )
        )
    return [*suspects, *_modules_of_ranks(view)]


def _buffer_line(view: RunView, names: Sequence[str]) -> Line | None:
    lines = [view.first.buffer_lines.get(name.rpartition(".")[2]) for name in names]
    assigning = [line for line in lines if line is not None]
    return next(iter([*assigning, *view.first.wrappers]), None)


def _modules_of_ranks(view: RunView) -> list[Suspect]:
    """Return the suspect of modules without an optimizer, as averaged copies, that differ."""
    states = view.first.states
    for rank in view.record.ranks[1:]:
        different = [
            name
            for name in states
            if name in rank.states
            and not np.array_equal(states[name], rank.states[name], equal_nan=True)
        ]
        if different:
            return [
                Suspect(
                    "unsynchronised_parameters",
                    False,
                    "with the modules of rank 0 that no optimizer has on every rank",
                    lambda: ([], [ch.SyncedModules()]),
                    view.first.frozen[0] if view.first.frozen else None,
                    f"a module that no optimizer has differs between ranks: {different[0]}",
                    "update it on every rank, or broadcast it from rank 0",
                )
            ]
    return []


def comm_hooks(pair: Pair) -> list[Suspect]:
    """Return the suspect of hooks that reduce gradients in DDP's place."""
    hooks = pair.view.first.comm_hooks
    if not hooks:
        return []
    by_torch, line = hooks[0]
    return [
        Suspect(
            "compressed_gradients" if by_torch else "bypassed_ddp",
            by_torch,
            "with DDP's own all-reduce",
            on_both(ch.NoCommHooks),
            line,
            "a hook of torch compresses gradients"
            if by_torch
            else "a hook of the script returns something other than the mean of the gradients",
            "compress less, or leave the hook out",
        )
    ]


def reduction(pair: Pair) -> list[Suspect]:
    """Return suspects of gradients that are not averaged, or otherwise changed after backward."""
    suspects = [_unaveraged(pair), _clipped(pair)]
    return [suspect for suspect in suspects if suspect is not None]


def _unaveraged(pair: Pair) -> Suspect | None:
    """Return the suspect of gradients that differ between ranks before a step."""
    view = pair.view
    by_step = [
        comparisons.differing(view, place, "gradient") for place in range(len(view.first.steps))
    ]
    unequal = list(dict.fromkeys(name for names in by_step for name in names))
    if not unequal:
        return None
    late = [name for name in unequal if name in view.first.late]
    everything = len(unequal) >= len(view.first.steps[0].grad_probes)
    what = "gradients" if everything else f"gradients of {_some(unequal)}"
    if late:
        line = view.first.makers.get(late[0])
        evidence = f"{what} are not averaged: made after DistributedDataParallel"
        remedy = "create all parameters before wrapping the model"
    elif view.first.bypasses:
        line = view.first.bypasses[0]
        evidence = f"{what} are not averaged: the forward pass goes around DDP's"
        remedy = "call the wrapped model itself, and give it a forward for each use"
    else:
        line = None if everything else view.first.makers.get(unequal[0])
        line = line or view.first.callers.get(unequal[0])
        evidence = f"{what} are not averaged over ranks"
        remedy = "wrap these parameters in DistributedDataParallel as well"
    if line is None and view.first.backwards:
        line = view.first.backwards[0].line
    cause: Cause | LegitimateCause = "unsynchronised_parameters" if late else "bypassed_ddp"
    local = comparisons.averaged_weights(view)
    if local is not None:
        cause, line = "local_updates", _line_of_average(view, local[1]) or line
        evidence = (
            f"ranks update their own weights from step {local[0]} on, and average them before "
            f"step {local[1]}"
        )

    def averaged() -> Changes:
        return [ch.AveragedAtStep(None if everything else unequal)]

    return Suspect(
        cause,
        local is not None,
        "with gradients averaged before each step",
        lambda: (averaged() if pair.base.world_size > 1 else [], averaged()),
        line,
        evidence,
        remedy,
    )


def _line_of_average(view: RunView, step: int) -> Line | None:
    """Return the line of the last reduction before a step, outside of a backward pass."""
    last = None
    for call in view.first.calls:
        if call.step == step - 1 and not call.backward and call.name.startswith("all_reduce"):
            last = call.line or last
    return last


def _clipped(pair: Pair) -> Suspect | None:
    """Return the suspect of clipping on each rank, before the average."""
    first = pair.view.first
    if not (first.clips or first.hooks) or pair.difference.same:
        return None
    norms = _norms(pair.view)
    evidence = "gradients are clipped before they are averaged"
    if norms:
        evidence += f": norms of {norms} on the ranks of one step"
    return Suspect(
        "clip_before_average",
        False,
        "clipped once per step, after the average",
        on_both(ch.ClippedAtStep),
        first.clips[0].line if first.clips else first.hooks[0],
        evidence,
        "clip after backward of the last micro-batch, when gradients are averaged",
    )


def scaled(pair: Pair) -> list[Suspect]:
    """Return the suspect of gradients that are all too large or too small by one factor."""
    base, view = pair.base, pair.view
    if not base.first.steps or not view.first.steps:
        return []
    scale = _scale(base.whole("gradient", 0), view.whole("gradient", 0))
    if scale is None or abs(scale - 1) < 1e-2:
        return []
    local = _scale(base.local(0), view.local(0))
    n = view.world_size
    how = "summed, not averaged" if scale > 1 else "divided by the number of ranks twice"
    own = _line_of_reduction(view)
    line = own if own is not None else _loss_line(view)
    if own is None and local is not None and abs(local - scale) < 1e-2:
        how = "the loss is divided by the number of ranks, and gradients are averaged too"
    return [
        Suspect(
            "loss_sum_not_averaged",
            False,
            f"gradients divided by {scale:.4g}",
            lambda: ([], [ch.ScaledAtStep(1 / scale)]),
            line,
            f"gradients of {n} ranks are {scale:.4g} times those of {base.world_size}: {how}",
            "divide by the number of ranks once",
        )
    ]


def _line_of_reduction(view: RunView) -> Line | None:
    """Return the line of a collective of gradients that the script makes itself; else None."""
    for call in view.first.calls:
        reduces = not call.backward and call.name.startswith(("all_reduce", "reduce"))
        if reduces and call.line and call.values is None:
            return call.line
    return None


def _norms(view: RunView) -> str:
    by_rank = [rank.clips[0].norm for rank in view.record.ranks if rank.clips]
    norms = [clipped for clipped in by_rank if clipped is not None]
    if len(norms) < 2 or max(norms) - min(norms) < 1e-6 * max(norms):
        return ""
    return f"{min(norms):.3g} to {max(norms):.3g}"


def _scale(base: Tensors, view: Tensors) -> float | None:
    """Return the factor between two sets of tensors; None if it is not the same for all."""
    names = base.keys() & view.keys()
    if any(base[name].shape != view[name].shape for name in names):
        return None  # of a tensor that ranks do not share
    square = sum(float(np.dot(base[name], base[name])) for name in names)
    if not square:
        return None
    factor = sum(float(np.dot(base[name], view[name])) for name in names) / square
    left = sum(norm(view[name] - factor * base[name]) ** 2 for name in names)
    total = sum(norm(view[name]) ** 2 for name in names)
    return factor if total and left <= PREDICTED**2 * total else None


Weights = dict[tuple[int, int], float]

Count = Callable[[BackwardRecord], float | None]
"""Returns what the loss of a backward pass is a mean of."""


@dataclass
class Weighting:
    """Factors of backward passes of two runs; the gradients that they predict agree or not."""

    cause: Cause | LegitimateCause
    legitimate: bool
    what: str
    base: Weights
    view: Weights
    line: Line | None
    evidence: str
    remedy: str
    count: Count | None = None  # to weight each pass by, as it comes

    def suspect(self) -> Suspect:
        """Return the suspect that it neutralises."""
        return Suspect(
            self.cause,
            self.legitimate,
            self.what,
            lambda: (self._changes(self.base), self._changes(self.view)),
            self.line,
            self.evidence,
            self.remedy,
        )

    def _changes(self, weights: Weights) -> list[ch.Change]:
        traced = [ch.ScalarTrace()] if self.count is not None else []
        return [ch.WeightedLosses(weights, self.count), *traced]


def losses(pair: Pair) -> list[Suspect]:
    """Return suspects of the loss's weight on each rank and micro-batch."""
    weightings = [*_scales(pair), *_counts(pair)]
    return [weighting.suspect() for weighting in weightings if _predicted(pair, weighting)]


def _predicted(pair: Pair, weighting: Weighting) -> bool:
    """Return whether local gradients, so weighted, agree; True where none are recorded."""
    row = pair.difference.first
    step = 0 if row is None else row.step - 1
    base, view = pair.base.local(step, weighting.base), pair.view.local(step, weighting.view)
    if not base or not view:
        return True
    unweighted = max(relative(pair.view.local(step), pair.base.local(step)).values())
    worst = max(relative(view, base).values())
    if weighting.cause in BY_COUNT and _scale(base, view) is not None:
        return True  # the script's own reduction may sum
    return worst < max(PREDICTED, 0.05 * unweighted) or worst < 20 * (row.bound if row else 0)


BY_COUNT = ("loss_mean_of_rank_means", "last_batch_smaller")
"""Causes whose weights are counts of samples or tokens."""


def _passes(view: RunView) -> list[tuple[int, int, int, BackwardRecord]]:
    """Return step, rank, number and record of each backward pass."""
    return [
        (step, rank, number, backward)
        for step in range(view.count)
        for rank, passes in enumerate(view.backwards(step))
        for number, backward in passes
    ]


def _loss_line(view: RunView) -> Line | None:
    if not view.first.backwards:
        return None
    line = view.first.backwards[0].line
    return line if computes(line) else assigned(line)


def _scales(pair: Pair) -> list[Weighting]:
    """Weight each pass by numbers of ranks and micro-batches."""
    base, view = pair.base, pair.view
    micro = [
        {count for step in range(run.count) for count in run.micro_steps(step) if count}
        for run in (base, view)
    ]
    weightings = []
    if any(count > 1 for counts in micro for count in counts):
        weightings += _accumulated(pair, micro)
    by_ranks, summed = _by_ranks(pair)
    return [by_ranks, *weightings] if summed else [*weightings, by_ranks]


def _by_ranks(pair: Pair) -> tuple[Weighting, bool]:
    """Weight by the number of ranks; also whether the script sums its loss."""
    base, view = pair.base, pair.view
    n, m = view.world_size, base.world_size
    lines = [
        count.line
        for backward in view.first.backwards
        for count in backward.counts
        if count.reduction == "sum"
    ]
    scale = _scale(base.local(0), view.local(0))
    factor = "" if scale is None else f": {scale:.4g} times those of {m}"
    weighting = Weighting(
        "loss_sum_not_averaged",
        False,
        f"multiplied by {n}, the number of ranks",
        {} if m == 1 else {(rank, number): float(m) for _, rank, number, _ in _passes(base)},
        {(rank, number): float(n) for _, rank, number, _ in _passes(view)},
        lines[0] if lines else _loss_line(view),
        f"the loss is a sum, and gradients of {n} ranks are averaged{factor}",
        "use the mean over samples, or multiply by the number of ranks",
    )
    return weighting, bool(lines)


def _accumulated(pair: Pair, micro: Sequence[set[int]]) -> list[Weighting]:
    """Weight by the number of micro-batches: of the step, or only of those with fewer."""
    base, view, line = pair.base, pair.view, _loss_line(pair.view)
    fewer = _shares(base, max(base.micro_steps(0))), _shares(view, max(view.micro_steps(0)))
    counts = " and ".join(str(max(sizes, default=0)) for sizes in micro)
    weightings = []
    if base.micro_steps(0) and max(base.micro_steps(0)) != max(view.micro_steps(0)):
        weightings.append(
            Weighting(
                "accumulation_not_divided",
                False,
                "divided by the number of micro-batches",
                _shares(base, 1),
                _shares(view, 1),
                line,
                f"the loss is not divided by the accumulated micro-batches, {counts} on "
                f"{base.world_size} and {view.world_size} ranks",
                "divide the loss by the number of micro-batches",
            )
        )
    if any(value != 1 for weights in fewer for value in weights.values()):
        weightings.append(
            Weighting(
                "accumulation_not_divided",
                False,
                "divided by the micro-batches that the step has",
                *fewer,
                line,
                "the last micro-batches of an epoch are divided by the number of a whole step",
                "divide by the number of micro-batches that the step has",
            )
        )
    return weightings


def _shares(view: RunView, whole: float) -> Weights:
    """Return ``whole`` over the number of passes of the rank in the step."""
    return {
        (rank, number): whole / len(view.backwards(step)[rank])
        for step, rank, number, _ in _passes(view)
    }


def _counts(pair: Pair) -> list[Weighting]:
    """Weight each pass by what its loss is a mean of."""
    weightings = []
    kinds: dict[str, tuple[Count, Line | None]] = {}
    mean, views = followed(_loss_line(pair.view)), (pair.base, pair.view)
    counted = [count for backward in pair.view.first.backwards for count in backward.counts]
    if counted:
        kinds["terms of the loss"] = _terms, counted[-1].line or mean
    for what, key in (("the value", "scalars"), ("elements", "sizes")):
        lines = (line for passed in pair.view.first.backwards for line in getattr(passed, key))
        for line in dict.fromkeys(lines):
            kinds[f"{what} of line {line.line}"] = partial(_of_line, key, line), mean
    kinds["samples"] = (lambda backward: float(backward.rows), mean)
    single = all(set(view.micro_steps(step)) == {1} for view in views for step in range(view.count))
    for name, (count, loss_line) in kinds.items():
        base_weights, weights = (_by_count(view, count) for view in views)
        if base_weights is None or weights is None:
            continue
        if all(abs(value - 1) < 1e-12 for value in (*base_weights.values(), *weights.values())):
            continue
        low, high, uneven = _range(pair.view, count)
        rows = _only_rows(pair, count)
        last = rows and _only_last(pair.view, uneven)
        loader = samples.training_loaders(pair.view.first)
        created = pair.view.first.loaders[loader[0]].line if loader else None
        shown = "tokens" if name == "terms of the loss" else name
        if rows:
            shown = "samples"
        weightings.append(
            Weighting(
                "last_batch_smaller" if last else "loss_mean_of_rank_means",
                bool(last),
                f"weighted by {shown}",
                base_weights,
                weights,
                created if last else loss_line,
                f"the loss is a mean of each rank's mean; {shown} per rank {low:g} to {high:g}",
                "drop_last=True, or weight the loss by samples"
                if last
                else f"divide the sum of losses by the {shown} of all ranks, times world_size",
                count if single else None,
            )
        )
    return weightings


def _of_line(key: str, line: Line, backward: BackwardRecord) -> float | None:
    numbers: dict[Line, float] = getattr(backward, key)
    return numbers.get(line)


def _terms(backward: BackwardRecord) -> float | None:
    means = [count.count for count in backward.counts if count.reduction == "mean"]
    sums = [count.count for count in backward.counts if count.reduction == "sum"]
    return means[-1] if means else (sums[-1] if sums else None)


def _by_count(view: RunView, count: Count) -> Weights | None:
    weights: Weights = {}
    for step in range(view.count):
        passes = [
            (rank, number, count(backward))
            for rank, of_rank in enumerate(view.backwards(step))
            for number, backward in of_rank
        ]
        total = sum(value or 0.0 for _, _, value in passes)
        if any(value is None for _, _, value in passes) or total <= 0:
            return None
        for rank, number, value in passes:
            weights[rank, number] = (value or 0.0) * len(passes) / total
    return weights


def _range(view: RunView, count: Count) -> tuple[float, float, list[int]]:
    """Return the smallest and largest count of a pass in the first uneven step; uneven steps."""
    uneven: list[int] = []
    low = high = 0.0
    for step in range(view.count):
        counts = [
            count(backward) or 0.0 for passes in view.backwards(step) for _, backward in passes
        ]
        if counts and max(counts) > min(counts):
            if not uneven:
                low, high = min(counts), max(counts)
            uneven.append(step)
    return low, high, uneven


def _only_rows(pair: Pair, count: Count) -> bool:
    """Return whether counts are proportional to samples."""
    ratios = {
        round((count(backward) or 0.0) / backward.rows, 9)
        for view in (pair.base, pair.view)
        for *_, backward in _passes(view)
        if backward.rows
    }
    return len(ratios) == 1


def _only_last(view: RunView, uneven: Sequence[int]) -> bool:
    """Return whether steps are the last ones of their epochs."""
    last = set()
    for rank in view.record.ranks:
        by_epoch: dict[tuple[int, int], int] = {}
        for backward in rank.backwards:
            if backward.batch is not None:
                batch = rank.batches[backward.batch]
                by_epoch[batch.loader, batch.epoch] = backward.step
        last |= set(by_epoch.values())
    return bool(uneven) and set(uneven) <= last


def schedule(pair: Pair, written: Pair) -> list[Suspect]:
    """Return the suspect of learning rates that depend on the number of ranks.

    ``written`` are the runs of the script as it is, with its own samples.
    """
    base, view = pair.base, pair.view
    settings = {key: base.first.steps[place].settings for place, key in enumerate(base.keys)}
    different = other_rates(pair)
    if not different:
        return []
    own, place = different[0]
    base_rates, rates = base.first.steps[own].lr, view.first.steps[place].lr
    steps = [_scheduled(run) for run in (base, view)]
    lines = view.first.schedulers
    line = by_world_size(lines[0]) if lines else None
    if line is None and view.first.steps[0].line is not None:
        line = rate_line(view.first.steps[0].line.file)
    stepped = view.first.scheduler_steps
    if stepped and abs(steps[0] - steps[1]) > 1e-6:
        by_script, where = stepped[0]
        if by_script or line is None:  # a library's steps follow from its making
            line = where
        evidence = (
            f"the schedule moves {steps[0]:g} and {steps[1]:g} times per step on "
            f"{base.world_size} and {view.world_size} ranks"
        )
    else:
        evidence = "the schedule's length depends on the number of ranks"
    at = view.step_of(place)
    evidence += f": learning rate {rates[0]:.4g} in place of {base_rates[0]:.4g} at step {at}"
    remedy = "count optimizer steps, the same on any number of ranks"
    by_samples = any(_equal_by_samples(written, whole) for whole in (True, False))
    follows = by_samples or _ends_with_training(written)
    if follows:
        both = f"{base.world_size} and {view.world_size} ranks"
        evidence = f"schedules end with training on {both}"
        if by_samples:
            evidence = f"learning rates follow the samples seen, not the steps of {both}"
        remedy = "they were compared with the same rates"
    return [
        Suspect(
            "schedule_steps_with_world_size",
            False,
            f"with the learning rates of {ranks_counted(base.world_size)}",
            lambda: ([], [ch.ImposedRates(settings)]),
            line,
            evidence,
            remedy,
            findings=not follows,
        )
    ]


def other_rates(pair: Pair) -> list[tuple[int, int]]:
    """Return the places, in both runs, of steps with other learning rates."""
    base, view = pair.base, pair.view
    places = [(base.places[key], place) for key, place in view.places.items() if key in base.places]
    return [
        (own, place)
        for own, place in places
        if not _same_rates(base.first.steps[own].lr, view.first.steps[place].lr)
    ]


def _same_rates(rates: Sequence[float], others: Sequence[float]) -> bool:
    return len(rates) == len(others) and np.allclose(rates, others, rtol=1e-9)


def _ends_with_training(pair: Pair) -> bool:
    """Return whether schedules move until the script ends, and end at the same rates.

    So they do where a schedule is as long as an epoch, and warms up for a number of steps.
    """
    views = (pair.base, pair.view)
    if len({view.samples(0).total() for view in views}) == 1:
        return False  # epochs are as long on any number of ranks
    if not all(view.first.ended and view.first.steps and view.first.rates for view in views):
        return False
    peaks, ends, moves = [], [], []
    for view in views:
        rates = [step.lr for step in view.first.steps if step.optimizer == 0]
        peaks.append(max(rates))
        ends.append(view.first.rates[0])
        moves.append(not _same_rates(rates[-1], ends[-1]))
    return all(moves) and _same_rates(*peaks) and _same_rates(*ends)


def _equal_by_samples(pair: Pair, whole: bool) -> bool:
    """Compare rates by samples: over all steps, or those before one of another size.

    They agree where a rank's batch is fixed, and a schedule is as long as an epoch.
    """
    seen = []
    for view in (pair.base, pair.view):
        total, by_total = 0, {}
        first = view.samples(0).total()
        rates = {step.at: step.lr for step in view.first.steps if step.optimizer == 0}
        for number in range(view.count):
            if number in rates:
                by_total[total] = rates[number]
            size = view.samples(number).total()
            if not whole and size != first:
                break
            total += size
        seen.append(by_total)
    common = sorted(seen[0].keys() & seen[1].keys())
    same = all(_same_rates(seen[0][at], seen[1][at]) for at in common)
    return same and len({seen[0][at] for at in common}) > 1


def _scheduled(view: RunView) -> float:
    steps = [step for step in view.first.steps if step.optimizer == 0]
    return steps[-1].scheduled / max(len(steps) - 1, 1) if len(steps) > 1 else 0.0


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
