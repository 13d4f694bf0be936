"""Times of one collective over sizes and algorithms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, Collectives, member_of
from simdp.collectives.base import Algorithm
from simdp.collectives.costs import COSTS, AnyCost, Cost, LinksCost
from simdp.collectives.costs.nccl import NcclCost
from simdp.engine.collective import Bench
from simdp.errors import LedBy, ScenarioError, choices, unknown_name
from simdp.results.collective import (
    ITEMSIZE,
    ROOTED,
    Bottleneck,
    CollectiveCurve,
    CollectivePoint,
    CollectiveStudy,
    NcclLog,
    read_nccl_tests,
)
from simdp.scenario.defaults import RESIZING, by_nccl, in_place_of_machine, not_by_nccl
from simdp.scenario.overrides import Raw, cluster_file, read_cluster, with_machine
from simdp.scenario.placement import split_ranks, wiring_of
from simdp.scenario.remarks import without_nvls
from simdp.scenario.root import Scenario
from simdp.spec import Spec, problems
from simdp.studies.intervals import (
    Known,
    collective_interval,
    collective_novelty,
    cost_variants,
    machine_calibration,
    with_pool_of,
)
from simdp.studies.variants import parse_sizes, parse_world_sizes
from simdp.version import __version__

# Collective ---------------------------------------------------------------------------------------

NOT_OURS = {
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
"""Other tools' names of collectives, and ours."""

WITHOUT_CHOICE = {"barrier": "recursive_doubling", "gather": "naive", "scatter": "naive"}
"""Default algorithms of collectives without ``auto``."""


def usual_kind(collective: str) -> str:
    """Return the default kind of algorithm."""
    return WITHOUT_CHOICE.get(collective, "auto")


def known_collective(name: str) -> str:
    """Return the name of a collective; a ScenarioError if it does not exist."""
    if name in FAMILIES:
        return name
    line = unknown_name("collective", name, list(FAMILIES))
    plain = name.lower().removesuffix("_perf")
    ours = NOT_OURS.get(plain.replace("_", ""), plain if plain in FAMILIES else None)
    if ours:
        line = f"{name!r} is called {ours} here."
    elif plain in ("sendrecv", "hypercube"):
        line = f"{name!r} is point to point, no collective{choices(list(FAMILIES))}"
    raise ScenarioError(line)


def make_algorithm(collective: str, written: object, base: Path = Path()) -> Algorithm:
    """Make an algorithm from YAML data: ``ring``, or ``{kind: ring, slices: 4}``.

    Relative paths start from ``base``. A ScenarioError has every problem.
    """
    field: Any = Annotated[Algorithm, member_of(collective)]
    try:
        made: Algorithm = TypeAdapter(field).validate_python(written)
        return made.settled(base)
    except ValidationError as error:
        lines = [f"--algorithm {problem.line}" for problem in problems(error, written)]
        raise ScenarioError(lines) from None


def short_name(spec: Spec) -> str:
    """Name an algorithm by its kind and its options that are not default: ``ring(slices=4)``."""
    written = spec.model_dump(mode="json")
    options = []
    for key, field in type(spec).model_fields.items():
        value = getattr(spec, key)
        if key != "kind" and value != field.get_default(call_default_factory=True):
            options.append(f"{key}={_write(value, written[key])}")
    return f"{written['kind']}({', '.join(options)})" if options else str(written["kind"])


