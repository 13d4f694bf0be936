"""The matrix of ``nvidia-smi topo -m``, and access control of PCIe bridges (``lspci -vvv``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of PCIe paths, from one switch to two sockets."""

_NAME = re.compile(
    r"^(GPU\d+|NIC\d+|mlx\d+_\d+|(?=\w*?mlx)\w++|hfi\d+_\d+|bnxt_re\d+|rocep\w+|ib\w+)$"
)
_CELL = re.compile(r"^(X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)$")
_ACS = re.compile(r"ACSCtl:\s*(.*)")


@dataclass(frozen=True)
class NodeTopology:
    """Paths between the GPUs and the network cards of a node."""

    gpus: tuple[str, ...]
    cards: tuple[str, ...]  # network cards
    paths: dict[tuple[str, str], str]  # class of the path of two of them, both ways
    # bridges, blocking: PCIe bridges with access control, and those on which it redirects
    bridges: int = 0
    blocking: int = 0

    def between_gpus(self) -> set[str]:
        """Classes of the paths between GPUs."""
        return {p for (a, b), p in self.paths.items() if a in self.gpus and b in self.gpus}

    def to_cards(self) -> set[str]:
        """Classes of each GPU's shortest path to a card."""
        order = {path: place for place, path in enumerate(PATHS)}
        best = set()
        for gpu in self.gpus:
            paths = [self.paths[gpu, card] for card in self.cards if (gpu, card) in self.paths]
            known = [path for path in paths if path in order]
            if known:
                best.add(min(known, key=lambda path: order[path]))
        return best

    @property
    def has_nvlink(self) -> bool:
        """Whether GPUs have NVLinks."""
        return any(path.startswith("NV") for path in self.between_gpus())


def read_topology(lines: Sequence[str]) -> NodeTopology | None:
    """Read a matrix and access control; None if there is neither."""
    names, paths = list[str](), dict[tuple[str, str], str]()
    rows = list[str]()
    bridges = blocking = 0
    for line in lines:
        if match := _ACS.search(line):
            bridges += 1
            blocking += "ReqRedir+" in match[1] or "SrcValid+" in match[1]
            continue
        words = line.split()
        if not words or not _NAME.match(words[0]):
            continue
        if len(words) > 1 and all(_NAME.match(word) for word in words[:2]):
            names = [*_leading(words)]
        elif names and _CELL.match(words[1] if len(words) > 1 else ""):
            rows.append(words[0])
            for name, cell in zip(names, words[1:], strict=False):
                if _CELL.match(cell) and cell != "X":
                    path = "SYS" if cell == "SOC" else cell
                    paths[words[0], name] = paths[name, words[0]] = path
    known = [name for name in names if name in rows]
    if not known and not bridges:
        return None
    gpus = tuple(name for name in known if name.startswith("GPU"))
    cards = tuple(name for name in names if not name.startswith("GPU"))
    return NodeTopology(gpus, cards, paths, bridges, blocking)


def _leading(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if not _NAME.match(word):
            return
        yield word
