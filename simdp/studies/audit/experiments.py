"""Audits one point of a scenario: checks, and experiments that explain differences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from simdp.results.audit import (
    LEGITIMATE,
    Check,
    Experiment,
    Finding,
    SampleRow,
    Status,
    TensorRow,
)
from simdp.scenario.overrides import Raw
from simdp.scenario.root import Scenario
from simdp.studies.audit.sides import Differences, compare, epoch_samples, num_compared, unit
from simdp.studies.audit.suspects import Suspect, changed, exact_changes, plain, suspects_of, valid

COARSE = 1e-4  # unit in the last place from which on a run in float64 is compared in any case

TOPICS = {
    "forward": "losses",
    "gradient": "gradients",
    "update": "weights",
    "buffer": "buffers",
}
"""Checks by stage."""


@dataclass
class PointAudit:
    """The audit of a point; fields as of `AuditReport`."""

    world_size: int
    steps: int
    batch: int
    num_samples: int
    seen_twice: int
    missed: int
    findings: list[Finding] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    tensors: list[TensorRow] = field(default_factory=list)
    ledger: list[SampleRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Laboratory:
    """Runs experiments on a point, each once.

    Parameters
    ----------
    raw : dict
        The scenario as plain data.
    base : Path
        Folder that relative paths start from.
    num_steps : int
        Steps to compare.
    before : Differences
        Without changes.
    """

    def __init__(self, raw: Raw, base: Path, num_steps: int, before: Differences) -> None:
        self._raw, self._base, self._num_steps = raw, base, num_steps
        self.before = before
        self.tried: list[Experiment] = []
        self._known: dict[frozenset[str], Differences | None] = {}

    def run(self, suspects: Sequence[Suspect]) -> Differences | None:
        """Compare without some options; None where the scenario would be invalid."""
        key = frozenset(suspect.words for suspect in suspects)
        if key in self._known:
            return self._known[key]
        scenario, differences = self.scenario(suspects), None
        if scenario is not None:
            differences = compare(scenario, min(self._num_steps, _steps_of(scenario)))
            self._note(suspects, differences)
        self._known[key] = differences
        return differences

    def scenario(self, suspects: Sequence[Suspect]) -> Scenario | None:
        """Return the scenario without some options; None if it would be invalid."""
        return valid(self._raw, [suspect.without for suspect in suspects], self._base)

    def _note(self, suspects: Sequence[Suspect], differences: Differences) -> None:
        first = self.before.first
        row = differences.worst
        if differences.vanishes and first is not None:
            row = differences.largest.get((first.stage, first.name), row)
        self.tried.append(
            Experiment(
                suspect=", ".join(dict.fromkeys(suspect.cause for suspect in suspects)),
                change=_words(suspects),
                before=first.size if first else 0.0,
                after=row.size if row else 0.0,
                bound=row.bound if row else 0.0,
            )
        )

    def explain(self, scenario: Scenario) -> list[tuple[Suspect, str]]:
        """Find the options without which the difference vanishes, each with its proof.

        First each alone; then all together, from which those are taken out that are not needed.
        Empty if nothing explains it.
        """
        listed = suspects_of(scenario, self.before)
        suspects = [suspect for suspect in listed if not suspect.is_last]
        for suspect in suspects:
            differences = self.run([suspect])
            if differences is not None and differences.vanishes:
                return [(suspect, _agreed([suspect], differences))]
        for group in (suspects, [*suspects, *self._more(suspects, listed)]):
            group = self._fitting(group)
            differences = self.run(group) if group else None
            if differences is not None and differences.vanishes:
                return self._smallest(group)
        return []

    def _more(self, suspects: Sequence[Suspect], listed: Sequence[Suspect]) -> list[Suspect]:
        """List options that act once others are undone, and those that are tried last."""
        without = self.scenario(suspects)
        known = {suspect.cause for suspect in suspects}
        lasts = [suspect for suspect in listed if suspect.is_last]
        further = [suspect for suspect in lasts if suspect.cause not in known]
        further += [suspect for suspect in lasts if self.run([_twin(suspect, listed)]) is None]
        if without is not None:
            again = suspects_of(without, self.before)
            further += [s for s in again if not s.is_last and s.cause not in known]
        return list({id(suspect): suspect for suspect in further}.values())

    def _fitting(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Leave out options whose changes make the scenario invalid."""
        kept: list[Suspect] = []
        for suspect in suspects:
            if self.scenario([*kept, suspect]) is not None:
                kept.append(suspect)
        return kept

    def _smallest(self, suspects: list[Suspect]) -> list[tuple[Suspect, str]]:
        """Take out options that are not needed; the rest has its proofs."""
        kept = list(suspects)
        needed: dict[str, str] = {}
        for suspect in suspects:
            others = [other for other in kept if other is not suspect]
            if any(other.hides(suspect) for other in others):  # they undo it as well
                continue
            differences = self.run(others) if others else self.before
            if differences is not None and differences.vanishes:
                kept = others
                continue
            left = differences.worst if differences is not None else None
            if left is not None:
                words = f"{suspect.words} left out, {short(left.size)}"
                needed[suspect.cause] = f"; with {words} is left"
        differences = self.run(kept)
        assert differences is not None, "the smallest set explains the difference"
        proof = _agreed(kept, differences)
        return [(suspect, proof + needed.get(suspect.cause, "")) for suspect in kept]


