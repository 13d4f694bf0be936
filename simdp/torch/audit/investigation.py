"""Finds the causes of differences between runs of a script, each by an experiment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from simdp.errors import ScenarioError
from simdp.results.audit import Experiment, Finding, TensorRow
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

UNUSED = "Expected to have finished reduction in the prior iteration"
"""Part of the message of DistributedDataParallel."""


@dataclass
class Investigation:
    """Runs of a program, and what was found.

    Parameters
    ----------
    runner : Runner
        Runs the program.
    runs : dict of int to Run
        The run at each number of ranks, as the script is written.
    exact : bool
        Whether runs compute in float64.
    """

    runner: Runner
    runs: dict[int, Run]
    exact: bool = False
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

    def changed(self, size: int, changes: Sequence[ch.Change], **more: Any) -> Run:
        """Return a run with changes."""
        run = self.runs[size]
        listed = [*self.always, *changes]
        fields = {
            "arguments": run.arguments,
            "environ": run.environ,
            "max_steps": run.max_steps if self.most_steps is None else self.most_steps,
            **more,
        }
        lifted = [ch.Float64()] if self.exact else []
        return Run(size, changes=[*lifted, *listed], **fields)

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
        if placed and not any(isinstance(one, ch.Placed) for one in self.always):
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
        size = base.world_size
        (found,) = self.runner.run([self.changed(size, [ch.NoAutocast()])])
        how = "by a run in float32"
        if found.error:  # a script may check the data type
            (found,) = self.runner.run([self.changed(size, [ch.Nudged(unit)])])
            how = "by a run whose weights were moved by half a unit of its data type"
        if found.error:
            how = "in units of its data type alone"
        self.notes.append(f"mixed precision: what rounding explains was measured {how}")
        other = None if found.error else RunView(found)
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
            again = self.runner.run([self.changed(size, [change]) for size in sizes])
            if not any(record.error for record in again):
                self.always.append(change)
                view = RunView(again[-1])
                line = _unused_line(view)
                self.findings.append(
                    finding(
                        "unused_parameters",
                        line,
                        1,
                        None,
                        None,
                        f"with find_unused_parameters=True, {_listed(sizes)} ranks end; without, "
                        f"{ranks_counted(first.world_size)} "
                        f"{'wait for gradients' if first.kind == 'deadlock' else 'raise'}",
                        "find_unused_parameters=True, or use every parameter in each forward pass",
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

    def pair(self, base: RunView, view: RunView) -> Pair:
        """Compare two runs."""
        return Pair(base, view, compare(base, view, self.rounding))

    def compare(self) -> None:
        """Compare all runs with that on the fewest ranks, and explain what differs."""
        base = self.base()
        for size in self.sizes[1:]:
            view = self.views[size]
            self.checks[size] = samples.check(base, view)
            self.differences[size] = compare(base, view, self.rounding)
            self.rows += self.differences[size].rows[:20]
        unequal = [
            size
            for size in self.sizes[1:]
            if not self.differences[size].same
            or self.checks[size].differing
            or comparisons.replicas(self.views[size]) is not None
        ]
        for size in unequal:
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
        legitimate = suspects.layers(pair)
        hooks = suspects.comm_hooks(pair)
        legitimate += [one for one in (*hooks, *suspects.reduction(pair)) if one.legitimate]
        for _ in range(6):
            if self._agrees(current):
                break
            wrong = [
                *(one for one in hooks if not one.legitimate),
                *suspects.weights_of_ranks(current),
                *suspects.reduction(current),
                *suspects.losses(current),
                *suspects.schedule(current, longer),
                *suspects.scaled(current),
            ]
            known = {(one.cause, one.change) for one in chosen}
            options = [one for one in (*wrong, *legitimate) if (one.cause, one.change) not in known]
            best = self._best(pair, chosen, options, current)
            if best is None and not traced:
                traced = True
                current = self._traced(pair, chosen)
                options = [
                    one for one in suspects.losses(current) if (one.cause, one.change) not in known
                ]
                best = self._best(pair, chosen, options, current)
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
            found = self.tried(pair, [tie])
            if found is not pair and not samples.check(found.base, found.view).differing:
                return pair, tie, found
        given, steps = self._inputs(pair)
        if given is None:
            return pair, None, pair
        if steps < min(pair.base.count, pair.view.count):
            self.notes.append(
                f"compared up to step {steps}: in step {steps + 1} ranks give the model inputs "
                "that cannot be joined into one call"
            )
            self.most_steps = steps
            pair = self.tried(pair, [])
        tie = suspects.order_of_samples(pair, check, given)
        found = pair if tie is None else self.tried(pair, [tie])
        return pair, None if found is pair else tie, found

    def _ties(self, pair: Pair) -> Iterator[ch.Change]:
        """Return changes that may give the base run the samples of the other one."""
        found = data_changes.tied(pair.view, pair.base)
        if found is not None:
            yield found
        sizes = pair.view.world_size, pair.base.world_size
        if samples.training_loaders(pair.view.first):
            kept = data_changes.KeptBatches()
            run = self.changed(sizes[0], [kept], keep={"kept": lambda: kept.kept})
            (record,) = self.runner.run([run])
            found = data_changes.tied_batches(pair.view, pair.base, record.extra.get("kept", {}))
            if found is not None:
                yield found
            return
        rows = [self.changed(size, [data_changes.GivenRows()]) for size in sizes]
        view, base = (RunView(record) for record in self.runner.run(rows))
        indexed = [one.first.backwards and one.first.backwards[0].indexed for one in (view, base)]
        if all(indexed):
            found = data_changes.tied(view, base)
            if found is not None:
                yield found
        if not pair.view.first.index_draws:
            return
        draws = [data_changes.IntegerDraws() for _ in sizes]
        runs = [
            self.changed(size, [one], keep={"kept": partial(getattr, one, "kept")})
            for size, one in zip(sizes, draws, strict=True)
        ]
        given, own = (record.extra.get("kept", {}) for record in self.runner.run(runs))
        found = data_changes.tied_draws(pair.view, pair.base, given, own)
        if found is not None:
            yield found

    def _inputs(self, pair: Pair) -> tuple[ch.Change | None, int]:
        """Return the change that gives the base run's model what that of the other one gets."""
        inputs = data_changes.Inputs()
        run = self.changed(pair.view.world_size, [inputs], keep={"kept": lambda: inputs.kept})
        (record,) = self.runner.run([run])
        return data_changes.tied_inputs(pair.view, pair.base, record.extra.get("kept", {}))

    def _longer(self, pair: Pair) -> Pair:
        """Return runs as written, the base as long as the samples of the other one last."""
        base, view = pair.base, pair.view
        each = [sum(one.samples(0).values()) for one in (base, view)]
        if not suspects.other_rates(pair) or not 0 < each[0] < each[1]:
            return pair
        run = self.changed(base.world_size, [])
        steps = -(-run.max_steps * each[1] // each[0])
        (record,) = self.runner.run([replace(run, max_steps=steps)])
        return self._pair(RunView(record), view.record, pair)

    def _agrees(self, pair: Pair) -> bool:
        return pair.difference.same and comparisons.replicas(pair.view) is None

    def _best(
        self, pair: Pair, chosen: list[Suspect], options: Sequence[Suspect], current: Pair
    ) -> tuple[Suspect, Pair] | None:
        """Return the first suspect without which the runs agree, or else the most helpful one."""
        best: tuple[float, Suspect, Pair] | None = None
        for option in options:
            found = self.tried(pair, [*chosen, option])
            self._record(option, current, found)
            if self._agrees(found):
                return option, found
            gain = _gain(current, found)
            if gain > 3 and (best is None or gain > best[0]):
                best = gain, option, found
        return None if best is None else best[1:]

    def _together(
        self, pair: Pair, chosen: list[Suspect], legitimate: Sequence[Suspect], current: Pair
    ) -> tuple[list[Suspect], Pair] | None:
        """Neutralise all legitimate suspects at once, since each may hide what another one does."""
        causes = {one.change: one for one in legitimate if one.change != suspects.BY_SAMPLE}
        added = [one for one in causes.values() if one not in chosen]
        if len(added) < 2:
            return None
        found = self.tried(pair, [*chosen, *added])
        if not self._agrees(found) and _gain(current, found) <= 3:
            return None
        for one in added:
            self._record(one, current, found)
        return [*chosen, *added], found

    def _record(self, option: Suspect, before: Pair, after: Pair) -> None:
        row = before.difference.first
        one, other = before.difference, after.difference
        sizes = (one.size, other.size) if row is None else (row.size, other.of(row))
        bound = other.bound if row is None else row.bound
        self.experiments.append(Experiment(option.cause, option.change, *sizes, bound))

    def tried(self, pair: Pair, chosen: Sequence[Suspect], size: int | None = None) -> Pair:
        """Run both sides again with changes, and compare."""
        n = pair.view.world_size if size is None else size
        sides: tuple[list[ch.Change], list[ch.Change]] = ([], [])
        for suspect in chosen:
            for side, changes in zip(sides, suspect.changes(), strict=True):
                side.extend(changes)
        runs = [self.changed(pair.base.world_size, sides[0]), self.changed(n, sides[1])]
        if not sides[0]:
            (record,) = self.runner.run(runs[1:])
            return self._pair(pair.base, record, pair)
        one, other = self.runner.run(runs)
        if one.error:
            return pair
        return self._pair(RunView(one), other, pair)

    def _pair(self, base: RunView, record: RunRecord, before: Pair) -> Pair:
        return before if record.error else self.pair(base, RunView(record))

    def _traced(self, pair: Pair, chosen: Sequence[Suspect]) -> Pair:
        """Run both sides again, and record the numbers that the loss is computed from."""
        trace = Suspect(
            "unexplained", False, "", lambda: ([ch.ScalarTrace()], [ch.ScalarTrace()]), None
        )
        return self.tried(pair, [*chosen, trace])

    def _attribute(self, pair: Pair, chosen: list[Suspect], final: Pair) -> None:
        """Name the suspects without whose change the runs differ again."""
        for suspect in chosen:
            others = [one for one in chosen if one is not suspect]
            without = pair if not others else None
            if without is None:
                without = self.tried(pair, others)
                if self._agrees(without):
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
        if row is None and unequal is not None:
            stage, name, step, size = unequal
            proof = f"{suspect.change}, all ranks have the same {stage}"
            tensor: str | None = name
        else:
            step = 1 if row is None else row.step
            tensor = None if row is None else row.name
            size = before.difference.size if row is None else row.size
            proof = f"{suspect.change}, {m} and {n} ranks agree to {left:.0e}"
        if row is None and unequal is None:
            step = (self.checks[n].first or 0) + 1 if n in self.checks else 1
        return finding(
            suspect.cause,
            suspect.line,
            step,
            tensor,
            size,
            proof,
            suspect.remedy,
            suspect.legitimate,
            suspect.evidence,
        )

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
            self.findings.append(finding("unexplained", line, row.step, row.name, row.size, text))
        elif unequal is not None:
            stage, name, step, size = unequal
            text = (
                f"{stage} of {name} differs between ranks by {size:.0e}; no experiment removed it"
            )
            self.findings.append(finding("unexplained", None, step, name, size, text))

    # Epochs ---------------------------------------------------------------------------------------

    def epochs(self) -> None:
        """Check that shuffling samplers draw another order in each epoch."""
        size = self.sizes[-1]
        view = self.views[size]
        found = samples.repeated_order(view)
        if found is None:
            return
        loader, epoch, count = found
        (record,) = self.runner.run([self.changed(size, [data_changes.EpochsSet()])])
        again = None if record.error else samples.repeated_order(RunView(record))
        if again is not None or record.error:
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
                step,
                None,
                None,
                f"epoch {epoch + 1} has the order of epoch {epoch}, batch for batch ({count} "
                "compared); with set_epoch called, it has another one",
                "call sampler.set_epoch(epoch) before each epoch",
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
        found = {line: _metric_values(base, view, line) for line in _small_calls(view)}
        lines = [line for line, one in found.items() if one is not None and one[2] <= METRIC]
        known = [self.differences[size].same for size in (few, most) if size in self.differences]
        if not lines or not all(known) or self.checks[most].differing:
            return False
        changes = [data_changes.ScaledMetrics(given) for given in ([], [], lines, lines)]
        sizes = (few, most) * 2
        runs = [self.changed(*one) for one in zip(sizes, [[one] for one in changes], strict=True)]
        records = self.runner.run(runs)
        pairs = [(self.views[one.world_size], RunView(one)) for one in records if not one.error]
        number = _printed_otherwise([record.output for record in records])
        trains = len(pairs) == 4 and all(compare(*pair, self.rounding).same for pair in pairs)
        if number is None or not trains:
            return False
        one, other = number
        factor = f"{other / one:.4g} times" if one else "not"
        text = f"on {most} ranks the value is {factor} that of {ranks_counted(few)}"
        printed = f"printed are {one:.6g} on {few} and {other:.6g} on {most} ranks"
        self.findings.append(
            finding(
                "metric_averaged_wrongly",
                divided(lines[-1]),
                None,
                None,
                abs(other - one) / (abs(one) or 1.0),
                f"{printed}, though what ranks reduce agrees",
                "reduce sums and counts, and divide once",
                text=text,
            )
        )
        return True

    def _metric(self, size: int, line: Line) -> bool:
        view, base = self.views[size], self.base()
        given = samples.evaluated(view)
        if given != samples.evaluated(base):
            return False  # of other samples, for example of as many batches on each rank
        listed = {number: sorted(found) for number, found in given.items()}
        options: list[tuple[ch.Change, str]] = [
            (data_changes.WholeSlices(), "all samples"),
            (data_changes.WholeParts(), "all samples"),
        ]
        if given:
            options = [(data_changes.WholeEvaluation(listed), "all samples in batches of one")]
        return any(self._metric_given(size, line, whole, how) for whole, how in options)

    def _metric_given(self, size: int, line: Line, whole: ch.Change, how: str) -> bool:
        """Try whether a metric agrees where every rank has all samples, and training the same."""
        view, base = self.views[size], self.base()
        runs = [self.changed(one, [whole]) for one in (base.world_size, size)]
        records = self.runner.run(runs)
        if any(record.error for record in records):
            return False
        one, other = (RunView(record) for record in records)
        pairs = (base, one), (view, other)
        if any(not compare(*each, self.rounding).same for each in pairs):
            return False
        before = _metric_values(base, view, line)
        after = _metric_values(one, other, line)
        if before is None or after is None or after[2] > 1e-5:
            return False
        self.experiments.append(
            Experiment("metric_averaged_wrongly", how, before[2], after[2], 1e-5)
        )
        self.findings.append(
            finding(
                "metric_averaged_wrongly",
                assigned(line),
                None,
                None,
                before[2],
                f"{before[0]:.6g} on {base.world_size} and {before[1]:.6g} on {size} ranks; with "
                f"{how} on every rank, both give {after[1]:.6g}",
                "reduce sums and counts, and divide once",
            )
        )
        return True


def _gain(before: Pair, after: Pair) -> float:
    """Return how much later or smaller a difference is."""
    one, other = before.difference.first, after.difference.first
    if other is None:
        replicas = comparisons.replicas(after.view) is not None
        return 1.0 if replicas and before.difference.same else float("inf")
    if one is None:
        return 0.0
    stages = comparisons.STAGES
    mine, theirs = (one.step, stages.index(one.stage)), (other.step, stages.index(other.stage))
    if theirs > mine:
        return 1e6 + 1e3 * theirs[0] + theirs[1]
    if theirs < mine:
        return 0.0
    return one.size / max(other.size, 1e-300)


def finding(
    cause: Any,
    line: Line | None,
    step: int | None,
    tensor: str | None,
    size: float | None,
    proof: str,
    remedy: str = "",
    legitimate: bool = False,
    text: str = "",
) -> Finding:
    """Return a finding at a line."""
    file = None if line is None else line.file
    number = None if line is None else line.line
    return Finding(cause, legitimate, file, number, step, tensor, size, proof, remedy, text=text)


def _listed(numbers: Sequence[int]) -> str:
    texts = [str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


# Collectives --------------------------------------------------------------------------------------


def _collectives(record: RunRecord) -> Finding:
    """Return the first collective that ranks do not share, with each rank's next call."""
    calls = [rank.calls for rank in record.ranks]
    shortest = min(len(listed) for listed in calls)
    longest = max(len(listed) for listed in calls)
    at = next(
        (
            place
            for place in range(shortest)
            if len({_signature(listed[place]) for listed in calls}) > 1
        ),
        shortest if longest > shortest else max(shortest - 1, 0),
    )
    by_call: dict[str, list[int]] = {}
    for rank, listed in enumerate(calls):
        text = "ends" if at >= len(listed) else _shown(listed[at])
        by_call.setdefault(text, []).append(rank)
    parts = [
        f"rank{'s' * (len(ranks) > 1)} {_listed(ranks)}: {text}" for text, ranks in by_call.items()
    ]
    fewest = min(by_call.values(), key=lambda ranks: (len(ranks), ranks[0] != 0))
    odd = calls[fewest[0]]
    others = [listed[at] for listed in calls if at < len(listed) and listed is not odd]
    different = [one for one in others if at >= len(odd) or _signature(one) != _signature(odd[at])]
    last = odd[-1].line if odd else None
    line = _parting(odd[at], different[0] if different else None) if at < len(odd) else last
    if at >= len(odd):  # what the others call is what this rank leaves out
        other = next((listed[at] for listed in calls if at < len(listed)), None)
        line = line if other is None or other.line is None else other.line
    step = max((rank.steps[-1].at + 1 for rank in record.ranks if rank.steps), default=0)
    return finding(
        "collectives_differ",
        line,
        step + 1,
        None,
        None,
        f"collective {at + 1} would hang on real ranks: {'; '.join(parts)}",
        "let every rank of the group make the same collectives in the same order",
    )


def _unused_line(view: RunView) -> Line | None:
    """Return the line that makes a parameter without a gradient on every rank, else of DDP."""
    for name in view.first.steps[0].grad_probes if view.first.steps else ():
        used = any(
            name in step.grad_probes and step.grad_probes[name] is not None
            for rank in view.record.ranks
            for step in rank.steps
        )
        if not used and view.first.creators.get(name) is not None:
            return view.first.creators[name]
    return view.first.wrappers[0] if view.first.wrappers else None


def _parting(odd: CallRecord, other: CallRecord | None) -> Line | None:
    """Return the line of the odd call in the innermost function that both calls are in."""
    found = odd.line
    if other is None:
        return found
    for (name, line), (theirs, where) in zip(odd.stack, other.stack, strict=False):
        if name != theirs:
            break
        found = line
        if line != where:
            break
    return found


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
    found: dict[Line, list[list[CallRecord]]] = {}
    for number, call in enumerate(view.first.calls):
        if call.backward or call.values is None or call.line is None:
            continue
        if call.name not in ("all_reduce", "reduce") or not call.dtype.startswith(("float", "bf")):
            continue
        listed = [rank.calls[number] for rank in view.record.ranks if number < len(rank.calls)]
        if len(listed) == view.world_size and all(one.values is not None for one in listed):
            found.setdefault(call.line, []).append(listed)
    return found


def _reduced(calls: Sequence[CallRecord]) -> np.ndarray:
    values = [call.values for call in calls if call.values is not None]
    return np.sum(values, axis=0)


def _metric_values(base: RunView, view: RunView, line: Line) -> tuple[float, float, float] | None:
    """Return a metric's means over ranks in two runs, the last that differs, and by how much."""
    mine, theirs = _small_calls(base).get(line, []), _small_calls(view).get(line, [])
    found: tuple[float, float, float] | None = None
    for one, other in zip(mine, theirs, strict=False):
        first, second = _reduced(one), _reduced(other)
        if first.shape != second.shape:
            continue
        summed = _apart(first, second)
        meant = _apart(first / base.world_size, second / view.world_size)
        size, counts = min((summed, (1, 1)), (meant, (base.world_size, view.world_size)))
        if found is None or size > found[2]:
            shown, other_shown = (part.reshape(-1)[0] for part in (first, second))
            found = float(shown / counts[0]), float(other_shown / counts[1]), size
    return found


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    scale = float(np.max(np.abs(one))) or 1.0
    return float(np.max(np.abs(one - other)) / scale)


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


def _differ(one: str, other: str) -> bool:
    """Return whether two printed numbers differ by more than their digits and rounding."""
    parts = [text.partition("e") for text in (one, other)]
    places = [int(exponent or 0) - len(digits.partition(".")[2]) for digits, _, exponent in parts]
    return abs(float(one) - float(other)) > 2 * 10.0 ** max(places) + 1e-3 * abs(float(one))


def _metric_that_differs(base: RunView, view: RunView) -> Line | None:
    found = ((line, _metric_values(base, view, line)) for line in _small_calls(view))
    return next((line for line, one in found if one is not None and one[2] > METRIC), None)
