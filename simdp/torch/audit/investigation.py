"""Finds the causes of differences between runs of a script, each by an experiment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simdp.errors import ScenarioError
from simdp.results.audit import Cause, Experiment, Finding, LegitimateCause, TensorRow
from simdp.torch.audit import changes as ch
from simdp.torch.audit import comparisons, data_changes, samples, suspects
from simdp.torch.audit.comparisons import Difference, RunView, compare
from simdp.torch.audit.lines import Line, assigned, divided, only_call
from simdp.torch.audit.records import CallRecord, RunRecord, ranks_counted
from simdp.torch.audit.runs import Run, Runner
from simdp.torch.audit.suspects import Pair, Suspect

EPSILON, EPSILON64 = 1.2e-7, 2.3e-16
"""Units in the last place of float32 and float64."""

METRIC = 1e-4
"""Relative difference of a reduced metric from which it is one."""

UNEQUAL_REPLICAS = ("bypassed_ddp", "unsynchronised_parameters")
"""Causes by which ranks have other weights, of which a checkpoint has one rank's."""

Keeping = data_changes.KeptBatches | data_changes.IntegerDraws | data_changes.Inputs
"""Changes that keep what a script is given."""

UNUSED = "Expected to have finished reduction in the prior iteration"
"""Part of the message of DistributedDataParallel."""


