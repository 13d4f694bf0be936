"""Result of a replay: the scenario and its notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simdp.cluster import Link
from simdp.engine.simulate import simulate, times_alone
from simdp.files import format_yaml
from simdp.results.result import Result
from simdp.scenario import Scenario, checked
from simdp.scenario.overrides import override_all
from simdp.studies.answers import timed_only
from simdp.studies.replay.strategy import Sharded

PROFILE = "{}.csv"


@dataclass(frozen=True)
class Replayed:
    """A scenario made of traces, with the profile that lies beside it.

    Attributes
    ----------
    scenario : dict
        As in YAML; its model reads ``profile_name``.
    profile : str
        The profile's text.
    profile_name : str
        Its file.
    step_time_s : float
        Of a step in the traces: the mean over steps and ranks [s].
    num_ranks : int
        Of the job, as far as the traces say.
    num_traces, num_steps : int
        Ranks with a trace, and steps of all of them that it is made of.
    remarks : tuple of str
        What cannot be told from the traces, or was assumed.
    update_gap_s : float
        Part of the host's time before a step that is lost between kernels of the update [s].
    sharded : str
        As of `simdp.studies.replay.strategy.Recognised`.
    """

    scenario: dict[str, Any]
    profile: str
    profile_name: str
    step_time_s: float
    num_ranks: int
    num_traces: int
    num_steps: int
    remarks: tuple[str, ...]
    update_gap_s: float = 0.0
    sharded: Sharded = "nothing"

    @property
    def nbytes(self) -> float:
        """Of all gradients, by the profile [bytes]."""
        lines = [line for line in self.profile.splitlines() if not line.startswith("#")]
        column = lines[0].split(",").index("gradient_bytes")
        return float(sum(int(line.split(",")[column]) for line in lines[1:]))

    def links(self) -> dict[str, float]:
        """Bandwidths that a faster network would change, by their dotted keys [bytes/s]."""
        with self._checked(None) as scenario:
            cluster = scenario.cluster
            found = {}
            across = cluster.inter_node
            if across is not None and cluster.num_nodes > 1 and isinstance(across.link, Link):
                found["cluster.inter_node.link.bandwidth"] = across.link.bandwidth
            if cluster.num_nodes == 1 and isinstance(cluster.link, Link):
                found["cluster.link.bandwidth"] = cluster.link.bandwidth
            return found

    def simulate(self, changes: dict[str, Any] | None = None) -> Result:
        """Play the scenario, with dotted keys set as by ``--set``.

        Raises
        ------
        ScenarioError
            If a change does not suit it.
        """
        with self._checked(changes) as scenario:
            timed = timed_only(scenario)
            return times_alone(timed) or simulate(timed)

    @contextmanager
    def _checked(self, changes: dict[str, Any] | None) -> Iterator[Scenario]:
        """The scenario with changes, its profile in a folder for as long as it is looked at."""
        with TemporaryDirectory() as folder:
            (Path(folder) / self.profile_name).write_text(self.profile)
            raw = deepcopy(self.scenario)
            if changes:
                raw = override_all(raw, changes, Path(folder))
            yield checked(raw, Path(folder))

    def text(self, command: str = "") -> str:
        """The scenario file, with what a reader of it should know in comments."""
        ms = self.step_time_s * 1e3
        head = [
            f"{self.scenario['name']}: a replay of {_count(self.num_traces, 'trace')}, "
            f"{_count(self.num_steps, 'step')} of {ms:.4g} ms on {_count(self.num_ranks, 'rank')}",
            *([f"made by: {command}"] if command else []),
            *self.remarks,
        ]
        return "".join(f"# {line}\n" for line in head) + format_yaml(self.scenario)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
