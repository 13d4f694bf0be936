"""Stops a script at a checkpoint, resumes it, and compares it with the run that went on."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simdp.errors import ScenarioError
from simdp.results.audit import Cause, Experiment, Finding
from simdp.torch.audit import changes as ch
from simdp.torch.audit import data_changes, samples
from simdp.torch.audit.comparisons import Difference, RunView, compare
from simdp.torch.audit.investigation import Investigation, finding
from simdp.torch.audit.lines import Line, last_of_block
from simdp.torch.audit.records import RunRecord, ranks_counted
from simdp.torch.audit.runs import PREFIX, Run, exists
from simdp.torch.audit.suspects import Suspect

CHECKPOINT = "{checkpoint}"
"""Stands for the path in arguments."""


@dataclass
class Resumed:
    """Result of a resumed run."""

    same: bool
    step: int | None  # first that differs, from 1
    text: str


class Resuming:
    """Tries to resume a script.

    Parameters
    ----------
    investigation : Investigation
        Its runs as the script is written.
    save, resume : sequence of str
        Arguments with ``{checkpoint}`` in place of the path.
    at_step : int or None
        Step after which it is stopped; None: at its first checkpoint.
    sizes : tuple of int
        Ranks before and after.
    """

    def __init__(
        self,
        investigation: Investigation,
        save: Sequence[str],
        resume: Sequence[str],
        at_step: int | None,
        sizes: tuple[int, int],
    ) -> None:
        self.investigation, self.save, self.resume = investigation, save, resume
        self.at_step, self.sizes = at_step, sizes
        self.skipped: Mapping[int, int] = {}  # steps of each optimizer before resuming

    def check(self) -> Resumed:
        """Run it through, stopped, and resumed; add what is found.

        Raises
        ------
        ScenarioError
            If no checkpoint is written, or the resumed run fails.
        """
        inquiry = self.investigation
        for suspect in inquiry.repairs:  # else the checkpoint lacks what differs between ranks
            inquiry.always += suspect.changes()[1]
            inquiry.notes.append(f"resuming was compared {suspect.change}")
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            return self._check(Path(folder))

    def _run(self, size: int, path: Path, given: Sequence[str], **more: Any) -> Run:
        inquiry = self.investigation
        template = inquiry.runs[size]
        extra = tuple(part.replace(CHECKPOINT, str(path)) for part in given)
        return inquiry.changed(
            size, more.pop("changes", []), arguments=template.arguments + extra, **more
        )

    def _check(self, folder: Path) -> Resumed:
        inquiry, (before, after) = self.investigation, self.sizes
        path = folder / "stopped"
        (stopped,) = inquiry.runner.run(
            [self._run(before, path, self.save, stop_at=(self.at_step or 1, path))]
        )
        if not exists(path):
            _check_run("--save-arg", stopped)
            raise ScenarioError(
                f"--save-arg: no checkpoint was written on {before} ranks within "
                f"{len(stopped.ranks[0].steps)} steps; give an argument that writes "
                f"{CHECKPOINT}, and an interval below --max-steps."
            )
        done = stopped.stopped_at or RunView(stopped).count
        if stopped.stopped_at is None and self.at_step and self.at_step < done:
            done = self._shortened(before, path, self.at_step, done)
        most = inquiry.runs[before].max_steps
        through, resumed = inquiry.runner.run(
            [
                self._run(before, folder / "through", self.save, state_at=done),
                self._resumed(after, path, most - done),
            ]
        )
        for option, record in (("--save-arg", through), ("--resume-arg", resumed)):
            _check_run(option, record)
        view = RunView(through)
        self.skipped = Counter(one.optimizer for one in view.first.steps if one.at < done)
        other = RunView(resumed, done, self.skipped)
        return self._compared(view, other, done, path, most - done, folder)

    def _shortened(self, size: int, path: Path, at_step: int, done: int) -> int:
        """Run a script that writes its checkpoint at its end only, with fewer steps.

        The argument that is the number of steps is replaced. Returns the steps done.
        """
        arguments = self.investigation.runs[size].arguments
        places = [
            place
            for place, (flag, value) in enumerate(pairwise(arguments))
            if flag.startswith("-") and value == str(done)
        ]
        if not places:
            return done
        shorter = list(arguments)
        shorter[places[0] + 1] = str(at_step)
        extra = [part.replace(CHECKPOINT, str(path)) for part in self.save]
        run = self.investigation.changed(size, [], arguments=(*shorter, *extra))
        (record,) = self.investigation.runner.run([run])
        if record.error or RunView(record).count != at_step:
            return done
        flag = arguments[places[0]]
        self.investigation.notes.append(
            f"the checkpoint is written at the end only: it was made with {flag} {at_step}"
        )
        return at_step

    def _resumed(self, size: int, path: Path, steps: int, changes: Sequence[ch.Change] = ()) -> Run:
        return self._run(size, path, self.resume, max_steps=max(steps, 1), changes=list(changes))

    def _compared(
        self, view: RunView, other: RunView, done: int, path: Path, steps: int, folder: Path
    ) -> Resumed:
        inquiry = self.investigation
        if other.count <= done:
            return Resumed(
                True, None, f"nothing left to compare: stopped after step {done}, its last"
            )
        difference = self._difference(view, other)
        compared = min(view.count, other.count) - done
        moved = self._moved(view, other, done)
        if difference.same and moved is None:
            text = (
                f"stopped after step {done}; {compared} steps after it are those of the run that "
                "went on"
            )
            return Resumed(True, None, text)
        chosen: list[Suspect] = []
        current, now = difference, other
        for _ in range(5):
            if current.same and (chosen or self._moved(view, now, done) is None):
                break
            for suspect in self._suspects(view, now, done, folder):
                if any(one.change == suspect.change for one in chosen):
                    continue
                parts = [change for one in (*chosen, suspect) for change in one.changes()[1]]
                (record,) = inquiry.runner.run([self._resumed(self.sizes[1], path, steps, parts)])
                if record.error:
                    continue
                again = RunView(record, done, self.skipped)
                found = self._difference(view, again)
                self._record(suspect, current, found)
                if found.same or _later(current, found):
                    chosen, current, now = [*chosen, suspect], found, again
                    break
            else:
                break
        first = difference.first
        step = first.step if first is not None else (moved or done + 1)
        for suspect in chosen:
            inquiry.findings.append(self._named(suspect, difference, current, step))
        if not current.same:
            left = current.first
            assert left is not None
            inquiry.findings.append(
                finding(
                    "unexplained",
                    _load_line(other),
                    left.step,
                    left.name,
                    left.size,
                    f"after resuming, {left.stage} of {left.name} differs by {left.size:.0e} "
                    f"(rounding explains {left.bound:.0e}); no experiment removed it",
                )
            )
        named = "no experiment explains it" if moved is None else "it has other samples"
        named = chosen[0].evidence if chosen else named
        return Resumed(False, step, f"step {step} differs from the run that went on: {named}")

    def _difference(self, view: RunView, other: RunView) -> Difference:
        return compare(view, other, self.investigation.rounding)

    def _moved(self, view: RunView, other: RunView, done: int) -> int | None:
        """Return the first step, from 1, with other samples; None if all are the same."""
        for step in range(done, min(view.count, other.count)):
            if view.samples(step) != other.samples(step):
                return step + 1
        return None

    def _record(self, suspect: Suspect, before: Difference, after: Difference) -> None:
        row = before.first
        sizes = (before.size, after.size) if row is None else (row.size, after.of(row))
        bound = after.bound if row is None else row.bound
        self.investigation.experiments.append(
            Experiment(suspect.cause, suspect.change, *sizes, bound)
        )

    def _named(self, suspect: Suspect, before: Difference, after: Difference, step: int) -> Finding:
        row = before.first
        proof = f"{suspect.change}, the resumed run agrees to {after.size:.0e}"
        return finding(
            suspect.cause,
            suspect.line,
            step,
            None if row is None else row.name,
            before.size if row is None else row.size,
            proof,
            suspect.remedy,
            False,
            suspect.evidence,
        )

    # Suspects -------------------------------------------------------------------------------------

    def _suspects(self, view: RunView, other: RunView, done: int, folder: Path) -> list[Suspect]:
        found: list[Suspect] = []
        moved = self._moved(view, other, done)
        if moved is not None:
            found += self._sampler(view, other, moved, folder)
        states = view.record.extra.get("states", {})
        found += _rates(view, other, self.skipped)
        found += _generators(view, other, done, states)
        found += _optimizers(view, other, done, states)
        return found

    def _sampler(self, view: RunView, other: RunView, moved: int, folder: Path) -> list[Suspect]:
        tied = data_changes.tied(view, other)
        changes: list[ch.Change] = []
        if tied is not None:
            changes = [tied]
        elif self.sizes[0] == self.sizes[1]:
            changes = self._contents(view, other, folder)
        if not changes:
            return []
        epoch = _epochs_differ(view, other, moved)
        evidence = f"step {moved} has other samples: {_begins(view, other, moved)}"
        remedy = "save the position in the epoch, and skip as many batches after resuming"
        if epoch is not None:
            evidence = f"step {moved} has other samples: {epoch}"
            remedy = "save the epoch, and call set_epoch with it after resuming"
        line = samples.line_of_loop(other)
        loads = [where for _, where in other.first.loads if where is not None]
        if loads and (epoch is not None or line is None):
            line = last_of_block(loads[-1])
        return [
            _suspect(
                "resume_sampler_position",
                "given the samples of the run that went on",
                changes,
                line,
                evidence,
                remedy,
            )
        ]

    def _contents(self, view: RunView, other: RunView, folder: Path) -> list[ch.Change]:
        """Give the resumed run the batches of a loader without indices, else the model's inputs."""
        kept, inputs = data_changes.KeptBatches(), data_changes.Inputs()
        run = self._run(
            self.sizes[0],
            folder / "kept",
            self.save,
            changes=[kept, inputs],
            keep={"batches": lambda: kept.kept, "inputs": lambda: inputs.kept},
        )
        (record,) = self.investigation.runner.run([run])
        found = data_changes.tied_batches(view, other, record.extra.get("batches", {}))
        if found is None:
            found, _ = data_changes.tied_inputs(view, other, record.extra.get("inputs", {}))
        return [] if found is None else [found]