def _twin(suspect: Suspect, listed: Sequence[Suspect]) -> Suspect:
    """The suspect of the same cause that is not tried last; itself without one."""
    twins = (other for other in listed if other.cause == suspect.cause and other != suspect)
    return next(twins, suspect)


def _words(suspects: Sequence[Suspect]) -> str:
    return ", ".join(suspect.words for suspect in suspects)


def _steps_of(scenario: Scenario) -> int:
    return scenario.workload.num_steps(scenario.cluster.world_size, scenario.base)


def _agreed(suspects: Sequence[Suspect], differences: Differences) -> str:
    stages = ("gradient", "update", "forward")
    sizes = [differences.whole[stage].size for stage in stages if stage in differences.whole]
    to = f"to {within(sizes[0])}" if sizes and sizes[0] else "bit for bit"
    return f"with {_words(suspects)}, 1 and {differences.world_size} ranks agree {to}"


def short(value: float) -> str:
    """Write a size with one digit, as 4e-3."""
    if value == 0.0 or not np.isfinite(value):
        return "0" if value == 0.0 else "inf"
    digits, exponent = f"{value:.0e}".split("e")
    return f"{value:.2g}" if -2 <= int(exponent) <= 1 else f"{digits}e{int(exponent)}"


def within(value: float) -> str:
    """Write the power of ten that a size of rounding stays below, which other machines share."""
    if value == 0.0 or not np.isfinite(value):
        return short(value)
    return f"1e{int(np.ceil(np.log10(value)))}"


# A point ------------------------------------------------------------------------------------------


def audit_point(
    label: str,
    scenario: Scenario,
    file: str,
    places: Mapping[str, int],
    exact: bool,
    allow: Collection[str],
    max_steps: int | None,
) -> PointAudit:
    """Compare a point with one device, and explain the difference.

    Parameters
    ----------
    label : str
        The point's settings; empty without a sweep.
    scenario : Scenario
        The point, with several ranks and numerics.
    file : str
        The scenario's file.
    places : mapping of str to int
        Lines of its keys.
    exact, allow, max_steps
        As of `simdp.studies.audit.audit_scenario`.
    """
    raw = plain(scenario)
    if exact and (changes := exact_changes(scenario)):
        scenario = changed(raw, [changes], scenario.base)
        raw = plain(scenario)
    num_steps = num_compared(scenario, max_steps)
    seen = compare(scenario, num_steps)
    twice, missed = _epoch(scenario)
    audit = PointAudit(
        world_size=seen.world_size,
        steps=seen.steps,
        batch=seen.batch,
        num_samples=scenario.workload.num_samples(scenario.base),
        seen_twice=twice,
        missed=missed,
        ledger=[replace(row, point=label) for row in seen.ledger],
        tensors=[replace(row, point=label) for row in seen.rows],
    )
    _note(audit, scenario, seen, max_steps)
    judge = _Judge(audit, label, file, places, allow)
    shown = judge.explain(raw, scenario, seen, num_steps)
    judge.samples(scenario)
    judge.checks(shown, seen)
    return audit


def _note(audit: PointAudit, scenario: Scenario, seen: Differences, max_steps: int | None) -> None:
    total = _steps_of(scenario)
    if seen.steps < total and max_steps is None:
        audit.notes.append(f"the first {seen.steps} of {total} steps are compared (--max-steps)")
    if scenario.workload.lr_scaling != "none":
        audit.notes.append(
            f"one device has the learning rate that lr_scaling gives {seen.world_size} ranks"
        )
    if seen.diverged is not None:
        audit.notes.append(f"from step {seen.diverged} on the loss of both sides is not finite")


def _epoch(scenario: Scenario) -> tuple[int, int]:
    """Samples of the first epoch that are seen twice, and that are missed."""
    total = scenario.workload.num_samples(scenario.base)
    if not scenario.workload.dataset.has_samples:
        return 0, 0
    counts = np.bincount(np.fromiter(epoch_samples(scenario), dtype=np.int64), minlength=total)
    return int((counts > 1).sum()), int((counts == 0).sum())


