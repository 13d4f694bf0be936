"""Links that carry less and answer later: a cable, a network card, a device's port, a node's."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from simdp.cluster.stragglers.base import Straggler
from simdp.spec import Float, Int, problem

Place = Annotated[Int, Field(ge=0)]
Pair = Annotated[list[Place], Field(min_length=2, max_length=2)]
NumSteps = Annotated[Int, Field(ge=1)]


class DegradedLink(Straggler):
    """Links with a part of their bandwidth, or a longer latency, always or at times.

    What is concerned is told by one of ``node``, ``rank`` and ``link``. Compute is not slowed
    down, only what crosses these links, in both directions.

    Attributes
    ----------
    node : int or None
        All links between nodes that end at this one; with ``card`` those of this network card.
    card : int or None
        Of the node.
    rank : int or None
        All links inside its node that end at this device.
    link : list of int or None
        Two ranks: the link that leads from one straight to the other, and back.
    bandwidth : float
        Factor of at most 1 on the bandwidth.
    latency : float
        Factor of at least 1 on the latency.
    steps : list of int or None
        From the first of two steps on (counted from 0) to before the second; else always.
    on, off : int or None
        Flapping: degraded for so many steps, sound for so many, again and again. The seed draws
        where in this the run begins.
    """

    by_factors: ClassVar[bool] = False

    kind: Literal["degraded_link"] = "degraded_link"
    node: Place | None = None
    card: Place | None = None
    rank: Place | None = None
    link: Pair | None = None
    bandwidth: Float = Field(1.0, gt=0, le=1)
    latency: Float = Field(1.0, ge=1, le=1e6)
    steps: Pair | None = None
    on: NumSteps | None = None
    off: NumSteps | None = None

    @model_validator(mode="after")
    def _says_where_and_when(self) -> DegradedLink:
        given = [key for key in ("node", "rank", "link") if getattr(self, key) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise problem(
                f"one of node, rank and link tells which links are degraded; given: {said}; keep "
                "one, such as node: 1."
            )
        if self.card is not None and self.node is None:
            raise problem(f"card {self.card} is a node's; add node, or leave card out.")
        if self.link is not None and self.link[0] == self.link[1]:
            raise problem(f"link: joins rank {self.link[0]} to itself; give two ranks.")
        if self.steps is not None and self.steps[0] >= self.steps[1]:
            raise problem(
                f"steps: {self.steps} holds no step; give the first, and the first after it, such "
                "as [10, 20]."
            )
        if (self.on is None) != (self.off is None):
            raise problem("on and off go together; give both in steps, such as on: 2, off: 8.")
        return self

    def on_rank(self) -> int | None:
        return self.rank if self.link is None else max(self.link)

    def on_node(self) -> int | None:
        return self.node

    def comes_and_goes(self) -> bool:
        return self.steps is not None or self.on is not None

    def is_on(self, step: int, phase: float) -> bool:
        """Whether links are degraded in a step.

        Parameters
        ----------
        step : int
            Counted from 0; the setup is before that, which only what lasts degrades.
        phase : float
            Where in its flapping it begins, 0 ... 1.
        """
        if not self.comes_and_goes():
            return True
        if step < 0 or (self.steps and not self.steps[0] <= step < self.steps[1]):
            return False
        if self.on is None or self.off is None:
            return True
        period = self.on + self.off
        return (step + int(phase * period)) % period < self.on

    def made_lasting(self) -> DegradedLink:
        """The same, at all times."""
        return self.model_copy(update={"steps": None, "on": None, "off": None})