def _check_run(option: str, record: RunRecord) -> None:
    """Raise if the script fails with the arguments of an option."""
    if record.error:
        raise ScenarioError(
            f"{option}: the script fails on {ranks_counted(record.world_size)}: {record.reason}"
        )


def _suspect(
    cause: Cause,
    change: str,
    changes: Sequence[ch.Change],
    line: Line | None,
    evidence: str,
    remedy: str,
) -> Suspect:
    """Return a suspect of the resumed run; the one that went on stays as it is."""
    return Suspect(cause, False, change, lambda: ([], changes), line, evidence, remedy)


def _begins(view: RunView, other: RunView, moved: int) -> str:
    """Describe the first batch that trains in the resumed run."""
    first = other.first
    for backward in first.backwards:
        if backward.batch is not None:
            place = first.batches[backward.batch].place
            return f"the loader starts at {f'batch {place}' if place else 'sample 0 of its epoch'}"
    rows = other.samples(moved - 1)
    same = next((step + 1 for step in range(view.count) if view.samples(step) == rows), None)
    return "rows of no other step" if same is None else f"those of step {same}"


def _epochs_differ(view: RunView, other: RunView, moved: int) -> str | None:
    """Describe the epochs given to ``set_epoch``, if they differ in the same step."""
    numbers = []
    for one in (view, other):
        passes = one.backwards(moved - 1)[0]
        if not passes or passes[0][1].batch is None:
            return None
        batch = one.first.batches[passes[0][1].batch]
        given = one.first.loaders[batch.loader].set_epochs
        if batch.epoch >= len(given):
            return None
        numbers.append(given[batch.epoch])
    if numbers[0] == numbers[1]:
        return None
    return f"the sampler's epoch is {numbers[1]} in place of {numbers[0]}"


