"""State of a stopped run, from which it resumes; and Segment, a part of a run.

The state contains numbers, but no times. A resumed run simulates the times from its first step
again, and takes up the numbers where they are needed: so its trace is that of an uninterrupted run,
with every clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.errors import ScenarioError
from simdp.files import put_npz, read_npz, write_whole
from simdp.job.targets import LossReached
from simdp.keys import with_current_keys
from simdp.results.metrics import Squares, StepRecord
from simdp.scenario.root import Scenario
from simdp.workload.sampling import START, Participants, Start

FORMAT = 1
"""Version of a state file."""

MAY_DIFFER = (
    *("name", "sweep", "measured", "workload.steps", "workload.epochs", "numerics", "target"),
    *("cluster.price", "cluster.power", "workload.gradient_noise"),
)
"""Keys of a scenario that only determine its length, or do not affect the numbers."""

ABOUT = "state"
"""Name of the array with all other data, as JSON."""


@dataclass(frozen=True)
class State:
    """A run after some of its steps."""

    scenario: dict[str, Any]
    """As resolved."""
    num_steps: int
    """Finished steps."""
    start: Start
    """Position in the data of the next one."""
    clock: float
    """When the last rank finished them [s]."""
    records: Sequence[StepRecord]
    """One per step."""
    log: Sequence[Any]
    """Other results of the interpreter of numbers, in order; see its ``load_state_dict``."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """Weights and everything else that is kept from step to step, by rank and name."""
    is_whole: bool = True
    """Whether all steps are of this scenario, and no samples were skipped."""

    def save(self, path: Path) -> None:
        """Write a file atomically."""
        write_whole(path, self.write)

    def write(self, stream: BinaryIO) -> None:
        """Write to a stream."""
        about = {
            "format": FORMAT,
            "scenario": self.scenario,
            "num_steps": self.num_steps,
            "start": list(self.start),
            "clock": self.clock,
            "records": [list(record) for record in self.records],
            "log": list(self.log),
            "is_whole": self.is_whole,
            "arrays": {name: _form(array) for name, array in self.arrays.items()},
        }
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        put_npz({ABOUT: text, **self.arrays}, stream)

    @classmethod
    def load(cls, path: Path) -> State:
        """Read a file.

        Raises
        ------
        ScenarioError
            If it is no state file, or damaged, with the first difference.
        """
        arrays = read_npz(path)
        text = arrays.pop(ABOUT, None)
        try:
            if text is None:
                raise ValueError("it has no array of that name")
            about = json.loads(text.tobytes())
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}, not {FORMAT}")
            state = cls(
                scenario=with_current_keys(dict(about["scenario"]), advises=False),
                num_steps=int(about["num_steps"]),
                start=Start._make(map(int, about["start"])),
                clock=float(about["clock"]),
                records=[_record(record) for record in about["records"]],
                log=list(about["log"]),
                is_whole=bool(about.get("is_whole", True)),
                arrays={name: arrays[name] for name in about["arrays"] if name in arrays},
            )
            if len(state.records) != state.num_steps:
                raise ValueError(f"it has {len(state.records)} steps of {state.num_steps}")
            for name, form in about["arrays"].items():
                there = _form(state.arrays[name]) if name in state.arrays else "missing"
                if there != form:
                    raise ValueError(f"{name} is {there}, not {form}")
        except (ValueError, TypeError, KeyError, UnicodeDecodeError) as error:
            why = f"has no {error}" if isinstance(error, KeyError) else error
            raise ScenarioError(
                [f"{path}: is not a state written by run --save-state: {ABOUT}: {why}."]
            ) from None
        return state

    def belongs_to(self, scenario: Scenario) -> bool:
        """Whether a scenario is the stopped one, so that the run continues as if uninterrupted.

        On another cluster it continues with the numbers, from the step where it stopped; on the
        same one too, if it had come from another one before.

        Raises
        ------
        ScenarioError
            If its numbers would differ, with the first difference.
        """
        was, now = _flat(self.scenario), _flat(scenario.resolved())
        differ = [key for key in {**was, **now} if was.get(key) != now.get(key)]
        differ = [key for key in differ if not _among(key, MAY_DIFFER)]
        wrong = [key for key in differ if not _among(key, FREE)]
        if wrong:
            key = wrong[0]
            raise ScenarioError(
                [
                    f"{key}: is {_shown(now.get(key))}, but was {_shown(was.get(key))} in the "
                    "stopped run; resume with the same scenario, or leave --resume out."
                ]
            )
        return self.is_whole and not differ


FREE = ("cluster", "collectives.cost", "collectives.over_links")
"""Keys that may change when a run resumes: they affect no number."""


class Segment(NamedTuple):
    """A part of a run.

    ``stop_after`` is counted from the beginning of the run; None: to its end. ``past`` is the state
    before it. ``goes_on``: the past is of the same run, whose times are simulated again; else times
    begin where the past stopped. ``participants`` None: all ranks.
    """

    stop_after: int | None = None
    past: State | None = None
    goes_on: bool = False
    participants: Participants | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all steps up to its end are of one scenario."""
        past = self.past
        return self.participants is None and (past is None or (self.goes_on and past.is_whole))

    @property
    def first(self) -> int:
        """The first simulated step."""
        return 0 if self.past is None or self.goes_on else self.past.num_steps

    @property
    def start(self) -> Start:
        """Position of the first simulated step in the data."""
        return START if self.past is None or self.goes_on else self.past.start

    def check(self, scenario: Scenario) -> None:
        """Reject a segment without steps.

        Raises
        ------
        ScenarioError
            If the segment has no step, or the run no such step.
        """
        n, base = scenario.cluster.world_size, scenario.base
        num_steps = scenario.workload.num_steps(n, base, self.start)
        done = 0 if self.past is None else self.past.num_steps
        if self.stop_after is not None and not done < self.stop_after <= num_steps:
            raise ScenarioError(
                [
                    f"--stop-after: {self.stop_after} is not among the remaining steps; the "
                    f"run has {num_steps}, of which {done} are done."
                ]
            )
        if self.past is not None and done >= num_steps:
            raise ScenarioError(
                [
                    f"--resume: all {num_steps} steps are done; set workload.steps or "
                    "workload.epochs to more."
                ]
            )


