"""Power and prices of devices: what each draws, and what it costs to have it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pydantic import model_validator

from simdp.results.money import Rates
from simdp.spec import Power as Watts
from simdp.spec import Price, Spec, problem

WAITING_SHARE, WAITING_SHARES = 0.26, (0.13, 0.39)
"""How far from rest to busy the power of a device is that waits in a collective, where nobody says,
and between which shares it may be. The least is one H100's whose all-gather never ended: 152 W, of
70 at rest and 700 (NVIDIA/nccl, 1550). Whole runs of eight nodes draw more: MLPerf's ResNet-50 at
least 23 % by AC meters and 28 % by DC ones, if a GPU computes for an eighth of one node's time."""

LEVELS = ("rest", "waiting", "busy")


class Power(Spec):
    """What devices and their nodes draw; what is left out is the catalogue's.

    Attributes
    ----------
    rest : float or None
        Of a device that has nothing to do [W].
    waiting : float or None
        Of one whose collective waits for others or for the network [W]: its kernel spins. Left out,
        26 % of the way from rest to busy, and results state the energy at 13 and 39 % as well.
    busy : float or None
        Of one that computes [W].
    node : float or None
        What a node draws beside its devices [W].
    """

    rest: Watts | None = None
    waiting: Watts | None = None
    busy: Watts | None = None
    node: Watts | None = None

    @model_validator(mode="after")
    def _rises(self) -> Power:
        given = [(key, getattr(self, key)) for key in LEVELS if getattr(self, key) is not None]
        for (low, less), (high, more) in pairwise(given):
            if less > more:
                raise problem(
                    f"{low} is {less:g} W and {high} {more:g} W; a device draws least at rest and "
                    "most when it is busy."
                )
        return self

    def over(self, other: Power | None) -> Power:
        """It, with what it leaves out from another one."""
        if other is None:
            return self
        own = {key: value for key, value in self if value is not None}
        return other.model_copy(update=own)

    def settled(self) -> Power:
        """It, with the power of waiting that follows from the others."""
        if self.waiting is not None or self.rest is None or self.busy is None:
            return self
        return self.model_copy(update={"waiting": self._on_the_way(WAITING_SHARE)})

    def waiting_between(self) -> tuple[float, float] | None:
        """The least and the most that waiting may draw [W]; None where nothing is known."""
        if self.waiting is not None:
            return self.waiting, self.waiting
        if self.rest is None or self.busy is None:
            return None
        low, high = map(self._on_the_way, WAITING_SHARES)
        return low, high

    def _on_the_way(self, share: float) -> float:
        """A share of the way from rest to busy [W]."""
        assert self.rest is not None
        assert self.busy is not None
        return self.rest + share * (self.busy - self.rest)


class ListPrice(Spec):
    """What somebody asks for a device.

    Attributes
    ----------
    amount : float
        Of one device [USD/s].
    date : str
        When that was so, for prices fall: ``"2026-05"``.
    """

    amount: Price
    date: str


def rates_of(
    powers: Sequence[tuple[Power | None, float]],
    prices: Sequence[tuple[float | None, float]],
    num_nodes: int,
) -> Rates:
    """Add up what all devices draw and cost.

    Parameters
    ----------
    powers, prices : sequence of (Power or None, float), of (float or None, float)
        What each kind of device draws, and its price [USD/s], with how many there are of it.
    num_nodes : int
        Nodes that hold some; each draws what the most demanding of its devices' entries says.
    """
    drawn = [((power or Power()).settled(), count) for power, count in powers]
    sums = {key: _sum([(getattr(power, key), count) for power, count in drawn]) for key in LEVELS}
    ends = [
        ((power or Power()).waiting_between() or (None, None), count) for power, count in powers
    ]
    low, high = (_sum([(end[side], count) for end, count in ends]) for side in (0, 1))
    between = None if low is None or high is None or low == high else (low, high)
    node = max((power.node or 0.0 for power, _ in drawn), default=0.0)
    return Rates(_sum(prices), node=node * num_nodes, waiting_between=between, **sums)


def _sum(values: Sequence[tuple[float | None, float]]) -> float | None:
    """Sum of values times counts; None where one is not known."""
    known = [value * count for value, count in values if value is not None]
    return sum(known) if len(known) == len(values) else None