def _load_line(view: RunView) -> Line | None:
    """Return the line that loads the last state; of the checkpoint's file if it loads none."""
    files = [line for kind, line in view.first.loads if kind == "file" and line is not None]
    states = [line for kind, line in view.first.loads if kind != "file" and line is not None]
    return next(iter([*states[::-1], *files]), None)


def _missing(view: RunView, through: RunView, kind: str) -> tuple[Line | None, str]:
    """Return the line that leaves out a state, and how."""
    loaded = [line for name, line in view.first.loads if name == kind]
    saved = [line for name, line in through.first.saves if name == kind]
    if loaded:
        return loaded[0], "is loaded, but has no effect"
    return _load_line(view), "is not loaded" if saved else "is not in the checkpoint"


def _after(view: RunView, done: int) -> int | None:
    """Return the place of the first optimizer's first step after those that are done."""
    steps = enumerate(view.first.steps)
    return next((place for place, one in steps if not one.optimizer and one.at >= done), None)


def _optimizers(
    view: RunView, other: RunView, done: int, states: dict[tuple[int, int], Any]
) -> list[Suspect]:
    place = _after(view, done)
    if place is None or not other.first.steps or not states:
        return []
    mine, theirs = view.first.steps[place].state, other.first.steps[0].state
    same = mine.keys() == theirs.keys() and all(
        np.array_equal(mine[name], theirs[name], equal_nan=True) for name in mine
    )
    line, how = _missing(other, view, "optimizer")
    if same:  # on rank 0, whose state alone is recorded
        if view.world_size == 1:
            return []
        how = "of other ranks than 0 is not restored"
        saved = [where for name, where in view.first.saves if name == "optimizer"]
        line = next((where for where in saved if where is not None), line)
    return [
        _suspect(
            "resume_optimizer_state",
            "with the optimizer's state restored",
            [ch.RestoredOptimizers(states)],
            line,
            f"the optimizer's state {how}",
            "save optimizer.state_dict() and load it after the optimizer is made",
        )
    ]


