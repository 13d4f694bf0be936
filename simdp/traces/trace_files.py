"""Trace files: one file of events, read to the traces of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from simdp.errors import ScenarioError
from simdp.traces.building import traces_of
from simdp.traces.gathering import KINETO, Gathered
from simdp.traces.rank_trace import RankTrace
from simdp.traces.stream import WANTED, Events


def read_stream(stream: IO[bytes], path: Path) -> list[RankTrace]:
    """Read a file that is open.

    Parameters
    ----------
    stream : binary file
        JSON, unpacked.
    path : Path
        How it is called.

    Raises
    ------
    ScenarioError
        If it is no trace.
    """
    events, gathered = Events(stream, str(path)), Gathered()
    gathered.take(events)
    gathered.num_numbered += events.num_numbered
    if not gathered.num_used:
        raise ScenarioError([f"{path}: {_why(events, gathered)}; {WANTED}."])
    return traces_of(path, events.head, gathered, events.remarks)


def _why(events: Events, gathered: Gathered) -> str:
    """Say why a file with events is no trace of ours or of torch's."""
    if gathered.others:
        common = ", ".join(name for name, _ in gathered.others.most_common(4))
        return (
            f"is a Chrome trace of another tool: its events are of the categories {common}, and "
            f"none is of Kineto's ({', '.join(KINETO)})"
        )
    if gathered.num_odd:
        return f"none of its {gathered.num_odd} events has finite times"
    if events.remarks:
        return f"holds no event of an operator or a kernel ({events.remarks[0].rstrip('.')})"
    if events.num_events:
        return "holds no event of an operator or a kernel"
    return "holds no events"
