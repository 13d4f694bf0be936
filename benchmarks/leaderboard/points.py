"""The measured points: plain dictionaries of SI numbers, one for a step or a size of a collective.

A point's figures are those that anybody can look up (the model, the device, the links) and what
one device takes for a step; of the times of several ranks only ``measured_s`` tells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from simdp.collectives.costs import Wiring
from simdp.files import write_whole

FILE = Path(__file__).parent / "points.json"

Point = Mapping[str, Any]

SECRET = ("measured_s", "role")
"""What a question lacks."""

LARGE = 1 << 20
"""Size of a collective from which the bandwidth decides what it takes [bytes]."""

FAST, SLOW = "NVLink, RDMA", "TCP, PCIe"


class Points(NamedTuple):
    """What the file holds.

    Attributes
    ----------
    version : int
        Rises with every change.
    date : str
        Of that version.
    digest : str
        Of the points themselves.
    sources : dict of str to str
        Where the figures come from, by scenario.
    noise : dict of str to float
        By cluster: what no model could be better than.
    points : tuple of Point
        Steps, then sizes of collectives.
    """

    version: int
    date: str
    digest: str
    sources: dict[str, str]
    noise: dict[str, float]
    points: tuple[Point, ...]


def load(path: Path = FILE) -> Points:
    """Read the file; what the points of a scenario have in common is written once there."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    points: list[Point] = []
    noise: dict[str, float] = {}
    for name, scenario in raw["scenarios"].items():
        steps = [{**scenario["steps"], **own} for own in scenario["points"]]
        for each in (*steps, *scenario["tables"]):
            noise[each["cluster"]] = max(noise.get(each["cluster"], 0.0), scenario["noise"])
        points += [
            {"id": f"{name}#{n}", "kind": "step", "scenario": name, **each}
            for n, each in enumerate(steps)
        ]
    for name, scenario in raw["scenarios"].items():
        for n, table in enumerate(scenario["tables"]):
            common = {key: value for key, value in table.items() if key != "times"}
            points += [
                {
                    "id": f"{name}#table{n}/{nbytes}",
                    "kind": "collective",
                    "scenario": name,
                    **common,
                    "nbytes": nbytes,
                    "measured_s": seconds,
                    "role": role,
                }
                for nbytes, seconds, role in table["times"]
            ]
    sources = {name: scenario["source"] for name, scenario in raw["scenarios"].items()}
    digest = digest_of(raw["scenarios"])
    return Points(raw["version"], raw["date"], digest, sources, noise, tuple(points))


def put(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    write_whole(path, write)


def digest_of(scenarios: Any) -> str:
    """A short name for what the file says, but for its version and date."""
    text = json.dumps(scenarios, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def question(point: Point) -> Point:
    """A point without its answer."""
    return {key: value for key, value in point.items() if key not in SECRET}


def settings(point: Point) -> str:
    """All that was set, equal for two measurements of the same thing, whoever they are quoted by.

    Two scenarios may quote the same run, one with its time for one device, one without.
    """
    apart = (*SECRET, "id", "scenario", "micro_step_s")
    return json.dumps({k: v for k, v in point.items() if k not in apart}, sort_keys=True)


def wiring(point: Point) -> Wiring:
    """What joins the ranks of a point."""
    return Wiring(
        world_size=point["ranks"],
        num_nodes=point["nodes"],
        local_size=point["ranks_per_node"],
        intra_alpha=point["intra_latency_s"],
        intra_bandwidth=point["intra_bandwidth"] or inf,
        inter_alpha=point["inter_latency_s"],
        inter_bandwidth=point["inter_bandwidth"] or inf,
        cards=point["cards"],
        peer=point["peer"],
        network=point["network"],
    )


def wires(point: Point) -> str:
    """The class of a point: by the slowest wires that it uses."""
    inside = point["ranks_per_node"] == 1 or point["peer"] == "nvlink"
    between = point["nodes"] == 1 or point["network"] != "tcp"
    return FAST if inside and between else SLOW


def of_cluster(points: Sequence[Point], cluster: str) -> list[Point]:
    """Only those of one cluster."""
    return [point for point in points if point["cluster"] == cluster]