def _write(value: object, written: object) -> str:
    if isinstance(value, Spec):
        return short_name(value)
    if isinstance(value, list | tuple):
        assert isinstance(written, list)
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
    split: GroupSplit | None = None,
    known: Sequence[Known] = (),
    base: Path = Path(),
) -> CollectiveStudy:
    """Time one collective in isolation: every rank enters at once, with no other work.

    Parameters
    ----------
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    algorithms : sequence of Algorithm or Cost
        Of that family; or costs that compute times.
    clusters : sequence of Cluster
        One per world size. Stragglers slow down compute only, and have no effect.
    sizes : sequence of int
        Of the whole buffer, as nccl-tests counts it [bytes].
    root : int
        For collectives with a root.
    dtype : str
        A key of `simdp.results.collective.ITEMSIZE`.
    name : str
        The cluster's.
    measured : NcclLog, optional
        Measured times.
    split : GroupSplit, optional
        Splits ranks into process groups, which run the collective at the same time.
    known, base : sequence of Known, Path
        Uncertainty of the machine's constants, for intervals; folder of its file.

    Returns
    -------
    CollectiveStudy
        A curve per algorithm and cluster, in this order.

    Raises
    ------
    ScenarioError
        If an algorithm does not support a cluster, or the root or dtype does not exist.
    """
    if dtype not in ITEMSIZE:
        raise ScenarioError(f"--dtype: {unknown_name('dtype', dtype, list(ITEMSIZE))}")
    benches = [_bench(cluster, split) for cluster in clusters]
    _check_root(collective, root, min(bench.planner.layout.world_size for bench in benches))
    pairs = [(served_by, bench) for served_by in algorithms for bench in benches]
    for served_by, bench in pairs:
        _check(served_by, collective, bench, root, split)
    times = {row.nbytes: row.seconds for row in measured.rows} if measured else {}
    curves = tuple(_served(collective, *pair, sizes, root, times, known, base) for pair in pairs)
    against = None if measured is None else Path(measured.path).name
    return CollectiveStudy(__version__, collective, name, dtype, root, curves, against)


class GroupSplit(NamedTuple):
    """Process groups of ranks: those of equal ``rank % value``, or of equal ``rank // value``."""

    rule: Literal["mod", "div"]
    value: int

    @classmethod
    def parse(cls, text: str) -> GroupSplit:
        """Read ``"mod 8"``, the format of NCCL_TESTS_SPLIT of nccl-tests; else a ScenarioError."""
        match = re.fullmatch(r"\s*(mod|div|%|/)\s*(\d{1,7})\s*", text, re.IGNORECASE)
        if match is None:
            raise ScenarioError(
                f"--split {text}: is no rule; write mod 8 (equal rank % 8) or div 8 (rank // 8)."
            )
        rule: Literal["mod", "div"] = "mod" if match[1].lower() in ("mod", "%") else "div"
        return cls(rule, int(match[2]))


def _bench(cluster: Cluster, split: GroupSplit | None) -> Bench:
    if split is None:
        return Bench(cluster)
    try:
        return Bench(cluster, split_ranks(cluster.world_size, *split))
    except ValueError as error:
        raise ScenarioError(f"--split {split.rule} {split.value}: {error}.") from None


def _check(
    served_by: Algorithm | Cost, collective: str, bench: Bench, root: int, split: GroupSplit | None
) -> None:
    if isinstance(served_by, Cost):
        _check_knows(served_by, collective, bench.planner.cluster, split)
    else:
        _check_serves(served_by, bench, root)


def _check_root(collective: str, root: int, world_size: int) -> None:
    if root and collective not in ROOTED:
        raise ScenarioError(f"--root {root}: {collective} has no root; leave it out.")
    if not 0 <= root < world_size:
        raise ScenarioError(f"--root {root}: is not a rank; give 0 ... {world_size - 1}.")


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
        raise ScenarioError(f"--algorithm {algorithm.kind}: with {ranks}: {wrong}.")


def _check_knows(cost: Cost, collective: str, cluster: Cluster, split: GroupSplit | None) -> None:
    wrong = cost.problem_with(collective, wiring_of(cluster))
    if wrong is None and split is not None:
        wrong = "does not support process groups; leave --split out, or name an algorithm"
    if wrong:
        raise ScenarioError(f"--algorithm {cost.kind}: {wrong}.")


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
        curve = _timed(collective, served_by, bench.planner.cluster, sizes, times, known)
        calls = [(collective, float(size)) for size in sizes]
        nvls = without_nvls(bench.planner.cluster, served_by, calls, base)
        return replace(curve, remarks=(f"NVLS: {nvls}",) if nvls else ())
    return _curve(served_by, bench, sizes, root, times)


