"""Typed results of an audit: how runs on several ranks differ, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from simdp.results.result import Inline, as_json

Cause = Literal[
    "collectives_differ",
    "unused_parameters",
    "different_seed_split",
    "same_data_on_every_rank",
    "set_epoch_missing",
    "unsynchronised_parameters",
    "bypassed_ddp",
    "loss_mean_of_rank_means",
    "loss_sum_not_averaged",
    "accumulation_not_divided",
    "clip_before_average",
    "schedule_steps_with_world_size",
    "resume_sampler_position",
    "resume_optimizer_state",
    "metric_averaged_wrongly",
    "unexplained",
]
"""Causes of a wrong result."""

LegitimateCause = Literal[
    "batchnorm_local_statistics",
    "dropout_streams",
    "sampler_padding_duplicates",
    "last_batch_smaller",
    "rounding",
    "compressed_gradients",
    "stale_gradients",
    "local_updates",
    "dropped_ranks",
]
"""Causes of a difference that data parallelism has by design; the last four are of scenarios."""

CAUSES: dict[str, str] = {
    "collectives_differ": "ranks call other collectives, or in another order",
    "unused_parameters": "the loss of a rank does not depend on some parameters",
    "different_seed_split": "ranks split the data by different seeds",
    "same_data_on_every_rank": "every rank reads the same samples",
    "set_epoch_missing": "set_epoch is never called, so that all epochs have one order",
    "unsynchronised_parameters": "ranks have different parameters or buffers",
    "bypassed_ddp": "gradients are not reduced over the ranks",
    "loss_mean_of_rank_means": "the loss is a mean of each rank's mean",
    "loss_sum_not_averaged": "gradients are divided as means, or not, but the loss is no mean",
    "accumulation_not_divided": "micro-batches are added, not averaged",
    "clip_before_average": "each rank clips its own gradients",
    "schedule_steps_with_world_size": "the schedule counts other steps with more ranks",
    "resume_sampler_position": "after resuming, the sampler starts elsewhere",
    "resume_optimizer_state": "after resuming, optimizer, schedule, scaler or generators differ",
    "metric_averaged_wrongly": "a metric is not the mean over all samples",
    "unexplained": "no experiment explains the difference",
    "batchnorm_local_statistics": "batch norm normalises each rank's samples alone",
    "dropout_streams": "dropout draws by rank, not by sample",
    "sampler_padding_duplicates": "the sampler repeats samples, to give every rank as many",
    "last_batch_smaller": "the last batch of an epoch is smaller, or of fewer ranks",
    "rounding": "rounding, which vanishes in float64",
    "compressed_gradients": "gradients are compressed",
    "stale_gradients": "gradients are of older weights",
    "local_updates": "ranks update their own weights, and average them later",
    "dropped_ranks": "gradients of late ranks are dropped",
}
"""Every cause, in a sentence."""

LEGITIMATE: frozenset[str] = frozenset(get_args(LegitimateCause))
"""Causes that are legitimate without `--allow`."""

Status = Literal["ok", "differ", "allowed", "not checked"]
"""Outcome of a check; allowed: it differs by legitimate or allowed causes only."""


@dataclass(frozen=True)
class Finding:
    """One cause of a difference between runs."""

    cause: Cause | LegitimateCause
    legitimate: bool  # whether data parallelism differs so by design
    file: str | None  # of the line; None where no line causes it
    line: int | None
    step: int | None  # first optimizer step that differs, from 1
    tensor: str | None  # first tensor that differs
    size: float | None  # relative difference of that tensor, in the 2-norm
    proof: str  # the experiment: what was changed, and the difference that was left
    remedy: str = ""
    allowed: bool = False  # by --allow
    text: str = ""  # the cause in a sentence with figures; empty: that of `CAUSES`
    topic: str = ""  # of the check that shows it; empty: by the cause
    point: str = ""  # of a scenario's sweep

    @property
    def wrong(self) -> bool:
        """Whether it is neither legitimate nor allowed."""
        return not (self.legitimate or self.allowed)


@dataclass(frozen=True)
class Check:
    """One line of the summary: a topic in the order of cause, and its outcome."""

    topic: str  # samples, initial weights, forward, gradients, clipping, update, ...
    status: Status
    text: str  # a sentence with figures
    point: str = ""  # of a scenario's sweep


@dataclass(frozen=True)
class Experiment:
    """One run with a suspect neutralised."""

    suspect: str  # cause
    change: str  # what was changed
    before: float  # relative difference as written
    after: float  # relative difference with the change
    bound: float  # that rounding explains
    seconds: float | None = None  # CPU; None where not measured
    point: str = ""  # of a scenario's sweep

    @property
    def explains(self) -> bool:
        """Whether the difference vanishes."""
        return self.after <= self.bound < self.before


@dataclass(frozen=True)
class TensorRow:
    """The first difference of one tensor between two numbers of ranks."""

    stage: str  # forward, local gradient, gradient, update, buffer
    name: str
    step: int
    ranks: tuple[int, int]  # numbers of ranks that are compared
    size: float  # relative difference in the 2-norm
    bound: float  # that rounding explains
    point: str = ""  # of a scenario's sweep


@dataclass(frozen=True)
class SampleRow:
    """The samples of one rank in one optimizer step."""

    world_size: int
    rank: int
    step: int
    epoch: int
    samples: tuple[int, ...]  # indices into the data set; numbers by content where it has none
    point: str = ""  # of a scenario's sweep


@dataclass(frozen=True)
class AuditReport(Inline):
    """What an audit found; `to_json` is the document of ``--json``."""

    name: str  # script or scenario
    ranks: tuple[int, ...]
    steps: int  # optimizer steps that were compared
    findings: tuple[Finding, ...]  # the main cause first
    seen_twice: int  # samples of one epoch
    missed: int
    resume_same: bool | None = None  # None where it was not tried
    resume_step: int | None = None  # first step that differs after resuming
    checks: tuple[Check, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    ledger: tuple[SampleRow, ...] = ()
    notes: tuple[str, ...] = field(default=())  # how the batch was given, what ran eager
    batch: int | None = None  # samples of a step; None where steps or points differ
    samples: int | None = None  # of the data set; None where it has no length

    @property
    def same(self) -> bool:
        """Whether nothing is wrong: all findings are legitimate or allowed."""
        return not any(finding.wrong for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON document, in SI units; null where one does not apply."""
        return {
            "name": self.name,
            "same": self.same,
            "ranks": list(self.ranks),
            "steps": self.steps,
            "batch": self.batch,
            "findings": [asdict(finding) for finding in self.findings],
            "samples": {
                "seen_twice": self.seen_twice,
                "missed": self.missed,
                "of": self.samples,
            },
            "resume": {"same": self.resume_same, "step": self.resume_step},
            "checks": [asdict(check) for check in self.checks],
            "experiments": [
                asdict(experiment) | {"explains": experiment.explains}
                for experiment in self.experiments
            ],
            "tensors": [asdict(row) for row in self.tensors],
            "ledger": [asdict(row) for row in self.ledger],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Return the JSON document."""
        return as_json(self.to_dict())