class _Judge:
    """Collects the findings and checks of a point."""

    def __init__(
        self,
        audit: PointAudit,
        label: str,
        file: str,
        places: Mapping[str, int],
        allow: Collection[str],
    ) -> None:
        self._audit, self._label, self._allow = audit, label, allow
        self._file, self._places = file, places

    def explain(
        self, raw: Raw, scenario: Scenario, seen: Differences, num_steps: int
    ) -> Differences:
        """Add the findings of a difference; return the comparison that shows it."""
        changes, base = exact_changes(scenario), scenario.base
        if changes and (unit(scenario) > COARSE or not seen.vanishes):
            exact = changed(raw, [changes], base)
            rounded = compare(exact, min(num_steps, _steps_of(exact)))
            if rounded.vanishes:
                if not seen.vanishes:
                    self._rounding(scenario, seen, rounded, changes)
                return seen
            raw, scenario, seen = plain(exact), exact, rounded  # without rounding
            self._audit.notes.append("differences and experiments are in float64")
            self._audit.tensors = [replace(row, point=self._label) for row in seen.rows]
        if seen.vanishes:
            return seen
        laboratory = Laboratory(raw, base, num_steps, seen)
        proofs = laboratory.explain(scenario)
        self._audit.experiments += [replace(e, point=self._label) for e in laboratory.tried]
        for suspect, proof in proofs:
            self._add(suspect, seen, proof)
        if not proofs:
            tried = "; ".join(
                f"{experiment.change}: {short(experiment.after)} is left"
                for experiment in laboratory.tried
            )
            text = "no option of the scenario explains the difference"
            unknown = Suspect("unexplained", "", text, {})
            self._add(unknown, seen, f"tried: {tried}" if tried else "nothing to be undone")
        return seen

    def _rounding(
        self, scenario: Scenario, seen: Differences, rounded: Differences, changes: Raw
    ) -> None:
        workload = scenario.workload
        key = "workload.precision" if "workload.precision" in changes else "workload.dtype"
        low = workload.precision.low or workload.dtype
        suspect = Suspect("rounding", key, f"rounding of {low}", changes)
        first = seen.first
        if first is not None and (row := rounded.largest.get((first.stage, first.name))):
            sizes = first.size, row.size, row.bound
            made = Experiment("rounding", suspect.words, *sizes, None, self._label)
            self._audit.experiments.append(made)
        self._add(suspect, seen, _agreed([suspect], rounded))

    def _add(self, suspect: Suspect, seen: Differences, proof: str) -> None:
        first = seen.first
        topic = TOPICS[first.stage] if first is not None else "replicas"
        legitimate = suspect.cause in LEGITIMATE
        self._audit.findings.append(
            Finding(
                cause=suspect.cause,
                legitimate=legitimate,
                file=self._file if suspect.key else None,
                line=self._line(suspect.key),
                step=first.step if first is not None else seen.replicas_differ,
                tensor=first.name if first is not None else None,
                size=first.size if first is not None else None,
                proof=proof,
                remedy=f"set {suspect.words}" if suspect.words and not legitimate else "",
                allowed=suspect.cause in self._allow,
                text=suspect.text,
                topic=topic,
                point=self._label,
            )
        )

    def _line(self, key: str) -> int | None:
        """Line of a key: in the sweep, or of the nearest key around it."""
        parts = key.split(".")
        for prefix in ("sweep.", ""):
            for length in range(len(parts), 0, -1):
                line_number = self._places.get(prefix + ".".join(parts[:length]))
                if line_number is not None:
                    return line_number
        return None

    def samples(self, scenario: Scenario) -> None:
        """Add the check of the samples, and the finding of repeated ones."""
        audit = self._audit
        if not scenario.workload.dataset.has_samples:
            return
        text = f"{audit.seen_twice:,} of {audit.num_samples:,} seen twice in an epoch, "
        text += f"{audit.missed:,} missed"
        if not (audit.seen_twice or audit.missed):
            text = f"each of {audit.num_samples:,} once in an epoch"
        elif audit.missed and scenario.workload.drop_last:
            text += " (drop_last)"
        status: Status = "ok"
        if audit.seen_twice:
            status = "allowed"
            audit.findings.append(
                Finding(
                    cause="sampler_padding_duplicates",
                    legitimate=True,
                    file=self._file,
                    line=self._line("workload.microbatch"),
                    step=None,
                    tensor=None,
                    size=None,
                    proof=f"counted over the first epoch: {audit.seen_twice} samples",
                    remedy="set workload.drop_last: true",
                    allowed="sampler_padding_duplicates" in self._allow,
                    text="the sampler repeats samples, to give every rank as many",
                    topic="samples",
                    point=self._label,
                )
            )
        audit.checks.append(Check("samples", status, text, self._label))

    def checks(self, shown: Differences, written: Differences) -> None:
        """Add a check for each stage, and for the replicas."""
        findings = [finding for finding in self._audit.findings if finding.topic != "samples"]
        worse: Status = "differ" if any(finding.wrong for finding in findings) else "allowed"
        for stage, topic in TOPICS.items():
            largest = shown.whole.get(stage)
            if largest is None:
                continue
            rows = [row for row in shown.rows if row.stage == stage]
            if rows:
                first = min(rows, key=lambda row: (row.step, -row.size))
                text = (
                    f"first at step {first.step}, {first.name}: {short(first.size)} relative "
                    f"(rounding explains {within(first.bound)})"
                )
                self._audit.checks.append(Check(topic, worse, text, self._label))
            else:
                text = f"equal to {within(largest.size)}"
                text += f" (rounding explains {within(largest.bound)})" if largest.size else ""
                self._audit.checks.append(Check(topic, "ok", text, self._label))
        if written.replicas_differ is None:
            replicas = Check("replicas", "ok", "identical after every step", self._label)
        else:
            text = f"differ after step {written.replicas_differ}"
            replicas = Check("replicas", worse, text, self._label)
        self._audit.checks.append(replicas)
