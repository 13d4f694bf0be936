"""Link: one direction of a full-duplex connection, from a catalogue name or from figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from simdp.files import Catalogue
from simdp.spec import Bandwidth, Seconds, Spec, from_catalogue

LINKS = Catalogue(Path(__file__).parent / "links")


FASTEST_PCIE = 64e9
"""PCIe 5.0 x16 carries less in one direction [bytes/s]."""

LATENCY_OF_SOCKETS = 25e-6
"""Between a hop over RDMA, 14 us in NCCL's model, and one through the kernel, 30 us [s]."""


class Link(Spec):
    """One direction of a link.

    Attributes
    ----------
    name : str or None
        What to call it; a catalogue entry's own.
    alpha : float
        Latency of a transfer [s].
    bandwidth : float
        In one direction [bytes/s]; the inverse of beta.
    transport : str or None
        How collectives use it, which tells what they get of it where nobody measured
        (``python -m simdp list constants``). None: as its figures suggest, see `carries`.
    """

    name: str | None = None
    alpha: Seconds
    bandwidth: Bandwidth
    transport: Literal["nvlink", "pcie", "rdma", "libfabric", "tcp"] | None = None

    def carries(self, between_nodes: bool) -> str:
        """How collectives use it: its transport, else what its figures suggest."""
        if self.transport is not None:
            return self.transport
        if between_nodes:
            return "tcp" if self.alpha >= LATENCY_OF_SOCKETS else "rdma"
        return "nvlink" if self.bandwidth > FASTEST_PCIE else "pcie"


AnyLink = Annotated[Link, from_catalogue("link", LINKS.names, LINKS.figures)]


def describe(name: str) -> str:
    """One line about a catalogue link, for ``python -m simdp list``."""
    entry = LINKS.read(name)
    return f"{entry['bandwidth']}, {entry['alpha']} per message"
