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
from simdp.torch.audit import changes as ch
from simdp.torch.audit import data_changes, samples
from simdp.torch.audit.comparisons import Difference, RunView, compare
from simdp.torch.audit.investigation import Investigation, finding, named
from simdp.torch.audit.lines import Line, last_of_block
from simdp.torch.audit.records import RunRecord, StepRecord, ranks_counted
from simdp.torch.audit.runs import PREFIX, Run, exists
from simdp.torch.audit.suspects import Suspect, experiment

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

    def _run(
        self,
        size: int,
        path: Path,
        options: Sequence[str],
        changes: Sequence[ch.Change] = (),
        **fields: Any,
    ) -> Run:
        arguments = self.investigation.runs[size].arguments
        arguments += tuple(part.replace(CHECKPOINT, str(path)) for part in options)
        return self.investigation.changed(size, changes, arguments=arguments, **fields)

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
        self.skipped = Counter(step.optimizer for step in view.first.steps if step.at < done)
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
        return self._run(size, path, self.resume, changes, max_steps=max(steps, 1))

    def _compared(
        self, view: RunView, other: RunView, done: int, path: Path, steps: int, folder: Path
    ) -> Resumed:
        inquiry = self.investigation
        if other.count <= done:
            return Resumed(
                True, None, f"nothing left to compare: stopped after step {done}, its last"
            )
        rounding = inquiry.rounding
        difference = compare(view, other, rounding)
        compared = min(view.count, other.count) - done
        moved = _moved(view, other, done)
        if difference.same and moved is None:
            text = (
                f"stopped after step {done}; {compared} steps after it are those of the run that "
                "went on"
            )
            return Resumed(True, None, text)
        chosen: list[Suspect] = []
        current, now = difference, other
        for _ in range(5):
            if current.same and (chosen or _moved(view, now, done) is None):
                break
            for suspect in self._suspects(view, now, done, folder):
                if any(suspect.change == earlier.change for earlier in chosen):
                    continue
                changes = [change for part in (*chosen, suspect) for change in part.changes()[1]]
                (record,) = inquiry.runner.run([self._resumed(self.sizes[1], path, steps, changes)])
                if record.error:
                    continue
                again = RunView(record, done, self.skipped)
                after = compare(view, again, rounding)
                inquiry.experiments.append(experiment(suspect, current, after))
                if after.same or _later(current, after):
                    chosen, current, now = [*chosen, suspect], after, again
                    break
            else:
                break
        first, left = difference.first, current.first
        step = first.step if first is not None else (moved or done + 1)
        tensor, size = (None, difference.size) if first is None else (first.name, first.size)
        for suspect in chosen:
            proof = f"{suspect.change}, the resumed run agrees to {current.size:.0e}"
            inquiry.findings.append(named(suspect, proof, step=step, tensor=tensor, size=size))
        if left is not None:
            inquiry.findings.append(
                finding(
                    "unexplained",
                    _load_line(other),
                    f"after resuming, {left.stage} of {left.name} differs by {left.size:.0e} "
                    f"(rounding explains {left.bound:.0e}); no experiment removed it",
                    step=left.step,
                    tensor=left.name,
                    size=left.size,
                )
            )
        reason = "no experiment explains it" if moved is None else "it has other samples"
        reason = chosen[0].evidence if chosen else reason
        return Resumed(False, step, f"step {step} differs from the run that went on: {reason}")

    # Suspects -------------------------------------------------------------------------------------

    def _suspects(self, view: RunView, other: RunView, done: int, folder: Path) -> list[Suspect]:
        moved = _moved(view, other, done)
        sampler = [] if moved is None else self._sampler(view, other, moved, folder)
        rates = _rates(view, other, self.skipped)
        states = view.record.extra.get("states", {})
        steps = (step for step in view.first.steps if not step.optimizer and step.at >= done)
        step = next(steps, None)
        if step is None or not other.first.steps or not states:
            return [*sampler, *rates]
        both = step, other.first.steps[0]
        stored = _generators(view, other, both, states), _optimizers(view, other, both, states)
        return [*sampler, *rates, *stored[0], *stored[1]]

    def _sampler(self, view: RunView, other: RunView, moved: int, folder: Path) -> list[Suspect]:
        tie = data_changes.tied(view, other)
        if tie is None and self.sizes[0] == self.sizes[1]:
            tie = self._contents(view, other, folder)
        if tie is None:
            return []
        changes = [tie]
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
            Suspect(
                "resume_sampler_position",
                False,
                "given the samples of the run that went on",
                lambda: ([], changes),
                line,
                evidence,
                remedy,
            )
        ]

    def _contents(self, view: RunView, other: RunView, folder: Path) -> ch.Change | None:
        """Give the resumed run the batches of a loader without indices, else the model's inputs."""
        batches, inputs = data_changes.KeptBatches(), data_changes.Inputs()
        keep = {"batches": lambda: batches.kept, "inputs": lambda: inputs.kept}
        path, changes = folder / "kept", (batches, inputs)
        run = self._run(self.sizes[0], path, self.save, changes, keep=keep)
        (record,) = self.investigation.runner.run([run])
        tie = data_changes.tied_batches(view, other, record.extra.get("batches", {}))
        if tie is None:
            tie, _ = data_changes.tied_inputs(view, other, record.extra.get("inputs", {}))
        return tie


