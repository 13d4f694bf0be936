"""Operations on what is kept in the memory of the host."""

from __future__ import annotations

from typing import NamedTuple


class HostCopy(NamedTuple):
    """Every rank copies something between its device and the host, which compute waits for.

    As what comes before a collective, it is done on that collective's stream.

    Attributes
    ----------
    name : str
        What.
    nbytes : float
        Of a rank, on average [bytes].
    """

    name: str
    nbytes: float
