"""Collectives by themselves: every algorithm, size and world size that is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

import simdp
from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, member_of
from simdp.collectives.base import Algorithm
from simdp.collectives.costs import Cost
from simdp.engine.collective import Bench
from simdp.errors import ScenarioError, unknown_name
from simdp.phrases import problems
from simdp.results.bandwidth import ITEMSIZE, ROOTED
from simdp.results.collective import (
    Bottleneck,
    CollectiveCurve,
    CollectivePoint,
    CollectiveStudy,
)
from simdp.results.nccl_tests import NcclLog
from simdp.scenario.placement import split_ranks
from simdp.scenario.wiring import wiring_of
from simdp.spec import Spec
from simdp.studies.validate.intervals import Known, cost_variants
from simdp.studies.validate.novelty import news, told
from simdp.studies.validate.unmeasured import with_pool_of

NOT_OURS = {
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
"""What others call a collective, and what it is called here."""

WITHOUT_CHOICE = {"barrier": "recursive_doubling", "gather": "naive", "scatter": "naive"}
"""What serves collectives that have no ``auto``, where no algorithm is named."""


def usual_kind(collective: str) -> str:
    """The kind of algorithm where none is named."""
    return WITHOUT_CHOICE.get(collective, "auto")


def known_collective(name: str) -> str:
    """Check the name of a collective.

    Raises
    ------
    ScenarioError
        If there is none of that name.
    """
    if name in FAMILIES:
        return name
    line = unknown_name("collective", name, list(FAMILIES))
    plain = name.lower().removesuffix("_perf")
    ours = NOT_OURS.get(plain.replace("_", ""), plain if plain in FAMILIES else None)
    if ours:
        line = f"{name!r} is called {ours} here."
    elif plain in ("sendrecv", "hypercube"):
        line = f"{name!r} is point to point, no collective; known: {', '.join(FAMILIES)}."
    raise ScenarioError([line])


def make_algorithm(collective: str, written: Any, base: Path = Path()) -> Algorithm:
    """Make an algorithm from what stands in YAML: ``ring``, or ``{kind: ring, slices: 4}``.

    Parameters
    ----------
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    written : object
        Plain data.
    base : Path
        The folder that relative paths start from.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    field: Any = Annotated[Algorithm, member_of(collective)]
    try:
        made: Algorithm = TypeAdapter(field).validate_python(written)
        return made.settled(base)
    except ValidationError as error:
        raise ScenarioError(
            [f"--algorithm {found.line}" for found in problems(error, written)]
        ) from None


def short_name(spec: Spec) -> str:
    """Name an algorithm by its kind and what is not as usual: ``ring(slices=4)``."""
    written = spec.model_dump(mode="json")
    said = []
    for key, field in type(spec).model_fields.items():
        value = getattr(spec, key)
        if key != "kind" and value != field.get_default(call_default_factory=True):
            said.append(f"{key}={_write(value, written[key])}")
    return f"{written['kind']}({', '.join(said)})" if said else str(written["kind"])


def _write(value: Any, written: Any) -> str:
    if isinstance(value, Spec):
        return short_name(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_write, value, written)) + "]"
    return str(written).lower() if isinstance(value, bool) else str(written)


def sweep_collective(
    collective: str,
    algorithms: Sequence[Algorithm | Cost],
    clusters: Sequence[Cluster],
    sizes: Sequence[int],
    *,
    root: int = 0,
    dtype: str = "float",
    name: str = "cluster",
    measured: NcclLog | None = None,
    split: Split | None = None,
    known: Sequence[Known] = (),
    base: Path = Path(),
) -> CollectiveStudy:
    """Time one collective by itself: every rank enters at once, nothing else is under way.

    Parameters
    ----------
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    algorithms : sequence of Algorithm or Cost
        Of that family; or costs that bring times.
    clusters : sequence of Cluster
        One per world size. Stragglers slow down compute, and so have no part in it.
    sizes : sequence of int
        Of the whole buffer, as nccl-tests counts it [bytes].
    root : int
        For collectives that have one.
    dtype : str
        A key of `simdp.results.bandwidth.ITEMSIZE`.
    name : str
        The cluster's.
    measured : NcclLog, optional
        What a real machine took.
    split : Split, optional
        How ranks are split into process groups, which all run the collective at the same time.
    known, base : sequence of Known, Path
        How well the machine's constants are known, for intervals; the folder of its file.

    Returns
    -------
    CollectiveStudy
        A curve per algorithm and cluster, in this order.

    Raises
    ------
    ScenarioError
        If an algorithm cannot serve a cluster, or there is no such root or dtype.
    """
    if dtype not in ITEMSIZE:
        raise ScenarioError([f"--dtype: {unknown_name('dtype', dtype, list(ITEMSIZE))}"])
    benches = [_bench(cluster, split) for cluster in clusters]
    _check_root(collective, root, min(bench.planner.layout.world_size for bench in benches))
    pairs = [(served_by, bench) for served_by in algorithms for bench in benches]
    for served_by, bench in pairs:
        _check(served_by, collective, bench, root, split)
    times = {row.nbytes: row.seconds for row in measured.rows} if measured else {}
    curves = tuple(_served(collective, *pair, sizes, root, times, known, base) for pair in pairs)
    against = None if measured is None else Path(measured.path).name
    return CollectiveStudy(simdp.__version__, collective, name, dtype, root, curves, against)


