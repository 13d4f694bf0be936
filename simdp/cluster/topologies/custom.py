"""Custom topology: connections that the scenario lists, between endpoints and named switches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from simdp.cluster.topologies.graph import MAX_ENDPOINTS, Edge, Edges, GraphTopology
from simdp.spec import Float, Int, Spec, problem


class Connection(Spec):
    """A full-duplex connection of two endpoints, or of an endpoint and a switch.

    Attributes
    ----------
    ends : list of int or str
        Two of them: an endpoint's number, or a switch's name.
    width : float
        Bandwidth over that of the given link, for several cables side by side.
    """

    ends: list[Int | str] = Field(json_schema_extra={"minItems": 2, "maxItems": 2})
    width: Float = Field(1.0, gt=0, le=1e6)

    @field_validator("ends")
    @classmethod
    def _two_of_them(cls, ends: list[int | str]) -> list[int | str]:
        if len(ends) != 2 or ends[0] == ends[1]:
            raise problem(f"{ends} are no two ends; give two different endpoints or switches.")
        for end in ends:
            if isinstance(end, int) and not 0 <= end < MAX_ENDPOINTS:
                raise problem(f"endpoint {end} does not exist; give 0 ... {MAX_ENDPOINTS - 1}.")
        return ends


class CustomTopology(GraphTopology):
    """The connections in ``links``; routes take the fewest of them, then the widest.

    Attributes
    ----------
    links : list of Connection
        Each between two endpoints (numbers) or switches (names). Those of endpoints that are not
        in use, as in a partly used node, are left out.
    """

    kind: Literal["custom"] = "custom"

    links: list[Connection] = Field(min_length=1)

    @field_validator("links")
    @classmethod
    def _each_once(cls, links: list[Connection]) -> list[Connection]:
        seen = list[set[int | str]]()
        for connection in links:
            if set(connection.ends) in seen:
                raise problem(f"{connection.ends} are connected twice; add up the widths.")
            seen.append(set(connection.ends))
        return links

    def capacity(self) -> int:
        return MAX_ENDPOINTS

    def _switches(self) -> list[str]:
        named = (end for connection in self.links for end in connection.ends)
        return list(dict.fromkeys(end for end in named if isinstance(end, str)))

    def edges(self, n: int) -> Edges:
        switches = self._switches()
        edges = []
        for connection in self.links:
            u, v = (e if isinstance(e, int) else n + switches.index(e) for e in connection.ends)
            if all(isinstance(end, str) or end < n for end in connection.ends):
                edges.append(Edge(u, v, connection.width))
        return tuple(edges)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        return f"switch {self._switches()[vertex - n]}"
