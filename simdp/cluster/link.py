"""Link: one direction of a full-duplex connection, from a catalogue name or from figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simdp.files import Catalogue
from simdp.spec import Bandwidth, Seconds, Spec, from_catalogue

LINKS = Catalogue(Path(__file__).parent / "links")


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
    """

    name: str | None = None
    alpha: Seconds
    bandwidth: Bandwidth


AnyLink = Annotated[Link, from_catalogue("link", LINKS.names, LINKS.figures)]


def describe(name: str) -> str:
    """One line about a catalogue link, for ``python -m simdp list``."""
    entry = LINKS.read(name)
    return f"{entry['bandwidth']}, {entry['alpha']} per message"
