"""Reads logs of nccl-tests as points: collective, bytes, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from simdp.cluster.hardware import FASTEST_PCIE, LINKS, Link
from simdp.collectives.costs import Wiring
from simdp.collectives.costs.nccl import WAYS
from simdp.errors import LedBy, ScenarioError, unknown_name
from simdp.results.collective import NcclLog, read_nccl_tables
from simdp.spec import LARGEST, SMALLEST
from simdp.studies.calibrate.fit import CalibrationPoint
from simdp.units import parse

NVLINK_ALPHA, PCIE_ALPHA, NET_ALPHA = 3.4e-6, 5.7e-6, 14e-6
"""Hops of Simple in NCCL 2.30.7, src/graph/tuning.cc [s]: the alpha of catalogue links."""

ROOM = 4.0  # assumed ratio of a node's inside bandwidth to its network's, without data
CONTRADICTION = 2.0  # largest ratio of times of one size on one machine


@dataclass(frozen=True)
class LinkFigures:
    """A link: its name in the catalogue if it has one, alpha [s], bandwidth [bytes/s] and source.

    ``is_given`` is False where it was inferred from the data.
    """

    name: str | None
    alpha: float
    bandwidth: float
    is_given: bool
    source: str


@dataclass(frozen=True)
class Measurements:
    """All measured points of a machine, with their times [s] and files.

    ``link`` is None where no node has two ranks, ``inter_link`` where there is one node.
    """

    points: tuple[CalibrationPoint, ...]
    seconds: tuple[float, ...]
    sources: tuple[str, ...]
    link: LinkFigures | None
    inter_link: LinkFigures | None
    devices_per_node: int
    links_per_node: int


@dataclass(frozen=True)
class _LogTable:
    log: NcclLog
    collective: str
    world_size: int
    num_nodes: int

    @property
    def local_size(self) -> int:
        return self.world_size // self.num_nodes


def read_measurements(
    files: Sequence[Path],
    nodes: Sequence[int],
    link: str | None,
    inter_link: str | None,
    links_per_node: int,
) -> Measurements:
    """Read logs and the wiring of their ranks; arguments as for `calibrate_nccl_tests`.

    A ScenarioError lists every file that cannot be used, and points that contradict each other.
    """
    if not files:
        raise ScenarioError("calibrate nccl-tests needs a log; give the output of all_reduce_perf.")
    if len(nodes) not in (0, 1, len(files)):
        raise ScenarioError(
            f"--nodes has {len(nodes)} numbers for {len(files)} files; give one, or one each."
        )
    for option, count in (("--links-per-node", links_per_node), *(("--nodes", n) for n in nodes)):
        if count < 1:
            raise ScenarioError(f"{option} {count}: is not a number of 1 or more.")
    nodes_of_files: Sequence[int | None] = list(nodes) * (len(files) if len(nodes) == 1 else 1)
    nodes_of_files = nodes_of_files or [None] * len(files)
    tables: list[_LogTable] = []
    lines: list[str] = []
    for file, given in zip(files, nodes_of_files, strict=True):
        try:
            tables += [_table(log, given) for log in read_nccl_tables(file)]
        except ScenarioError as error:
            lines += error.problems
    lines = lines or _contradictions(tables)
    if lines:
        raise ScenarioError(lines)
    return _laid_out(tables, link, inter_link, links_per_node)


def _table(log: NcclLog, nodes: int | None) -> _LogTable:
    if log.collective not in WAYS:
        raise ScenarioError(
            f"{log.path}: {log.collective} is not one of NCCL's collectives: {', '.join(WAYS)}."
        )
    if log.world_size is None:
        raise ScenarioError(
            f"{log.path}: lacks its number of ranks; add a line such as # nranks: 8."
        )
    num_nodes = nodes or log.num_nodes or 1
    if log.world_size < 2 or log.world_size % num_nodes:
        raise ScenarioError(
            f"{log.path}: {log.world_size} ranks cannot lie on {num_nodes} nodes, two ranks or "
            "more, as many on each; give the number of nodes with --nodes."
        )
    return _LogTable(log, log.collective, log.world_size, num_nodes)


def _contradictions(tables: Sequence[_LogTable]) -> list[str]:
    problems: list[str] = []
    first: dict[tuple[str, int, int, int], tuple[str, float]] = {}
    for table in tables:
        for row in table.log.rows:
            if row.spread > CONTRADICTION:
                problems.append(
                    f"{table.log.path}: times of {row.nbytes} bytes differ {row.spread:.3g} times "
                    f"within the log; they contradict each other. Keep one."
                )
            key = (table.collective, table.world_size, table.num_nodes, row.nbytes)
            path, seconds = first.setdefault(key, (table.log.path, row.seconds))
            ratio = max(row.seconds / seconds, seconds / row.seconds)
            if ratio > CONTRADICTION:
                problems.append(
                    f"{table.log.path}: {table.collective} of {row.nbytes} bytes takes "
                    f"{row.seconds:.4g} s, and {seconds:.4g} s in {path}; they contradict each "
                    "other. Keep one."
                )
    return problems


def _laid_out(
    tables: Sequence[_LogTable], link: str | None, inter_link: str | None, links_per_node: int
) -> Measurements:
    widest = max(table.local_size for table in tables)
    several = [t for t in tables if t.num_nodes > 1]
    if over := several and links_per_node > widest and links_per_node % widest:
        near = f"give {links_per_node - over} or {links_per_node - over + widest}"
        line = f"{links_per_node}: is no multiple of the {widest} ranks of a node; {near}"
        raise ScenarioError(f"--links-per-node {line}.")
    sizes = links_per_node, widest
    inside = [t for t in tables if t.local_size > 1]
    needless = {
        "--link": link is not None and not inside,
        "--inter-link": inter_link is not None and not several,
        "--links-per-node": links_per_node > 1 and not several,
    }
    if any(needless.values()):
        where = "between nodes" if several else "within a node"
        problem = f"all files are of transfers {where}; leave it out, or give --nodes of the files."
        raise ScenarioError([f"{name}: {problem}" for name, wrong in needless.items() if wrong])
    inter = _inter_figures(several, inter_link, *sizes) if several else None
    intra = _intra_figures(inside, link, inter, links_per_node) if inside else None
    points, seconds, sources = [], [], []
    for table in tables:
        wiring = wiring_between(table.num_nodes, table.local_size, intra, inter, *sizes)
        for row in table.log.rows:
            points.append(CalibrationPoint(table.collective, float(row.nbytes), wiring))
            seconds.append(row.seconds)
            sources.append(Path(table.log.path).name)
    return Measurements(
        tuple(points),
        tuple(seconds),
        tuple(sources),
        intra,
        inter,
        widest,
        links_per_node,
    )


def wiring_between(
    num_nodes: int,
    local_size: int,
    link: LinkFigures | None,
    inter_link: LinkFigures | None,
    links_per_node: int,
    devices_per_node: int,
) -> Wiring:
    """The wiring of nodes behind switches; a device's network cards act as one."""
    inside = link if local_size > 1 else None
    across = inter_link if num_nodes > 1 else None
    bond = max(links_per_node // devices_per_node, 1)
    cards = min(links_per_node // bond, local_size) if across else 0
    return Wiring(
        world_size=num_nodes * local_size,
        num_nodes=num_nodes,
        local_size=local_size,
        intra_alpha=inside.alpha if inside else 0.0,
        intra_bandwidth=inside.bandwidth if inside else inf,
        inter_alpha=across.alpha if across else 0.0,
        inter_bandwidth=across.bandwidth * bond * cards if across else inf,
        cards=cards,
        peer=_carries(inside, False) if inside else "nvlink",
        network=_carries(across, True) if across else "rdma",
    )


def _carries(figures: LinkFigures, between_nodes: bool) -> str:
    """Class of a link for collectives: the catalogue's, or by its figures."""
    transport = LINKS.figures(figures.name).get("transport") if figures.name else None
    link = Link.model_construct(
        alpha=figures.alpha, bandwidth=figures.bandwidth, transport=transport
    )
    return link.carries(between_nodes)


def _inter_figures(
    tables: Sequence[_LogTable], given: str | None, links_per_node: int, devices_per_node: int
) -> LinkFigures:
    if given is not None:
        return _given("--inter-link", given, NET_ALPHA)
    rates = []
    for table in tables:
        bond = max(links_per_node // devices_per_node, 1)
        cards = min(links_per_node, bond * table.local_size)
        plain = Wiring(
            table.world_size, table.num_nodes, table.local_size, 0, 1, 0, float(cards), cards
        )
        rates.append(_fastest(table, plain, False) / cards)
    return LinkFigures(None, NET_ALPHA, _rounded(max(rates)), False, "the fastest point measured")


def _intra_figures(
    tables: Sequence[_LogTable], given: str | None, inter: LinkFigures | None, links_per_node: int
) -> LinkFigures:
    if given is not None:
        return _given("--link", given, None)
    alone = [table for table in tables if table.num_nodes == 1]
    if alone:
        bandwidths = [
            _fastest(t, Wiring(t.world_size, 1, t.local_size, 0, 1, 0, inf, 0), True) for t in alone
        ]
        bandwidth, source = _rounded(max(bandwidths)), "the fastest point measured"
    else:
        assert inter is not None
        bandwidth = _rounded(ROOM * inter.bandwidth * links_per_node)
        source = "assumed, as no log is of one node: no bottleneck; give --link"
    alpha = NVLINK_ALPHA if bandwidth > FASTEST_PCIE else PCIE_ALPHA
    return LinkFigures(None, alpha, bandwidth, False, source)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _fastest(table: _LogTable, wiring: Wiring, inside: bool) -> float:
    """Largest bandwidth of a device, or of a node, with the simplest algorithm [bytes/s]."""
    way = next(iter(WAYS[table.collective].values()))(wiring)
    assert way is not None, "rings and sends serve every wiring"
    sent = way.intra_sent if inside else way.inter_sent
    return max(sent * row.nbytes / row.seconds for row in table.log.rows)


def _given(option: str, text: str, alpha: float | None) -> LinkFigures:
    """A link of the catalogue, or a bandwidth with the latency of its kind."""
    if text in LINKS.names():
        figures = LINKS.figures(text)
        return LinkFigures(
            text,
            parse(figures["alpha"], "time"),
            parse(figures["bandwidth"], "bandwidth"),
            True,
            f"catalogue link {text}",
        )
    if not text[:1].isdigit():
        raise ScenarioError(f"{option}: {unknown_name('link', text, LINKS.names())}")
    with LedBy(f"{option}: "):
        bandwidth = parse(text, "bandwidth")
    if not SMALLEST <= bandwidth <= LARGEST:
        raise ScenarioError(f"{option} {text}: is out of range; give for example 25 GB/s.")
    if alpha is None:
        alpha = NVLINK_ALPHA if bandwidth > FASTEST_PCIE else PCIE_ALPHA
    return LinkFigures(None, alpha, bandwidth, True, "given")
