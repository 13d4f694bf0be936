"""Scenario, the root of every YAML file."""

from __future__ import annotations

import copy
import re
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.errors import ScenarioError, shown
from simdp.job.recovery import AnyRecovery, Checkpoint
from simdp.job.targets import AnyTarget, Target
from simdp.scenario.defaults import ScenarioParts, derived_defaults, without_data
from simdp.scenario.measured import MeasuredScenario
from simdp.scenario.overrides import Raw, grid, may_name, move_paths
from simdp.scenario.placement import wiring_of
from simdp.spec import Bool, Int, Spec, problem, problems
from simdp.steps.facts import Nominal
from simdp.steps.program import Program
from simdp.strategies import AnyStrategy
from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.sampling import START, Participants, Start

Of = tuple[Cluster, Workload, Strategy]

NAME_PATTERN = r"^[^\x00-/:-@\[-^`{-\x7f][^\x00-*,/:-@\[-^`{-\x7f]*$"

KNOWN_PROGRAM = "program of"
"""Cache key of a scenario's program and its inputs."""

MADE: deque[tuple[tuple[Any, ...], Workload, Strategy, Program]] = deque(maxlen=8)
"""The last programs, with their inputs."""

_AS_THE_MODEL: Any = object()
"""Stands for a key that is not written, since ``numerics: null`` is an error."""


class Neighbour(Spec):
    """A job that trains repeatedly until the scenario's job is done.

    Its nodes are like those of the cluster, without stragglers; it computes no numbers.
    """

    world_size: Int = Field(ge=1, le=2**20)
    """Number of ranks, in whole nodes."""
    workload: Workload
    """As in a scenario."""
    strategy: AnyStrategy = Field("ddp", validate_default=True)
    """As in a scenario."""
    collectives: Collectives = Collectives()
    """As in a scenario."""