def _moved(view: RunView, other: RunView, done: int) -> int | None:
    """Return the first step, from 1, with other samples; None if all are the same."""
    steps = range(done, min(view.count, other.count))
    return next((step + 1 for step in steps if view.samples(step) != other.samples(step)), None)


def _check_run(option: str, record: RunRecord) -> None:
    """Raise if the script fails with the arguments of an option."""
    if record.error:
        raise ScenarioError(
            f"{option}: the script fails on {ranks_counted(record.world_size)}: {record.reason}"
        )


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
    for run in (view, other):
        passes = run.backwards(moved - 1)[0]
        if not passes or passes[0][1].batch is None:
            return None
        batch = run.first.batches[passes[0][1].batch]
        epochs = run.first.loaders[batch.loader].set_epochs
        if batch.epoch >= len(epochs):
            return None
        numbers.append(epochs[batch.epoch])
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


Both = tuple[StepRecord, StepRecord]
"""The first optimizer's first step after those that are done, and that of the resumed run."""

States = dict[tuple[int, int], Any]
"""State of each rank's optimizers, and of its generators."""


def _optimizers(view: RunView, other: RunView, both: Both, states: States) -> list[Suspect]:
    state, resumed = both[0].state, both[1].state
    same = state.keys() == resumed.keys() and all(
        np.array_equal(state[name], resumed[name], equal_nan=True) for name in state
    )
    line, how = _missing(other, view, "optimizer")
    if same:  # on rank 0, whose state alone is recorded
        if view.world_size == 1:
            return []
        how = "of other ranks than 0 is not restored"
        saved = [where for name, where in view.first.saves if name == "optimizer"]
        line = next((where for where in saved if where is not None), line)
    return [
        Suspect(
            "resume_optimizer_state",
            False,
            "with the optimizer's state restored",
            lambda: ([], [ch.RestoredOptimizers(states)]),
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
        Suspect(
            "resume_optimizer_state",
            False,
            "with the learning rates of the run that went on",
            lambda: ([], [ch.ImposedRates(rates)]),
            line,
            f"the schedule {how}: learning rate {step.lr[0]:.4g} in place of {rate[0]:.4g} at step "
            f"{step.at + other.skip + 1}",
            "save scheduler.state_dict() and load it",
        )
    ]


def _lr(settings: Sequence[dict[str, Any]]) -> list[float]:
    return [float(group["lr"]) for group in settings if "lr" in group]


def _generators(view: RunView, other: RunView, both: Both, states: States) -> list[Suspect]:
    step, resumed = both
    own = step.own_generators != resumed.own_generators
    if step.generators == resumed.generators and not own:
        return []
    if not (own or view.first.dropouts or view.first.draws):
        return []
    line, _ = _missing(other, view, "generators")
    return [
        Suspect(
            "resume_optimizer_state",
            False,
            "with the random generators restored",
            lambda: ([], [ch.RestoredGenerators(states)]),
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
    row, left = before.first, after.first
    if row is None or left is None:
        return left is None
    return left.step > row.step or (left.step == row.step and left.size < 0.1 * row.size)