WHOLE = Segment()


def segment_of(
    scenario: Scenario, stop_after: int | None = None, past: State | None = None
) -> Segment:
    """The part of a scenario's run from a state to a step.

    Raises
    ------
    ScenarioError
        If the state is of another run, or its order of data cannot be continued on another cluster.
    """
    goes_on = past is not None and past.belongs_to(scenario)
    target = scenario.target
    if past is not None and isinstance(target, LossReached):
        _check_left(target.reached_after([record.loss for record in past.records]))
    if past is not None and not goes_on:
        check_dealing(scenario, past)
    return Segment(stop_after, past, goes_on)


def _check_left(done: int | None) -> None:
    """Reject a resumed run with a target loss that is already reached."""
    if done is not None:
        raise ScenarioError(
            [
                f"--resume: the loss of target was reached after {done} steps; set target.loss to "
                "less, or leave --resume out."
            ]
        )


def check_dealing(scenario: Scenario, past: State) -> None:
    """Reject an epoch if its remaining samples cannot be distributed in the same order."""
    workload, size = scenario.workload, scenario.cluster.world_size
    if workload.samples_per_rank is not None:
        raise ScenarioError(
            [
                "workload.samples_per_rank: each rank has samples of its own, so that a run "
                "cannot resume on another cluster; use the same one."
            ]
        )
    resized = workload.global_batch is None and past.scenario["cluster"]["world_size"] != size
    if workload.group_by_length and resized and past.start.num_samples:
        raise ScenarioError(
            [
                "workload.group_by_length: groups are whole steps, and their size depends on the "
                "number of ranks; stop at the end of an epoch, or use workload.global_batch."
            ]
        )


def _record(written: Sequence[Any]) -> StepRecord:
    """Convert a record from JSON, where tuples are lists."""
    record = StepRecord(*written)
    return record if record.squares is None else record._replace(squares=Squares(*record.squares))


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)


def _form(array: Array) -> str:
    """Dtype and shape of an array."""
    return f"{array.dtype} of shape {array.shape}"


def _flat(raw: Mapping[str, object], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        place = f"{above}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{place}.") or {place: {}}
        else:
            flat[place] = value
    return flat


def _among(key: str, keys: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in keys)