class Scenario(Spec):
    """One experiment."""

    # For editors: ASCII except characters used in names, and all beyond ASCII.
    name: str = Field("scenario", json_schema_extra={"pattern": NAME_PATTERN})
    """Name of the run and of its output folder; the file's stem by default."""
    seed: Annotated[int, Strict()] = Field(0, ge=0, lt=2**63)
    """Of every random stream; the first weights are those of ``torch.manual_seed(seed)``."""
    cluster: Cluster
    """Devices, and the links between them."""
    workload: Workload
    """Model, data, optimizer, and distribution of samples to ranks."""
    strategy: AnyStrategy = Field("ddp", validate_default=True)
    """How ranks train together."""
    collectives: Collectives = Collectives()
    """Algorithms of the collectives, and the source of their times."""
    neighbours: list[Neighbour] = Field(default_factory=list)
    """Other jobs on separate nodes, which share the network between nodes."""
    placement: Literal["packed", "interleaved"] = "packed"
    """Assignment of nodes to jobs: job after job, or a node to each in turn."""
    numerics: Bool = Field(_AS_THE_MODEL, validate_default=True)
    """False simulates time only, without arrays; the default if the model has no numbers, or no
    data set."""
    target: AnyTarget | None = None
    """Target of training: epochs, samples, the quality of a benchmark, or a loss, at which the run
    ends."""
    sweep: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted keys and their values; several form a grid, the last key varying fastest."""
    measured: MeasuredScenario | None = None
    """Measurements of a real machine."""
    checkpoint: Checkpoint | None = None
    """Checkpointing of a job of days; None: none. For ``job``, as the next one."""
    recovery: AnyRecovery | None = None
    """Reaction to a failure of part of the cluster; None: ``restart``, in no time."""

    _base: Path = PrivateAttr(default=Path())
    _written: Raw = PrivateAttr(default={})
    _measured: list[Scenario] = PrivateAttr(default=[])
    _shortened: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _times_need_no_data(cls, data: object) -> object:
        return without_data(data)

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not re.fullmatch(r"\w[\w.+-]*", value):
            raise problem(
                f"{shown(value)} cannot name a folder; use letters, digits, '_', '-' and '.'."
            )
        return value

    @field_validator("numerics", mode="before")
    @classmethod
    def _where_there_are_numbers(cls, value: object, info: ValidationInfo) -> object:
        workload: Workload | None = info.data.get("workload")
        timed = workload is not None and workload.model.timed
        no_data = workload is not None and workload.dataset.kind == "none"
        if value is True and no_data and not timed:
            raise problem(
                "there is no data set to learn from; add a dataset, or write numerics: false."
            )
        if value is True and workload is not None and timed:
            raise problem(
                f"the model {workload.model.kind} has times but no numbers; leave this out, or "
                "write numerics: false."
            )
        packed = workload is not None and workload.quantized is not None
        if value is True and packed:
            raise problem(
                "weights in 4 bits (workload.quantized) have times but no numbers; leave this out, "
                "or write numerics: false."
            )
        return not (timed or no_data or packed) if value is _AS_THE_MODEL else value

    @property
    def target_in_samples(self) -> Target | None:
        """The target, one of tokens by the tokens of a sample."""
        if self.target is None:
            return None
        return self.target.in_samples(self.workload.tokens_per_sample(self.seed, self.base))

    @property
    def is_shortened(self) -> bool:
        """Whether its steps represent an epoch, without a given number of steps to simulate."""
        return self._shortened

    @property
    def base(self) -> Path:
        """The folder that relative paths start from: the scenario file's."""
        return self._base

    def calls(self) -> list[tuple[str, int]]:
        """Collectives that a run calls: keys of ``collectives``, and roots."""
        return self.program.calls

    @property
    def program(self) -> Program:
        """Operations of the ranks, step by step; built on first use."""
        of = (self.cluster, self.workload, self.strategy)
        cached: tuple[Of, Program] | None = self.__dict__.get(KNOWN_PROGRAM)
        if cached is None or any(
            part is not other for part, other in zip(cached[0], of, strict=True)
        ):
            # Beside the fields, as a cached property is: two scenarios are equal without it.
            self.__dict__[KNOWN_PROGRAM] = cached = of, self._like_others()
        return cached[1]

    def __getstate__(self) -> dict[Any, Any]:
        """Drop the program and the graph, which another process builds again or has cached."""
        state = super().__getstate__()
        fields = {key: value for key, value in state["__dict__"].items() if key != KNOWN_PROGRAM}
        fields["workload"] = self.workload.model_copy(update={"model": self.workload.model})
        return {**state, "__dict__": fields}

    def _like_others(self) -> Program:
        """Return a cached program of a scenario that differs only in its network, or a new one."""
        cluster = self.cluster
        num_samples = self.workload.num_samples(self.base)
        of = cluster.world_size, cluster.local_size, cluster.overheads, num_samples
        for other, workload, strategy, program in MADE:
            if other == of and strategy == self.strategy and workload == self.workload:
                return program
        program = self.program_with(None)
        MADE.append((of, self.workload, self.strategy, program))
        return program

    def program_with(
        self,
        nominal: Nominal | None,
        start: Start = START,
        participants: Participants | None = None,
    ) -> Program:
        """Build a program: with nominal times, another start, or some of the ranks."""
        cluster, workload = self.cluster, self.workload
        return Program.of(
            self.strategy,
            workload,
            cluster.world_size,
            workload.num_samples(self.base),
            cluster.local_size,
            cluster.overheads,
            lambda: wiring_of(cluster).inter_bandwidth,
            nominal,
            start,
            participants,
        )

    def measured_scenarios(self) -> tuple[list[Scenario], list[Scenario]]:
        """Scenarios of the points and of the tables of ``measured``, in their order."""
        points, tables, _ = self._measured_parts()
        return points, tables

    def memory_scenarios(self) -> list[Scenario]:
        """Scenarios of the peaks of memory of ``measured``, in their order."""
        return self._measured_parts()[2]

    def _measured_parts(self) -> tuple[list[Scenario], list[Scenario], list[Scenario]]:
        if self.measured is None:
            return [], [], []
        made, first = self._measured, len(self.measured.points)
        last = first + len(self.measured.collectives)
        return made[:first], made[first:last], made[last:]

    def neighbour(self, number: int) -> Scenario:
        """Return one of the neighbours as a separate scenario, on nodes like these."""
        job = self.neighbours[number]
        size = {"world_size": job.world_size, "stragglers": [], "failures": []}
        return self.model_copy(
            update={
                "cluster": self.cluster.model_copy(update=size),
                **_settled(job, self._base),
                "neighbours": [],
                "numerics": False,
            }
        )

    def resolved(self, folder: Path | None = None) -> Raw:
        """Return the scenario as plain data that loads again, with defaults and units.

        Paths are relative to ``folder``, where it will be saved; by default to the current base.
        """
        raw: Raw = self.model_dump(mode="json", exclude_none=True)
        if self.cluster.machine is not None:  # its values would fill a key set to null
            raw["cluster"] |= _nulls(self.cluster)
            raw["collectives"]["cost"] |= _nulls(self.collectives.cost)
        if may_name(self.sweep):  # values of one machine would override the others'
            raw = copy.deepcopy(self._written)
        return raw if folder is None else move_paths(raw, self._base.resolve(), folder.resolve())

    def points(self) -> list[tuple[Raw, Scenario]]:
        """Return every point of the sweep: its settings and scenario; one point without a sweep.

        In the order of the grid. A straggler or fault of a rank that a point lacks has no effect
        there.
        """
        if not self.sweep:
            return [({}, self)]
        points = grid(self.resolved(), self._base)
        return [(chosen, build(raw, self._base)) for chosen, raw in points]