def _rates(view: RunView, other: RunView, skipped: Mapping[int, int]) -> list[Suspect]:
    rates = {
        (key[0], key[1] - skipped.get(key[0], 0)): view.first.steps[place].settings
        for place, key in enumerate(view.keys)
        if key[1] >= skipped.get(key[0], 0)
    }
    wrong = [
        step
        for step in other.first.steps
        if (step.optimizer, step.number) in rates
        and not np.allclose(step.lr, _lr(rates[step.optimizer, step.number]), rtol=1e-9)
    ]
    if not wrong:
        return []
    line, how = _missing(other, view, "scheduler")
    step = wrong[0]
    rate = _lr(rates[step.optimizer, step.number])
    return [
        _suspect(
            "resume_optimizer_state",
            "with the learning rates of the run that went on",
            [ch.ImposedRates(rates)],
            line,
            f"the schedule {how}: learning rate {step.lr[0]:.4g} in place of {rate[0]:.4g} at step "
            f"{step.at + other.skip + 1}",
            "save scheduler.state_dict() and load it",
        )
    ]


def _lr(settings: Sequence[dict[str, Any]]) -> list[float]:
    return [float(group["lr"]) for group in settings if "lr" in group]


def _generators(
    view: RunView, other: RunView, done: int, states: dict[tuple[int, int], Any]
) -> list[Suspect]:
    place = _after(view, done)
    if place is None or not other.first.steps or not states:
        return []
    mine, theirs = view.first.steps[place], other.first.steps[0]
    own = mine.own_generators != theirs.own_generators
    if mine.generators == theirs.generators and not own:
        return []
    if not (own or view.first.dropouts or view.first.draws):
        return []
    line, _ = _missing(other, view, "generators")
    return [
        _suspect(
            "resume_optimizer_state",
            "with the random generators restored",
            [ch.RestoredGenerators(states)],
            line,
            "the script's own generators start again"
            if own
            else "the random generators start again, so that dropout draws other numbers",
            "save get_state() of the generators, and set it after loading"
            if own
            else "save torch.get_rng_state() of each rank, and set it after loading",
        )
    ]


def _later(before: Difference, after: Difference) -> bool:
    """Return whether what is left begins later, or is a tenth at most."""
    one, other = before.first, after.first
    if one is None or other is None:
        return other is None
    return other.step > one.step or (other.step == one.step and other.size < 0.1 * one.size)
