"""The pool: what clusters reach by class of network, for one that nobody has measured.

``pool.yaml`` has what NCCL plans with, and what each site got. A class takes the geometric mean of
its sites where that errs less than the published figure, by sites that were left out one at a time;
else it keeps what is published. Its spread is how far another site may be off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from math import exp, inf, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.files import read_yaml
from simdp.units import parse

PEERS = ("nvlink", "pcie", "host")
NETWORKS = ("rdma", "roce", "libfabric", "staged", "tcp")
"""Classes of what joins the devices of a node, and the nodes; keys of ``pool.yaml``."""

PAYLOAD = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""What a protocol carries at most: the rest are flags."""

BEFORE, WEIGHT = 0.3, 2
"""Spread of a class of which nothing is known, and the sites that this counts for: shares of a
bandwidth spread by 0.17 to 0.35 over sites."""


class Pooled(NamedTuple):
    """A constant of a class.

    Attributes
    ----------
    value : float
        What a cluster gets that nobody has measured: a share, or a rate [bytes/s].
    spread : float
        Standard deviation of its logarithm, for one further site.
    is_published : bool
        Whether it is NVIDIA's; else the mean of sites.
    sites : dict of str to float
        What each of them got.
    about : str
        What the class is.
    """

    value: float
    spread: float
    is_published: bool
    sites: dict[str, float]
    about: str


def pooled(place: str, name: str, constant: str, without: Collection[str] = ()) -> Pooled:
    """What is known of a class.

    Parameters
    ----------
    place : {"peer", "network"}
    name : str
        One of `PEERS`, or of `NETWORKS`.
    constant : {"share", "flow"}
        Share of a bandwidth; or of ``tcp`` what a node gets through at most [bytes/s].
    without : collection of str
        Machines that are left out, each with its whole site.
    """
    return _pooled(place, name, constant, frozenset(without))


@cache
def _pooled(place: str, name: str, constant: str, without: frozenset[str]) -> Pooled:
    file = _file()
    entry = file[place][name]
    sites = {
        site: exp(np.mean([log(_number(value)) for value in machines.values()]))
        for site, machines in entry[constant].items()
        if without.isdisjoint(machines)
    }
    logs = np.array([log(value) for value in sites.values()])
    published = file["published"][place]["simple"] if constant == "share" else None
    value, kept = _taken(logs, published)
    freedom = len(logs) if kept else max(len(logs) - 1, 0)
    misses = float(np.sum((logs - log(value)) ** 2))
    spread = sqrt((BEFORE**2 * WEIGHT + misses) / (WEIGHT + freedom))
    if not kept:
        spread *= sqrt(1 + 1 / len(logs))
    return Pooled(value, spread, kept, sites, entry["about"])


def _taken(logs: Floats, published: float | None) -> tuple[float, bool]:
    """The value of a class, and whether it is the published one."""
    mean = exp(float(logs.mean())) if len(logs) else inf
    if published is None:
        return mean, False
    if len(logs) < 2:
        return published, True
    others = (logs.sum() - logs) / (len(logs) - 1)
    is_nearer = np.abs(logs - others).sum() < np.abs(logs - log(published)).sum()
    return (mean, False) if is_nearer else (published, True)


def share_of(
    place: str, name: str, protocol: str, bandwidth: float, without: Collection[str] = ()
) -> float:
    """Share of a bandwidth that a protocol's payload gets in a class.

    Parameters
    ----------
    place, name, without
        As in `pooled`.
    protocol : str
        A key of `PAYLOAD`.
    bandwidth : float
        Of the datasheet, of all cards of a node together [bytes/s].
    """
    found = pooled(place, name, "share", without)
    if found.is_published:
        share = float(_file()["published"][place][protocol])
    else:
        share = found.value * PAYLOAD[protocol]
    if name != "tcp":
        return share
    flow = pooled(place, name, "flow", without).value
    return min(share, flow * PAYLOAD[protocol] / bandwidth)


def _number(value: Any) -> float:
    return parse(value, "bandwidth") if isinstance(value, str) else float(value)


@cache
def _file() -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_yaml(Path(__file__).parent / "pool.yaml")
    return found
