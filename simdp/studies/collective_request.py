"""What the command line asks of a collective, as it was typed, and the study that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simdp.collectives.base import Algorithm
from simdp.collectives.costs import COSTS, Cost
from simdp.errors import ScenarioError
from simdp.results.collective import CollectiveStudy
from simdp.results.nccl_tests import NcclLog, read_nccl_tests
from simdp.scenario.machines import cluster_file
from simdp.studies.clusters import load_clusters, load_cost, make_cost
from simdp.studies.collective import (
    Split,
    known_collective,
    make_algorithm,
    short_name,
    sweep_collective,
    usual_kind,
)
from simdp.studies.ranges import parse_sizes, parse_world_sizes
from simdp.studies.validate.intervals import machine_calibration

DEFAULT_SIZES, DEFAULT_DTYPE = "1KiB:1GiB", "float"


@dataclass(frozen=True)
class Request:
    """The arguments of ``python -m simdp collective``.

    Attributes
    ----------
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    cluster : Path
        A scenario.
    algorithms : sequence
        As in YAML, costs that bring times among them; none for what the scenario's
        ``collectives.cost`` tells, or for ``auto``.
    world_size, sizes : str or None
        As `parse_world_sizes` and `parse_sizes` read them. Left out, the log's, else the cluster's
        own and 1 KiB to 1 GiB.
    root : int
        For collectives that have one.
    dtype : str or None
        Left out, the log's, else float.
    against : Path or None
        A log of nccl-tests.
    split : str or None
        As `Split.parse` reads it.
    """

    collective: str
    cluster: Path
    algorithms: Sequence[Any] = ()
    world_size: str | None = None
    sizes: str | None = None
    root: int = 0
    dtype: str | None = None
    against: Path | None = None
    split: str | None = None


def answer(request: Request) -> CollectiveStudy:
    """Check a request and time what it asks for.

    Raises
    ------
    ScenarioError
        If anything in it is wrong.
    """
    collective = known_collective(request.collective)
    cost = load_cost(request.cluster, of_groups=request.split is not None)
    written = request.algorithms or [cost if cost.timed else usual_kind(collective)]
    algorithms = [_served_by(collective, one, cost) for one in written]
    for number, algorithm in enumerate(algorithms):
        if algorithm in algorithms[:number]:
            raise ScenarioError([f"--algorithm {short_name(algorithm)}: is given twice."])
    if collective == "barrier":
        _refuse_for_barrier(request)
    log = read_nccl_tests(request.against, collective) if request.against else None
    world_sizes = _world_sizes(request, log)
    name, clusters = load_clusters(request.cluster, world_sizes)
    base = cluster_file(request.cluster).parent
    known = machine_calibration(clusters[0].machine, base)
    split = None if request.split is None else Split.parse(request.split)
    if split is not None:
        name = f"{name} split {split.rule} {split.value}"
    return sweep_collective(
        collective,
        algorithms,
        clusters,
        [0] if collective == "barrier" else _sizes(request, log),
        root=request.root,
        dtype=request.dtype or (log and log.dtype) or DEFAULT_DTYPE,
        name=name,
        measured=log,
        split=split,
        known=known,
        base=base,
    )


def _served_by(collective: str, written: Any, cost: Cost) -> Algorithm | Cost:
    """Make what serves a collective: an algorithm over the links, or a cost that brings its time.

    A cost of the kind that the scenario or the machine has is that one, with its constants.
    """
    if isinstance(written, Cost):
        return written
    kind = written.get("kind") if isinstance(written, dict) else written
    if kind not in COSTS or kind == "links":
        return make_algorithm(collective, written)
    if written == cost.kind:
        return cost
    try:
        return make_cost(written, Path())
    except ScenarioError as error:
        raise ScenarioError([f"--algorithm {line}" for line in error.problems]) from None


def _refuse_for_barrier(request: Request) -> None:
    for option, given in (("--sizes", request.sizes), ("--against", request.against)):
        if given is not None:
            raise ScenarioError([f"{option} {given}: a barrier moves no data; leave it out."])


def _world_sizes(request: Request, log: NcclLog | None) -> list[int]:
    """The world sizes that are asked for; none for the cluster's own."""
    listed = log.world_size if log else None
    if request.world_size is None:
        return [listed] if listed else []
    found = parse_world_sizes(request.world_size)
    asked = f"--world-size {request.world_size}"
    if log and len(found) > 1:
        raise ScenarioError([f"{asked}: a log is of one world size; give one."])
    if log and listed and found != [listed]:
        raise ScenarioError([f"{asked}: {log.path} is a log of {listed} ranks; give {listed}."])
    return found


def _sizes(request: Request, log: NcclLog | None) -> list[int]:
    """The sizes that are asked for; with a log, its own, as far as they lie between these."""
    sizes = parse_sizes(request.sizes or DEFAULT_SIZES)
    if log is None:
        return sizes
    measured = [row.nbytes for row in log.rows]
    if request.sizes is None:
        return measured
    last = parse_sizes(request.sizes.split(":")[min(1, request.sizes.count(":"))])[0]
    inside = [nbytes for nbytes in measured if sizes[0] <= nbytes <= last]
    if not inside:
        raise ScenarioError(
            [
                f"--sizes {request.sizes}: {log.path} has sizes from {measured[0]} B to "
                f"{measured[-1]} B, and none of them is in there."
            ]
        )
    return inside