class Split(NamedTuple):
    """Process groups of ranks: those of equal ``rank % value``, or of equal ``rank // value``."""

    rule: Literal["mod", "div"]
    value: int

    @classmethod
    def parse(cls, text: str) -> Split:
        """Read ``"mod 8"``, as NCCL_TESTS_SPLIT of nccl-tests is written.

        Raises
        ------
        ScenarioError
            If it is none.
        """
        match = re.fullmatch(r"\s*(mod|div|%|/)\s*(\d{1,7})\s*", text, re.IGNORECASE)
        if match is None:
            raise ScenarioError(
                [f"--split {text}: is no rule; write mod 8 (equal rank % 8) or div 8 (rank // 8)."]
            )
        rule: Literal["mod", "div"] = "mod" if match[1].lower() in ("mod", "%") else "div"
        return cls(rule, int(match[2]))


def _bench(cluster: Cluster, split: Split | None) -> Bench:
    if split is None:
        return Bench(cluster)
    try:
        return Bench(cluster, split_ranks(cluster.world_size, *split))
    except ValueError as error:
        raise ScenarioError([f"--split {split.rule} {split.value}: {error}."]) from None


def _check(
    served_by: Algorithm | Cost, collective: str, bench: Bench, root: int, split: Split | None
) -> None:
    if isinstance(served_by, Cost):
        _check_knows(served_by, collective, bench.planner.cluster, split)
    else:
        _check_serves(served_by, bench, root)


def _check_root(collective: str, root: int, world_size: int) -> None:
    if root and collective not in ROOTED:
        raise ScenarioError([f"--root {root}: {collective} has no root; leave it out."])
    if not 0 <= root < world_size:
        raise ScenarioError([f"--root {root}: is no rank; give 0 ... {world_size - 1}."])


def _check_serves(algorithm: Algorithm, bench: Bench, root: int) -> None:
    layout = bench.planner.layout
    wrong = algorithm.problem_with(layout) if layout.world_size > 1 else None
    if wrong is None and algorithm.kind != "auto":
        try:
            algorithm.plan(layout, 1.0, root)
        except ValueError as error:  # a plan from a file may be for one root only
            wrong = str(error)
    if wrong:
        ranks = f"{layout.world_size} ranks"
        raise ScenarioError([f"--algorithm {algorithm.kind}: with {ranks}: {wrong}."])


def _check_knows(cost: Cost, collective: str, cluster: Cluster, split: Split | None) -> None:
    wrong = cost.problem_with(collective, wiring_of(cluster))
    if wrong is None and split is not None:
        wrong = "knows no process groups; leave --split out, or name an algorithm"
    if wrong:
        raise ScenarioError([f"--algorithm {cost.kind}: {wrong}."])


def _served(
    collective: str,
    served_by: Algorithm | Cost,
    bench: Bench,
    sizes: Sequence[int],
    root: int,
    times: Mapping[int, float],
    known: Sequence[Known],
    base: Path,
) -> CollectiveCurve:
    if isinstance(served_by, Cost):
        known = with_pool_of(known, served_by, bench.planner.cluster, base)
        return _timed(collective, served_by, bench.planner.cluster, sizes, times, known)
    return _curve(served_by, bench, sizes, root, times)


def _timed(
    collective: str,
    cost: Cost,
    cluster: Cluster,
    sizes: Sequence[int],
    times: Mapping[int, float],
    known: Sequence[Known],
) -> CollectiveCurve:
    """The curve of a cost that brings times, with intervals where its constants are a machine's."""
    wiring, why = wiring_of(cluster), f"collectives.cost: {cost.kind}"
    others = cost_variants(cost, known) if wiring.world_size > 1 else []
    new = news(known, collective, wiring.num_nodes)
    points = []
    for size in sizes:
        time = cost.seconds(collective, size, wiring)
        ends = [
            (low.seconds(collective, size, wiring), high.seconds(collective, size, wiring))
            for low, high in others
        ]
        low, high = told(time, ends, known, new, size) if ends else (None, None)
        by = cost.served_by(collective, size, wiring)
        points.append(CollectivePoint(size, time, by, why, None, {}, times.get(size), low, high))
    return CollectiveCurve(cost.kind, cluster.world_size, tuple(points))


def _curve(
    asked: Algorithm, bench: Bench, sizes: Sequence[int], root: int, times: Mapping[int, float]
) -> CollectiveCurve:
    points = tuple(_point(bench, asked, size, root, times.get(size)) for size in sizes)
    return CollectiveCurve(short_name(asked), bench.planner.layout.world_size, points)


def _point(
    bench: Bench, asked: Algorithm, nbytes: int, root: int, measured: float | None
) -> CollectivePoint:
    timing = bench.time(asked, nbytes, root)
    busiest = timing.links[0] if timing.links else None
    return CollectivePoint(
        nbytes,
        timing.seconds,
        short_name(timing.algorithm),
        timing.fabric,
        Bottleneck(busiest.name, busiest.utilization) if busiest and busiest.nbytes else None,
        {short_name(p.algorithm): p.seconds for p in bench.candidates(asked, nbytes, root)},
        measured,
    )
