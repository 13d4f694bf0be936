"""Links: latency and bandwidth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter, ValidationInfo

from simdp.files import Catalogue
from simdp.spec import Bandwidth, Seconds, Spec, from_catalogue

# Link ---------------------------------------------------------------------------------------------

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
        Name; a catalogue entry's own.
    alpha : float
        Latency of a transfer [s].
    bandwidth : float
        In one direction [bytes/s]; the inverse of beta.
    transport : str or None
        Transport in collectives, which determines their share of the link without measurements
        (``python -m simdp list constants``). None: derived from its figures, see `carries`.
    """

    name: str | None = None
    alpha: Seconds
    bandwidth: Bandwidth
    transport: Literal["nvlink", "pcie", "rdma", "libfabric", "tcp"] | None = None

    def carries(self, between_nodes: bool) -> str:
        """Its transport in collectives, by default derived from its figures."""
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


# One or list --------------------------------------------------------------------------------------


def one_or_list(member: Any, value: Any, info: ValidationInfo, optional: bool = False) -> Any:
    """Validate by the form that was written, so that an error speaks of that form.

    Parameters
    ----------
    member : type
        Type of one value.
    value : object
        As it was written.
    info : ValidationInfo
        Validation context that is passed on.
    optional : bool
        Whether None stays None.
    """
    if value is None and optional:
        return None
    return _adapter(member, isinstance(value, list)).validate_python(value, context=info.context)


@cache
def _adapter(member: Any, listed: bool) -> TypeAdapter[Any]:
    return TypeAdapter(list[member] if listed else member)