def _timed(
    collective: str,
    cost: Cost,
    cluster: Cluster,
    sizes: Sequence[int],
    times: Mapping[int, float],
    known: Sequence[Known],
) -> CollectiveCurve:
    """Curve of a cost that computes times, with intervals where its constants have any."""
    wiring, why = wiring_of(cluster), f"collectives.cost: {cost.kind}"
    others = cost_variants(cost, known) if wiring.world_size > 1 else []
    new = collective_novelty(known, collective, wiring.num_nodes)
    points = []
    for size in sizes:
        time = cost.seconds(collective, size, wiring)
        ends = [
            (low.seconds(collective, size, wiring), high.seconds(collective, size, wiring))
            for low, high in others
        ]
        low, high = collective_interval(time, ends, known, new, size) if ends else (None, None)
        by = cost.served_by(collective, size, wiring)
        points.append(CollectivePoint(size, time, by, why, None, {}, times.get(size), low, high))
    return CollectiveCurve(cost.kind, cluster.world_size, tuple(points))


def _curve(
    algorithm: Algorithm, bench: Bench, sizes: Sequence[int], root: int, times: Mapping[int, float]
) -> CollectiveCurve:
    points = tuple(_point(bench, algorithm, size, root, times.get(size)) for size in sizes)
    return CollectiveCurve(short_name(algorithm), bench.planner.layout.world_size, points)


def _point(
    bench: Bench, algorithm: Algorithm, nbytes: int, root: int, measured: float | None
) -> CollectivePoint:
    timing = bench.time(algorithm, nbytes, root)
    busiest = timing.links[0] if timing.links else None
    return CollectivePoint(
        nbytes,
        timing.seconds,
        short_name(timing.algorithm),
        timing.fabric,
        Bottleneck(busiest.name, busiest.utilization) if busiest and busiest.nbytes else None,
        {short_name(p.algorithm): p.seconds for p in bench.candidates(algorithm, nbytes, root)},
        measured,
    )


# Clusters -----------------------------------------------------------------------------------------


def load_clusters(path: Path, world_sizes: Sequence[int] = ()) -> tuple[str, list[Cluster]]:
    """Read the cluster of a scenario or machine; other sections are ignored and may be missing.

    Stragglers are dropped, since they slow down compute only, and may name ranks beyond a smaller
    world size. Returns the name, and a cluster per world size, or that of the file. A ScenarioError
    has every problem.
    """
    path = cluster_file(path)
    raw = _raw(path)
    settings = [{"world_size": n} for n in world_sizes] or [{}]
    name = raw.get("name", path.stem)
    return str(name), [_cluster(path, raw["cluster"] | change) for change in settings]


def load_cost(path: Path, of_groups: bool = False) -> Cost:
    """Read the cost of collectives of a scenario or machine; a ScenarioError has every problem.

    Without a cost and without an algorithm, NCCL's model times devices of the catalogue, but never
    ``of_groups``: it does not support process groups.
    """
    path = cluster_file(path)
    return cost_of(_raw(path), path, of_groups)


def cost_of(raw: Raw, path: Path, of_groups: bool = False) -> Cost:
    """Make the cost of a scenario in plain data, as `load_cost` does; ``path`` leads errors."""
    collectives = raw.get("collectives") or {}
    if not isinstance(collectives, dict):
        return LinksCost()
    if "cost" not in collectives:
        cluster = _cluster(path, raw["cluster"])
        over_links = by_nccl(cluster, collectives, chosen=collectives.get("over_links") or ())
        alone = not (of_groups or raw.get("neighbours")) and not_by_nccl(cluster) is None
        return NcclCost() if alone and over_links == () else LinksCost()
    try:
        cost = make_cost(collectives["cost"], path.parent)
    except ScenarioError as error:
        lines = [f"{path}: collectives.cost: {line}" for line in error.problems]
        raise ScenarioError(lines) from None
    made = Collectives(cost=cost, over_links=() if collectives.get("over_links") == [] else None)
    cluster = _cluster(path, {"world_size": 1} | raw["cluster"])
    return (in_place_of_machine(cluster, made, path.parent, RESIZING) or made).cost


def _raw(path: Path) -> Raw:
    """Read a scenario as plain data, merged with its machine."""
    return with_machine(read_cluster(path, list(Scenario.model_fields)), path.parent)


def make_cost(written: object, base: Path) -> Cost:
    """Make a cost from YAML data: ``nccl``, or ``{kind: table, path: all_reduce.log}``.

    Relative paths start from ``base``. A ScenarioError has every problem.
    """
    field: Any = AnyCost
    try:
        made: Cost = TypeAdapter(field).validate_python(written)
        return made.settled(base)
    except ValidationError as error:
        raise ScenarioError([problem.line for problem in problems(error, written)]) from None


