"""Job: the traces of one job, from the paths that a command line names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from simdp.errors import ScenarioError, UnitError
from simdp.studies.replay.replayed import Replayed
from simdp.studies.replay.scenario import replay_of
from simdp.traces import RankTrace, read_traces
from simdp.units import parse


def read_job(paths: Sequence[Path]) -> list[RankTrace]:
    """Read the traces of one job, sorted by rank.

    Parameters
    ----------
    paths : sequence of Path
        Files, folders and archives, as `simdp.traces.read_traces` takes them.

    Raises
    ------
    ScenarioError
        If one cannot be read, or holds something else.
    """
    found = [trace for path in paths for trace in read_traces(path)]
    return sorted(found, key=lambda trace: -1 if trace.rank is None else trace.rank)


def replay(
    *paths: str | os.PathLike[str],
    machine: str | None = None,
    device: str | None = None,
    microbatch: int = 1,
    gradients: float | None = None,
) -> Replayed:
    """Read the traces of a job, and make a scenario of them.

    Parameters
    ----------
    *paths : path-like
        As for `read_job`.
    machine, device, microbatch, gradients
        As for `simdp.studies.replay.scenario.replay_of`.

    Raises
    ------
    ScenarioError
        If there is nothing to replay.
    """
    return replay_of(
        read_job([Path(path) for path in paths]),
        machine=machine,
        device=device,
        microbatch=microbatch,
        gradients=gradients,
    )


def size_of(text: str) -> float:
    """Read ``--gradients`` [bytes].

    Raises
    ------
    ScenarioError
        If it is no size.
    """
    try:
        found = parse(text, "data size")
    except UnitError as error:
        raise ScenarioError([f"--gradients: {error}"]) from None
    if found <= 0:
        raise ScenarioError([f"--gradients: {text} is nothing; write for example 102 MB."])
    return found