def build(raw: Raw, base: Path) -> Scenario:
    """Build a scenario from plain data that may be invalid.

    Raises
    ------
    ScenarioError
        With every problem of its keys.
    """
    try:
        return validated(raw, base)
    except ValidationError as error:
        raise ScenarioError([invalid.line for invalid in problems(error, raw)]) from None


def validated(raw: Raw, base: Path) -> Scenario:
    """Validate, and complete the model from the data.

    Raises
    ------
    pydantic.ValidationError
        If it is invalid.
    """
    scenario = Scenario.model_validate(raw, context={"base": base})
    scenario = scenario.model_copy(update=_settled(scenario, base))
    scenario._base = base
    return following(scenario, base, raw)


def _settled(job: Scenario | Neighbour, base: Path) -> dict[str, Any]:
    """Return the parts of a job that name files, with these read."""
    parts = {key: getattr(job, key) for key in ("workload", "collectives", "strategy")}
    for key, part in parts.items():
        with suppress(ScenarioError):  # a file is at fault, which its own checks report
            parts[key] = part.settled(base)
    return parts


def following(scenario: Scenario, base: Path, written: Raw | None = None) -> Scenario:
    """Return the scenario with defaults that depend on several parts.

    Parameters
    ----------
    scenario : Scenario
        Valid.
    base : Path
        Folder that relative paths start from.
    written : dict, optional
        The scenario as plain data, to see the keys that its file leaves out; without it, the timing
        of collectives is unchanged.
    """
    parts = ScenarioParts(
        scenario.cluster,
        scenario.workload,
        scenario.strategy,
        scenario.numerics,
        scenario.sweep.keys(),
        written,
        scenario.collectives,
        bool(scenario.neighbours),
    )
    defaults = derived_defaults(parts, base)
    if not defaults:
        return scenario
    following = scenario.model_copy(update=defaults)
    before, after = scenario.workload, following.workload
    following._shortened = before.steps is None and after.steps is not None
    return following


def _nulls(spec: Spec) -> Raw:
    """Return keys of a spec that were written as null."""
    written = spec.model_fields_set
    return {key: None for key, value in spec if value is None and key in written}