@dataclass
class Investigation:
    """Runs of a program, and what was found."""

    runner: Runner
    """Runs the program."""
    runs: dict[int, Run]
    """The run at each number of ranks, as the script is written."""
    exact: bool = False
    """Whether runs compute in float64."""
    views: dict[int, RunView] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    rows: list[TensorRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differences: dict[int, Difference] = field(default_factory=dict)
    checks: dict[int, samples.SampleCheck] = field(default_factory=dict)
    rounding: comparisons.Rounding = field(default_factory=comparisons.Rounding)
    always: list[ch.Change] = field(default_factory=list)
    repairs: list[Suspect] = field(default_factory=list)  # which make replicas equal
    follows_samples: bool = False  # learning rates do, which other steps therefore have
    unclear: Line | None = None  # of a reduced number that differs, and no experiment explains
    most_steps: int | None = None  # of which ranks have inputs that one call can have

    @property
    def epsilon(self) -> float:
        """A unit in the last place."""
        return EPSILON64 if self.exact else EPSILON

    @property
    def sizes(self) -> list[int]:
        """Numbers of ranks, the smallest first, with which the others are compared."""
        return sorted(self.views)

    def base(self) -> RunView:
        """Return the run on the fewest ranks."""
        return self.views[self.sizes[0]]

    # Runs -----------------------------------------------------------------------------------------

    def changed(self, size: int, changes: Sequence[ch.Change], **fields: Any) -> Run:
        """Return a run with changes, and other fields."""
        run = self.runs[size]
        if self.most_steps is not None:
            run = replace(run, max_steps=self.most_steps)
        lifted = [ch.Float64()] if self.exact else []
        changes = [*lifted, *self.always, *changes]
        return replace(run, world_size=size, changes=changes, **fields)

    def runs_changed(self, *sides: tuple[int, Sequence[ch.Change]]) -> list[RunRecord]:
        """Run numbers of ranks with changes."""
        return self.runner.run([self.changed(*side) for side in sides])

    def start(self) -> None:
        """Run the script as it is, and with weights moved by rounding."""
        sizes = sorted(self.runs)
        runs = [self.changed(size, []) for size in sizes]
        runs.append(self.changed(sizes[0], [ch.Nudged()]))
        *records, nudged = self.runner.run(runs)
        for record in records:
            if record.started not in (None, record.world_size):
                raise ScenarioError(
                    f"audit: the script starts {record.started} ranks itself where "
                    f"{record.world_size} are asked for; let it start as many as "
                    "torch.cuda.device_count(), or give their number by --batch-arg, as "
                    "'--world-size {ranks}'."
                )
        failed = [record for record in records if record.error]
        if failed:
            self._failed(records, failed)
            records = [record for record in records if not record.error]
        self.views = {record.world_size: RunView(record) for record in records}
        if failed and len(records) < 2:
            return
        samples.by_content(list(self.views.values()))
        placed = comparisons.places(list(self.views.values()))
        if placed and not any(isinstance(change, ch.Placed) for change in self.always):
            self.always.append(ch.Placed(placed))
            self.start()
            return
        base = self.base()
        if not nudged.error:
            self.rounding = comparisons.Rounding(base, RunView(nudged), self.epsilon)
        unit = 0.0 if self.exact else base.first.autocast
        if unit:
            self.rounding = self._coarse(base, unit)

    def _coarse(self, base: RunView, unit: float) -> comparisons.Rounding:
        """Measure what rounding to a shorter data type explains."""
        (record,) = self.runs_changed((base.world_size, [ch.NoAutocast()]))
        how = "by a run in float32"
        if record.error:  # a script may check the data type
            (record,) = self.runs_changed((base.world_size, [ch.Nudged(unit)]))
            how = "by a run whose weights were moved by half a unit of its data type"
        if record.error:
            how = "in units of its data type alone"
        self.notes.append(f"mixed precision: what rounding explains was measured {how}")
        other = None if record.error else RunView(record)
        return comparisons.Rounding(
            base, other, unit if other is None else EPSILON, True, self.rounding
        )

    def _failed(self, records: list[RunRecord], failed: list[RunRecord]) -> None:
        first = failed[0]
        unused = UNUSED in first.error or (
            first.kind == "deadlock" and first.ranks and first.ranks[0].wrappers
        )
        if unused:
            change = ch.FindUnused()
            sizes = [record.world_size for record in records]
            again = self.runs_changed(*((size, [change]) for size in sizes))
            if not any(record.error for record in again):
                self.always.append(change)
                how = "wait for gradients" if first.kind == "deadlock" else "raise"
                self.findings.append(
                    finding(
                        "unused_parameters",
                        _unused_line(RunView(again[-1])),
                        f"with find_unused_parameters=True, {_enumerated(sizes)} ranks end; "
                        f"without, {ranks_counted(first.world_size)} {how}",
                        "find_unused_parameters=True, or use every parameter in each forward pass",
                        step=1,
                    )
                )
                records[:] = again
                return
        if first.world_size == 1 or first.kind == "rank":
            size = first.world_size
            where = "in float64 on" if self.exact else "on"
            first_try = "leave --exact out, or run" if self.exact else "run"
            command = f"simdp torchrun --nproc-per-node {1 if first.started else size}"
            raise ScenarioError(
                f"audit: the script fails {where} {ranks_counted(size)}: {first.reason}; "
                f"{first_try} it with {command} first."
            )
        self.findings.append(_collectives(first))

    # Differences ----------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare all runs with that on the fewest ranks, and explain what differs."""
        base = self.base()
        for size in self.sizes[1:]:
            view = self.views[size]
            self.checks[size] = samples.check(base, view)
            self.differences[size] = compare(base, view, self.rounding)
            self.rows += self.differences[size].rows[:20]
        for size in self.sizes[1:]:
            same = self.differences[size].same and not self.checks[size].differing
            if not same or comparisons.replicas(self.views[size]) is not None:
                self.explain(size)
                self.most_steps = None

    def explain(self, size: int) -> None:
        """Find the causes by which a run differs."""
        pair = Pair(self.base(), self.views[size], self.differences[size])
        check = self.checks[size]
        chosen: list[Suspect] = []
        current = pair
        if check.differing:
            pair, tie, current = self._tied(pair, check)
            chosen += [] if tie is None else [tie]
        longer = self._longer(pair)
        traced = False
        hooks = suspects.comm_hooks(pair)
        reducing = [*hooks, *suspects.reduction(pair)]
        legitimate = [
            *suspects.layers(pair),
            *(suspect for suspect in reducing if suspect.legitimate),
        ]
        for _ in range(6):
            if self._agrees(current):
                break
            wrong = [
                *(suspect for suspect in hooks if not suspect.legitimate),
                *suspects.weights_of_ranks(current),
                *suspects.reduction(current),
                *suspects.losses(current),
                *suspects.schedule(current, longer),
                *suspects.scaled(current),
            ]
            best = self._best(pair, chosen, [*wrong, *legitimate], current)
            if best is None and not traced:
                traced = True
                current = self._traced(pair, chosen)
                best = self._best(pair, chosen, suspects.losses(current), current)
            if best is None:
                together = self._together(pair, chosen, legitimate, current)
                if together is None:
                    break
                chosen, current = together
                continue
            chosen, current = [*chosen, best[0]], best[1]
        if not self._agrees(current):
            self._unexplained(pair, current)
            if not chosen:
                return
        elif not any(suspect.findings for suspect in chosen):
            self.differences[size] = current.difference
            self.rows = [row for row in self.rows if row.ranks[1] != size]
        self._attribute(pair, chosen, current)

    def _tied(self, pair: Pair, check: samples.SampleCheck) -> tuple[Pair, Suspect | None, Pair]:
        """Give the base run the samples of the other one; return the pair before, and after it.

        A way that leaves other samples is not used: numbers that a script draws may be its labels
        alone.
        """
        for change in self._ties(pair):
            tie = suspects.order_of_samples(pair, check, change)
            if tie is None:
                return pair, None, pair
            tied = self.tried(pair, [tie])
            if tied is not pair and not samples.check(tied.base, tied.view).differing:
                return pair, tie, tied
        imposed, steps = self._inputs(pair)
        if imposed is None:
            return pair, None, pair
        if steps < min(pair.base.count, pair.view.count):
            self.notes.append(
                f"compared up to step {steps}: in step {steps + 1} ranks give the model inputs "
                "that cannot be joined into one call"
            )
            self.most_steps = steps
            pair = self.tried(pair, [])
        tie = suspects.order_of_samples(pair, check, imposed)
        tied = pair if tie is None else self.tried(pair, [tie])
        return pair, None if tied is pair else tie, tied

    def _ties(self, pair: Pair) -> Iterator[ch.Change]:
        """Return changes that may give the base run the samples of the other one."""
        tie = data_changes.tied(pair.view, pair.base)
        if tie is not None:
            yield tie
        sizes = pair.view.world_size, pair.base.world_size
        if samples.training_loaders(pair.view.first):
            (kept,) = self._kept(data_changes.KeptBatches, sizes[:1])
            tie = data_changes.tied_batches(pair.view, pair.base, kept)
        else:
            records = self.runs_changed(*((size, [data_changes.GivenRows()]) for size in sizes))
            view, base = map(RunView, records)
            firsts = [run.first.backwards[:1] for run in (view, base)]
            tie = None
            if all(first and first[0].indexed for first in firsts):
                tie = data_changes.tied(view, base)
            if tie is not None:
                yield tie
            if not pair.view.first.index_draws:
                return
            kept, own = self._kept(data_changes.IntegerDraws, sizes)
            tie = data_changes.tied_draws(pair.view, pair.base, kept, own)
        if tie is not None:
            yield tie

    def _kept(self, kind: type[Keeping], sizes: Sequence[int]) -> list[dict[Any, Any]]:
        """Return what a change keeps of runs on some numbers of ranks."""
        changes = [kind() for _ in sizes]
        runs = [
            self.changed(size, [change], keep={"kept": partial(getattr, change, "kept")})
            for size, change in zip(sizes, changes, strict=True)
        ]
        return [record.extra.get("kept", {}) for record in self.runner.run(runs)]

    def _inputs(self, pair: Pair) -> tuple[ch.Change | None, int]:
        """Return the change that gives the base run's model what that of the other one gets."""
        (kept,) = self._kept(data_changes.Inputs, [pair.view.world_size])
        return data_changes.tied_inputs(pair.view, pair.base, kept)

    def _longer(self, pair: Pair) -> Pair:
        """Return runs as written, the base as long as the samples of the other one last."""
        base, view = pair.base, pair.view
        few, many = (run.samples(0).total() for run in (base, view))
        if not suspects.other_rates(pair) or not 0 < few < many:
            return pair
        run = self.changed(base.world_size, [])
        steps = -(-run.max_steps * many // few)
        (record,) = self.runner.run([replace(run, max_steps=steps)])
        return self._pair(RunView(record), view.record, pair)

    def _agrees(self, pair: Pair) -> bool:
        return pair.difference.same and comparisons.replicas(pair.view) is None

    def _best(
        self, pair: Pair, chosen: list[Suspect], options: Sequence[Suspect], current: Pair
    ) -> tuple[Suspect, Pair] | None:
        """Return the first suspect without which the runs agree, or else the most helpful one."""
        best: tuple[float, Suspect, Pair] | None = None
        tried = {(suspect.cause, suspect.change) for suspect in chosen}
        for option in options:
            if (option.cause, option.change) in tried:
                continue
            after = self.tried(pair, [*chosen, option])
            self._record(option, current, after)
            if self._agrees(after):
                return option, after
            gain = _gain(current, after)
            if gain > 3 and (best is None or gain > best[0]):
                best = gain, option, after
        return None if best is None else best[1:]

    def _together(
        self, pair: Pair, chosen: list[Suspect], legitimate: Sequence[Suspect], current: Pair
    ) -> tuple[list[Suspect], Pair] | None:
        """Neutralise all legitimate suspects at once, since each may hide what another one does."""
        by_change = {suspect.change: suspect for suspect in legitimate}
        by_change.pop(suspects.BY_SAMPLE, None)
        added = [suspect for suspect in by_change.values() if suspect not in chosen]
        if len(added) < 2:
            return None
        after = self.tried(pair, [*chosen, *added])
        if not self._agrees(after) and _gain(current, after) <= 3:
            return None
        for suspect in added:
            self._record(suspect, current, after)
        return [*chosen, *added], after

    def _record(self, option: Suspect, before: Pair, after: Pair) -> None:
        self.experiments.append(suspects.experiment(option, before.difference, after.difference))

    def tried(self, pair: Pair, chosen: Sequence[Suspect], size: int | None = None) -> Pair:
        """Run both sides again with changes, and compare."""
        n = pair.view.world_size if size is None else size
        sides: tuple[list[ch.Change], list[ch.Change]] = ([], [])
        for suspect in chosen:
            for side, changes in zip(sides, suspect.changes(), strict=True):
                side.extend(changes)
        if not sides[0]:
            (record,) = self.runs_changed((n, sides[1]))
            return self._pair(pair.base, record, pair)
        base, record = self.runs_changed((pair.base.world_size, sides[0]), (n, sides[1]))
        return pair if base.error else self._pair(RunView(base), record, pair)

    def _pair(self, base: RunView, record: RunRecord, before: Pair) -> Pair:
        if record.error:
            return before
        view = RunView(record)
        return Pair(base, view, compare(base, view, self.rounding))

    def _traced(self, pair: Pair, chosen: Sequence[Suspect]) -> Pair:
        """Run both sides again, and record the numbers that the loss is computed from."""
        trace = Suspect("unexplained", False, "", suspects.on_both(ch.ScalarTrace), None)
        return self.tried(pair, [*chosen, trace])

    def _attribute(self, pair: Pair, chosen: list[Suspect], final: Pair) -> None:
        """Name the suspects without whose change the runs differ again."""
        for suspect in chosen:
            others = [other for other in chosen if other is not suspect]
            without = self.tried(pair, others) if others else pair
            if others and self._agrees(without):
                continue  # the others explain all of it
            if suspect.cause in UNEQUAL_REPLICAS and suspect not in self.repairs:
                self.repairs.append(suspect)
            if not suspect.findings:
                self.notes.append(f"{suspect.evidence}; {suspect.remedy}")
                self.follows_samples |= suspect.cause == "schedule_steps_with_world_size"
                continue
            self.findings.append(self._named(suspect, without, final))

    def _named(self, suspect: Suspect, before: Pair, after: Pair) -> Finding:
        row = before.difference.first
        n, m = before.view.world_size, before.base.world_size
        unequal = comparisons.replicas(before.view)
        left = after.difference.size
        if row is not None:
            tensor: str | None = row.name
            step, size = row.step, row.size
        elif unequal is not None:
            _, tensor, step, size = unequal
        else:
            tensor, size = None, before.difference.size
            step = (self.checks[n].first or 0) + 1 if n in self.checks else 1
        proof = f"{suspect.change}, {m} and {n} ranks agree to {left:.0e}"
        if row is None and unequal is not None:
            proof = f"{suspect.change}, all ranks have the same {unequal.stage}"
        return named(suspect, proof, step=step, tensor=tensor, size=size)

    def _unexplained(self, pair: Pair, current: Pair) -> None:
        row = current.difference.first or pair.difference.first
        unequal = comparisons.replicas(current.view)
        n, m = pair.view.world_size, pair.base.world_size
        if row is not None:
            text = (
                f"{row.stage} of {row.name} differs by {row.size:.0e} between {m} and {n} ranks "
                f"(rounding explains {row.bound:.0e}); no experiment removed it"
            )
            line = pair.view.first.backwards[0].line if pair.view.first.backwards else None
            self.findings.append(
                finding("unexplained", line, text, step=row.step, tensor=row.name, size=row.size)
            )
        elif unequal is not None:
            stage, name, step, size = unequal
            text = (
                f"{stage} of {name} differs between ranks by {size:.0e}; no experiment removed it"
            )
            self.findings.append(
                finding("unexplained", None, text, step=step, tensor=name, size=size)
            )

    # Epochs ---------------------------------------------------------------------------------------

    def epochs(self) -> None:
        """Check that shuffling samplers draw another order in each epoch."""
        size = self.sizes[-1]
        view = self.views[size]
        repeated = samples.repeated_order(view)
        if repeated is None:
            return
        loader, epoch, count = repeated
        (record,) = self.runs_changed((size, [data_changes.EpochsSet()]))
        if record.error or samples.repeated_order(RunView(record)) is not None:
            return
        line = samples.line_of_loop(view, loader)
        if line is not None:  # a call that does not reach the sampler
            line = only_call(line.file, "set_epoch") or line
        step = next(
            (
                backward.step + 1
                for backward in view.first.backwards
                if backward.batch is not None and view.first.batches[backward.batch].epoch == epoch
            ),
            None,
        )
        self.findings.append(
            finding(
                "set_epoch_missing",
                line,
                f"epoch {epoch + 1} has the order of epoch {epoch}, batch for batch ({count} "
                "compared); with set_epoch called, it has another one",
                "call sampler.set_epoch(epoch) before each epoch",
                step=step,
            )
        )
        self.experiments.append(Experiment("set_epoch_missing", "set_epoch called", 1.0, 0.0, 0.5))

    # Metrics --------------------------------------------------------------------------------------

    def metrics(self) -> None:
        """Check numbers that ranks reduce outside of training."""
        base = self.base()
        for size in self.sizes[1:]:
            line = _metric_that_differs(base, self.views[size])
            if line is not None and self._metric(size, line):
                return
            self.unclear = self.unclear or line
        for few, most in pairwise(self.sizes):
            if self._printed(few, most):
                return

    def _printed(self, few: int, most: int) -> bool:
        """Find a number that a script prints from reduced ones, which differs though they agree."""
        base, view = self.views[few], self.views[most]
        metrics = {line: _metric_values(base, view, line) for line in _small_calls(view)}
        lines = [line for line, metric in metrics.items() if metric and metric.size <= METRIC]
        same = [self.differences[size].same for size in (few, most) if size in self.differences]
        if not lines or not all(same) or self.checks[most].differing:
            return False
        records = self.runs_changed(
            *(
                (size, [data_changes.ScaledMetrics(scaled)])
                for scaled in ([], lines)
                for size in (few, most)
            )
        )
        if any(record.error for record in records):
            return False
        pairs = [(self.views[record.world_size], RunView(record)) for record in records]
        number = _printed_otherwise([record.output for record in records])
        if number is None or not all(compare(*pair, self.rounding).same for pair in pairs):
            return False
        value, other = number
        factor = f"{other / value:.4g} times" if value else "not"
        text = f"on {most} ranks the value is {factor} that of {ranks_counted(few)}"
        printed = f"printed are {value:.6g} on {few} and {other:.6g} on {most} ranks"
        self.findings.append(
            finding(
                "metric_averaged_wrongly",
                divided(lines[-1]),
                f"{printed}, though what ranks reduce agrees",
                "reduce sums and counts, and divide once",
                size=abs(other - value) / (abs(value) or 1.0),
                text=text,
            )
        )
        return True

    def _metric(self, size: int, line: Line) -> bool:
        evaluated = samples.evaluated(self.views[size])
        if evaluated != samples.evaluated(self.base()):
            return False  # of other samples, for example of as many batches on each rank
        if evaluated:
            indices = {number: sorted(loaded) for number, loaded in evaluated.items()}
            whole = data_changes.WholeEvaluation(indices)
            return self._metric_of(size, line, whole, "all samples in batches of one")
        changes = data_changes.WholeSlices(), data_changes.WholeParts()
        return any(self._metric_of(size, line, change, "all samples") for change in changes)

    def _metric_of(self, size: int, line: Line, whole: ch.Change, how: str) -> bool:
        """Try whether a metric agrees where every rank has all samples, and training the same."""
        view, base = self.views[size], self.base()
        records = self.runs_changed((base.world_size, [whole]), (size, [whole]))
        if any(record.error for record in records):
            return False
        views = [RunView(record) for record in records]
        pairs = zip((base, view), views, strict=True)
        if any(not compare(*pair, self.rounding).same for pair in pairs):
            return False
        before = _metric_values(base, view, line)
        after = _metric_values(views[0], views[1], line)
        if before is None or after is None or after.size > 1e-5:
            return False
        self.experiments.append(
            Experiment("metric_averaged_wrongly", how, before.size, after.size, 1e-5)
        )
        self.findings.append(
            finding(
                "metric_averaged_wrongly",
                assigned(line),
                f"{before.base:.6g} on {base.world_size} and {before.value:.6g} on {size} ranks; "
                f"with {how} on every rank, both give {after.value:.6g}",
                "reduce sums and counts, and divide once",
                size=before.size,
            )
        )
        return True


def _gain(before: Pair, after: Pair) -> float:
    """Return how much later or smaller a difference is."""
    row, left = before.difference.first, after.difference.first
    if left is None:
        replicas = comparisons.replicas(after.view) is not None
        return 1.0 if replicas and before.difference.same else float("inf")
    if row is None:
        return 0.0
    stages = comparisons.STAGES
    place, later = ((first.step, stages.index(first.stage)) for first in (row, left))
    if later > place:
        return 1e6 + 1e3 * later[0] + later[1]
    return 0.0 if later < place else row.size / max(left.size, 1e-300)


def finding(
    cause: Cause | LegitimateCause,
    line: Line | None,
    proof: str,
    remedy: str = "",
    *,
    step: int | None = None,
    tensor: str | None = None,
    size: float | None = None,
    legitimate: bool = False,
    text: str = "",
) -> Finding:
    """Return a finding at a line."""
    file, number = line or (None, None)
    return Finding(cause, legitimate, file, number, step, tensor, size, proof, remedy, text=text)


def named(
    suspect: Suspect, proof: str, *, step: int, tensor: str | None, size: float | None
) -> Finding:
    """Return the finding of a suspect."""
    return finding(
        suspect.cause,
        suspect.line,
        proof,
        suspect.remedy,
        step=step,
        tensor=tensor,
        size=size,
        legitimate=suspect.legitimate,
        text=suspect.evidence,
    )


def _enumerated(numbers: Sequence[int]) -> str:
    texts = [str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


# Collectives --------------------------------------------------------------------------------------


def _collectives(record: RunRecord) -> Finding:
    """Return the first collective that ranks do not share, with each rank's next call."""
    by_rank = [rank.calls for rank in record.ranks]
    shortest, longest = min(map(len, by_rank)), max(map(len, by_rank))
    at = next(
        (
            place
            for place in range(shortest)
            if len({_signature(calls[place]) for calls in by_rank}) > 1
        ),
        shortest if longest > shortest else max(shortest - 1, 0),
    )
    by_call: dict[str, list[int]] = {}
    for rank, calls in enumerate(by_rank):
        text = "ends" if at >= len(calls) else _shown(calls[at])
        by_call.setdefault(text, []).append(rank)
    parts = [
        f"rank{'s' * (len(ranks) > 1)} {_enumerated(ranks)}: {text}"
        for text, ranks in by_call.items()
    ]
    fewest = min(by_call.values(), key=lambda ranks: (len(ranks), ranks[0] != 0))
    odd = by_rank[fewest[0]]
    others = [calls[at] for calls in by_rank if at < len(calls) and calls is not odd]
    if at < len(odd):
        unlike = (other for other in others if _signature(other) != _signature(odd[at]))
        line = _parting(odd[at], next(unlike, None))
    else:  # what the others call is what this rank leaves out
        lines = [call.line for call in (*others[:1], *odd[-1:])]
        line = next((line for line in lines if line is not None), None)
    step = max((rank.steps[-1].at + 1 for rank in record.ranks if rank.steps), default=0)
    return finding(
        "collectives_differ",
        line,
        f"collective {at + 1} would hang on real ranks: {'; '.join(parts)}",
        "let every rank of the group make the same collectives in the same order",
        step=step + 1,
    )


def _unused_line(view: RunView) -> Line | None:
    """Return the line that makes a parameter without a gradient on every rank, else of DDP."""
    steps = [step for rank in view.record.ranks for step in rank.steps]
    for name in view.first.steps[0].grad_probes if view.first.steps else ():
        used = any(step.grad_probes.get(name) is not None for step in steps)
        if not used and view.first.creators.get(name) is not None:
            return view.first.creators[name]
    return view.first.wrappers[0] if view.first.wrappers else None


def _parting(odd: CallRecord, other: CallRecord | None) -> Line | None:
    """Return the line of the odd call in the innermost function that both calls are in."""
    parting = odd.line
    for (name, line), (other_name, other_line) in zip(
        odd.stack, () if other is None else other.stack, strict=False
    ):
        if name != other_name:
            break
        parting = line
        if line != other_line:
            break
    return parting


def _signature(call: CallRecord) -> tuple[Any, ...]:
    shape = () if call.name in ("all_to_all", "all_to_all_single") else call.shape
    return call.name, shape, call.dtype, call.op


def _shown(call: CallRecord) -> str:
    shape = "x".join(map(str, call.shape))
    kind = f"{call.name}({shape} {call.dtype})" if call.dtype else call.name
    return kind if call.line is None else f"{kind} at line {call.line.line}"


# Metrics ------------------------------------------------------------------------------------------


def _small_calls(view: RunView) -> dict[Line, list[list[CallRecord]]]:
    """Return reductions of a few numbers outside of backward passes, by line and call, by rank."""
    by_line: dict[Line, list[list[CallRecord]]] = {}
    for number, call in enumerate(view.first.calls):
        if call.backward or call.values is None or call.line is None:
            continue
        if call.name not in ("all_reduce", "reduce") or not call.dtype.startswith(("float", "bf")):
            continue
        calls = [rank.calls[number] for rank in view.record.ranks if number < len(rank.calls)]
        if len(calls) == view.world_size and all(own.values is not None for own in calls):
            by_line.setdefault(call.line, []).append(calls)
    return by_line


class Metric(NamedTuple):
    """A reduced number of two runs."""

    base: float
    value: float
    size: float  # of the relative difference


def _metric_values(base: RunView, view: RunView, line: Line) -> Metric | None:
    """Return a metric's means over ranks in two runs, where they differ most."""
    metric: Metric | None = None
    reductions = (_small_calls(run).get(line, []) for run in (base, view))
    for pair in zip(*reductions, strict=False):
        first, second = (np.sum([call.values for call in calls], axis=0) for calls in pair)
        if first.shape != second.shape:
            continue
        summed = _apart(first, second)
        meant = _apart(first / base.world_size, second / view.world_size)
        size, counts = min((summed, (1, 1)), (meant, (base.world_size, view.world_size)))
        if metric is None or size > metric.size:
            base_value, value = first / counts[0], second / counts[1]
            metric = Metric(float(base_value.flat[0]), float(value.flat[0]), size)
    return metric


def _apart(values: np.ndarray, others: np.ndarray) -> float:
    scale = float(np.max(np.abs(values))) or 1.0
    return float(np.max(np.abs(values - others)) / scale)


NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")


def _printed_otherwise(outputs: Sequence[str]) -> tuple[float, float] | None:
    """Return the first number that differs in two outputs, and follows from reduced ones.

    It differs in two more outputs of the same runs, in which reduced numbers are multiplied. Lines
    belong together if they are equal apart from numbers.
    """
    tables: list[dict[str, list[str]]] = []
    for output in outputs:
        tables.append({})
        for line in output.splitlines():
            numbers = [match[0] for match in NUMBER.finditer(line)]
            tables[-1].setdefault(NUMBER.sub("#", line), []).extend(numbers)
    for line in tables[0]:
        columns = [table.get(line, []) for table in tables]
        if len({len(column) for column in columns}) > 1:
            continue
        for texts in zip(*columns, strict=True):
            follows = _differ(texts[0], texts[2]) and _differ(texts[1], texts[3])
            if follows and "." in texts[0] and _differ(*texts[:2]):
                return float(texts[0]), float(texts[1])
    return None


def _differ(text: str, other: str) -> bool:
    """Return whether two printed numbers differ by more than their digits and rounding."""
    parts = [number.partition("e") for number in (text, other)]
    places = [int(exponent or 0) - len(digits.partition(".")[2]) for digits, _, exponent in parts]
    return abs(float(text) - float(other)) > 2 * 10.0 ** max(places) + 1e-3 * abs(float(text))


def _metric_that_differs(base: RunView, view: RunView) -> Line | None:
    metrics = ((line, _metric_values(base, view, line)) for line in _small_calls(view))
    return next((line for line, metric in metrics if metric and metric.size > METRIC), None)
