"""Money and energy: what devices that compute, wait or rest cost. Pure functions; all in SI units.

A device is busy, waits in a collective (its kernel spins), or rests; its node draws the same all
the time. So in a time of each::

    energy = busy W x busy s + waiting W x waiting s + rest W x rest s + node W x all of them
    cost   = price x all of them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from simdp.arrays import Floats

N = TypeVar("N", float, Floats)

JOULES = 3.6e6
"""Of a kWh."""

MILLION = 1e6

BUSY = ("compute_s", "update_s")
WAITING = ("exposed_comm_s", "wait_s")
REST = ("other_s",)
"""The parts of a step's time in which a device is busy, waits, and rests."""


class Rates(NamedTuple):
    """What a whole cluster costs and draws while it is up.

    Attributes
    ----------
    price : float or None
        Of all devices [USD/s]; None where nobody says.
    busy, waiting, rest : float or None
        What all devices draw where each computes, waits in a collective, or rests [W]; None where
        nobody says.
    node : float
        What the nodes draw beside their devices [W].
    waiting_between : (float, float) or None
        The least and the most that `waiting` may be where it was not given [W].
    """

    price: float | None = None
    busy: float | None = None
    waiting: float | None = None
    rest: float | None = None
    node: float = 0.0
    waiting_between: tuple[float, float] | None = None

    def scaled(self, share: float) -> Rates:
        """Those of a part of the cluster, or of several like it."""
        each = (None if value is None else share * value for value in self[:4])
        price, busy, waiting, rest = each
        ends = self.waiting_between
        between = None if ends is None else (share * ends[0], share * ends[1])
        return Rates(price, busy, waiting, rest, share * self.node, between)

    @property
    def is_known(self) -> bool:
        """Whether anything can be said."""
        return self.price is not None or self.has_power

    @property
    def has_power(self) -> bool:
        """Whether energy can be said."""
        return None not in (self.busy, self.waiting, self.rest)


class Bill(NamedTuple, Generic[N]):
    """What a time came to.

    Attributes
    ----------
    cost_usd, energy_kwh : float or ndarray or None
        Money and energy; None where the rates do not say.
    """

    cost_usd: N | None
    energy_kwh: N | None


def bill(rates: Rates, busy: N, waiting: N, rest: N) -> Bill[N]:
    """Cost and energy of a time, of which devices spend parts in three states.

    Parameters
    ----------
    rates : Rates
        Of the devices that are up and paid for.
    busy, waiting, rest : float or ndarray
        Times that a device is busy, waits in a collective, and rests, mean over devices [s]. Down
        after a failure, or busy with a checkpoint, it rests.

    Returns
    -------
    Bill
        As floats, or arrays of their shape.
    """
    total = busy + waiting + rest
    cost = None if rates.price is None else rates.price * total
    if rates.busy is None or rates.waiting is None or rates.rest is None:
        return Bill(cost, None)
    joules = rates.busy * busy + rates.waiting * waiting + rates.rest * rest + rates.node * total
    return Bill(cost, joules / JOULES)


def energy_range(rates: Rates, busy: N, waiting: N, rest: N) -> tuple[N, N] | None:
    """Energy with the least and the most that a waiting device may draw [kWh].

    Parameters
    ----------
    rates, busy, waiting, rest
        As of `bill`.

    Returns
    -------
    (float, float) or None
        None where the power of waiting was given, or nothing is known of it.
    """
    if rates.waiting_between is None:
        return None
    low, high = (
        bill(rates._replace(waiting=watts), busy, waiting, rest).energy_kwh
        for watts in rates.waiting_between
    )
    return None if low is None or high is None else (low, high)


def step_bill(rates: Rates, metrics: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Cost and energy of a steady step, and of as many as a million samples or tokens take.

    Parameters
    ----------
    rates : Rates
        Of the cluster.
    metrics : mapping
        As of `simdp.results.metrics`; times are means over ranks, so that where devices differ the
        energy is that of equal shares of each state.

    Returns
    -------
    dict of str to dict
        ``step``; ``exposed``, the part of it in which devices wait for communication or for each
        other; ``million_samples`` and ``million_tokens``, where there are some. Each has
        ``cost_usd`` and ``energy_kwh``.
    """
    busy, waiting, rest = (sum(metrics[key] for key in keys) for keys in (BUSY, WAITING, REST))
    step = bill(rates, busy, waiting, rest)
    found = {"step": step._asdict(), "exposed": bill(rates, 0.0, waiting, 0.0)._asdict()}
    for name, key in (
        ("million_samples", "throughput_samples_per_s"),
        ("million_tokens", "tokens_per_s"),
    ):
        done = (metrics.get(key) or 0.0) * metrics["step_time_s"]
        if done:
            found[name] = {
                part: None if value is None else value * MILLION / done
                for part, value in step._asdict().items()
            }
    return found


def lasting(rates: Rates, metrics: Mapping[str, Any], seconds: float) -> Bill[float]:
    """Cost and energy of a time in which steady steps follow each other."""
    parts = [sum(metrics[key] for key in keys) for keys in (BUSY, WAITING, REST)]
    step_time = metrics["step_time_s"]
    return bill(rates, *(seconds * part / step_time if step_time else 0.0 for part in parts))