def _cluster(path: Path, raw: Raw) -> Cluster:
    raw = {key: value for key, value in raw.items() if key not in ("stragglers", "failures")}
    try:
        return Cluster.model_validate(raw, context={"base": path.parent})
    except ValidationError as error:
        at = f"with world_size {raw['world_size']}: " if "world_size" in raw else ""
        lines = [
            f"{at}cluster{'.' if problem.place else ': '}{problem.line}"
            for problem in problems(error, raw)
        ]
        raise ScenarioError([f"{path}: {line}" for line in lines]) from None


# Collective request -------------------------------------------------------------------------------

DEFAULT_SIZES, DEFAULT_DTYPE = "1KiB:1GiB", "float"


@dataclass(frozen=True)
class Request:
    """Arguments of ``python -m simdp collective``."""

    collective: str
    """A key of `simdp.collectives.FAMILIES`."""
    cluster: Path
    """A scenario."""
    algorithms: Sequence[Any] = ()
    """As in YAML, including costs that compute times; by default the scenario's
    ``collectives.cost``, or ``auto``."""
    world_size: str | None = None
    """As for `parse_world_sizes` and `parse_sizes`; by default the log's, else the cluster's own
    and 1 KiB to 1 GiB."""
    sizes: str | None = None
    """As for `parse_world_sizes` and `parse_sizes`; by default the log's, else the cluster's own
    and 1 KiB to 1 GiB."""
    root: int = 0
    """For collectives with a root."""
    dtype: str | None = None
    """By default the log's, else float."""
    against: Path | None = None
    """A log of nccl-tests."""
    split: str | None = None
    """As for `GroupSplit.parse`."""


def answer(request: Request) -> CollectiveStudy:
    """Check a request and time its collective; a ScenarioError if an argument is wrong."""
    collective = known_collective(request.collective)
    cost = load_cost(request.cluster, of_groups=request.split is not None)
    written = request.algorithms or [cost if cost.timed else usual_kind(collective)]
    algorithms = [_served_by(collective, spelling, cost) for spelling in written]
    for number, algorithm in enumerate(algorithms):
        if algorithm in algorithms[:number]:
            raise ScenarioError(f"--algorithm {short_name(algorithm)}: is given twice.")
    if collective == "barrier":
        _refuse_for_barrier(request)
    log = read_nccl_tests(request.against, collective) if request.against else None
    name, clusters = load_clusters(request.cluster, _world_sizes(request, log))
    base = cluster_file(request.cluster).parent
    known = machine_calibration(clusters[0].machine, base)
    split = None if request.split is None else GroupSplit.parse(request.split)
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


def _served_by(collective: str, written: object, cost: Cost) -> Algorithm | Cost:
    """Make an algorithm over the links, or a cost that computes times.

    A cost of the scenario's or machine's kind keeps its constants.
    """
    if isinstance(written, Cost):
        return written
    kind = written.get("kind") if isinstance(written, dict) else written
    if kind not in COSTS or kind == "links":
        return make_algorithm(collective, written)
    if written == cost.kind:
        return cost
    with LedBy("--algorithm "):
        return make_cost(written, Path())


def _refuse_for_barrier(request: Request) -> None:
    for option, given in (("--sizes", request.sizes), ("--against", request.against)):
        if given is not None:
            raise ScenarioError(f"{option} {given}: a barrier moves no data; leave it out.")


def _world_sizes(request: Request, log: NcclLog | None) -> list[int]:
    """World sizes of the request; empty for the cluster's own."""
    listed = log.world_size if log else None
    if request.world_size is None:
        return [listed] if listed else []
    sizes = parse_world_sizes(request.world_size)
    option = f"--world-size {request.world_size}"
    if log and len(sizes) > 1:
        raise ScenarioError(f"{option}: a log is of one world size; give one.")
    if log and listed and sizes != [listed]:
        raise ScenarioError(f"{option}: {log.path} is a log of {listed} ranks; give {listed}.")
    return sizes


def _sizes(request: Request, log: NcclLog | None) -> list[int]:
    """Sizes of the request; with a log, those of the log in its range."""
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
            f"--sizes {request.sizes}: {log.path} has sizes from {measured[0]} B to "
            f"{measured[-1]} B, none of them in this range."
        )
    return inside
