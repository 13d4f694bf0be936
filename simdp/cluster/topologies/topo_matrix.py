"""The matrix that ``nvidia-smi topo -m`` prints: how devices and network cards are joined."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simdp.cluster.topologies.pcie import LEVELS, NODE, PHB, PIX, PXB, Group

Tokens = dict[tuple[str, str], str]


class MatrixError(ValueError):
    """A text is no such matrix; ``line`` says where, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(reason)


@dataclass(frozen=True)
class TopoMatrix:
    """What joins the devices and cards of a node.

    Attributes
    ----------
    gpus, cards : tuple of str
        As they are called, in the order of the columns.
    nvlinks : tuple of tuple of int
        How many NVLinks join each pair of GPUs.
    groups : tuple of Group
        Socket, host bridge and switches of every GPU and then of every card.
    """

    gpus: tuple[str, ...]
    cards: tuple[str, ...]
    nvlinks: tuple[tuple[int, ...], ...]
    groups: tuple[Group, ...]


def parse_matrix(text: str) -> TopoMatrix:
    """Read a matrix; the legend, and columns of affinities, are passed over.

    Raises
    ------
    MatrixError
        If it is not square, not symmetric, has no GPUs, or an entry is unknown.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", " ", line).split() for line in text.splitlines()]
    head = next((i for i, words in enumerate(lines) if words), 0)
    columns = _columns(lines[head] if lines else [])
    gpus = tuple(name for name in columns if re.fullmatch(r"GPU\d+", name))
    if not gpus:
        raise MatrixError(head + 1, "names no GPUs; begin with the line GPU0 GPU1 ...")
    twice = next((name for i, name in enumerate(columns) if name in columns[:i]), None)
    if twice:
        raise MatrixError(head + 1, f"names {twice} twice.")
    entries: Tokens = {}
    where: dict[str, int] = {}
    for number, words in enumerate(lines[head + 1 :], head + 2):
        if (not words and where) or "Legend:" in words:
            break
        if words:
            _read_row(words, columns, number, entries, where)
    missing = next((name for name in columns if name not in where), None)
    if missing:
        raise MatrixError(
            head + 1 + len(where), f"is not square: {missing} has a column, but no row follows."
        )
    _refuse_asymmetry(columns, entries, where)
    cards = tuple(name for name in columns if name not in gpus)
    nvlinks = tuple(tuple(_nvlinks(entries[row, column]) for column in gpus) for row in gpus)
    return TopoMatrix(gpus, cards, nvlinks, _groups((*gpus, *cards), entries))


def _columns(words: list[str]) -> list[str]:
    """Names of the columns, before ``CPU Affinity``, ``NUMA Affinity`` and ``GPU NUMA ID``."""
    ends = [i for i, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")]
    return words[: min(ends, default=len(words))]


def _read_row(
    words: list[str], columns: list[str], number: int, entries: Tokens, where: dict[str, int]
) -> None:
    name, row = words[0], words[1 : len(columns) + 1]
    if name not in columns:
        raise MatrixError(number, f"is not square: {name} has a row, but no column.")
    if name in where:
        raise MatrixError(number, f"gives {name} a second row.")
    if len(row) < len(columns):
        raise MatrixError(
            number, f"is not square: {name} has {len(row)} entries for {len(columns)} columns."
        )
    for column, token in zip(columns, row, strict=True):
        if token == "SOC":  # what SYS was called before driver 384
            token = "SYS"
        if not re.fullmatch(r"X|NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS", token):
            raise MatrixError(
                number,
                f"has {token!r} between {name} and {column}; known: "
                "X, NV1, NV2, ..., PIX, PXB, PHB, NODE, SYS.",
            )
        if (token == "X") != (name == column):
            raise MatrixError(number, f"has {token} between {name} and {column}; X means itself.")
        entries[name, column] = token
    where[name] = number


def _refuse_asymmetry(columns: list[str], entries: Tokens, where: dict[str, int]) -> None:
    for row in columns:
        for column in columns:
            there, back = entries[row, column], entries[column, row]
            if there != back and where[row] > where[column]:
                raise MatrixError(
                    where[row],
                    f"is not symmetric: {row} to {column} is {there}, {column} to {row} is {back}.",
                )


def _nvlinks(token: str) -> int:
    return int(token[2:]) if token.startswith("NV") else 0


def _groups(names: tuple[str, ...], entries: Tokens) -> tuple[Group, ...]:
    """Group devices by the farthest level at which each is joined with another.

    Where NVLinks hide how two GPUs are joined over PCIe, others tell, or they are apart.
    """
    import networkx as nx

    label = {name: [0, 0, 0, 0] for name in names}
    for place, farthest in enumerate((NODE, PHB, PXB, PIX)):
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(names)
        graph.add_edges_from(
            pair
            for pair, token in entries.items()
            if LEVELS.get(token.lower(), farthest + 1) <= farthest
        )
        for number, part in enumerate(nx.connected_components(graph)):
            for name in part:
                label[name][place] = number
    return tuple((a, b, c, d) for a, b, c, d in (label[name] for name in names))
