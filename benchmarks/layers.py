"""Steps of a table of layer times: the table, its scenario, and how long they take by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simdp.tables import read_csv
from tests.closed_forms import ring_all_reduce_time

ALPHA, BANDWIDTH = 500e-9, 50e9
LINK = {"alpha": "500 ns", "bandwidth": "50 GB/s"}
DEVICE = "a100-sxm4-80gb"
"""A cluster must have one; it computes nothing here."""

PROFILE = Path(__file__).parents[1] / "scenarios" / "data" / "resnet50_profile.csv"
FASTER = 100
"""By how much the default table is faster than its device: else nothing but compute counts."""

COLUMNS = ("forward_us", "weight_grad_us", "input_grad_us", "gradient_bytes")


class Layer(NamedTuple):
    """A line of a table: times [us] and bytes."""

    forward: float
    weight_grad: float
    input_grad: float
    nbytes: float


def read_layers(path: Path) -> list[Layer]:
    """Read a table; see the model ``profile``.

    Raises
    ------
    ScenarioError
        If there is no such file, or no such table in it.
    """
    rows = read_csv(path, ["name", *COLUMNS])
    return [Layer(*(row.numbers[column] for column in COLUMNS)) for row in rows]


def write_layers(path: Path, layers: Sequence[Layer]) -> None:
    """Write a table for a scenario."""
    lines = [",".join(["name", *COLUMNS])]
    for number, layer in enumerate(layers):
        lines.append(f"layer{number}," + ",".join(map(repr, layer)))
    path.write_text("\n".join(lines) + "\n")


def default_layers() -> list[Layer]:
    """The project's own ResNet-50, on a device that is `FASTER`."""
    return [
        Layer(f / FASTER, w / FASTER, i / FASTER, nbytes)
        for f, w, i, nbytes in read_layers(PROFILE)
    ]


def fifo_step(layers: Sequence[Layer], world_size: int) -> float:
    """Time of a step in which gradients are reduced one by one, as they become ready [s].

    A layer's gradient is ready after its weight_grad; then its input_grad runs, but not for the
    first layer. An all_reduce begins when its gradient is ready and the one before it is done.
    """
    now = sum(layer.forward for layer in layers) / 1e6
    done = 0.0
    for number, layer in reversed(list(enumerate(layers))):
        now += layer.weight_grad / 1e6
        if layer.nbytes:
            took = ring_all_reduce_time(layer.nbytes, world_size, ALPHA, 1 / BANDWIDTH)
            done = max(now, done) + took
        if number:
            now += layer.input_grad / 1e6
    return max(now, done)


def profile_scenario(table: str, world_size: int, **cluster: Any) -> dict[str, Any]:
    """A step of a table in the scenario's folder: one all_reduce for each layer, on a ring."""
    where = {"world_size": world_size, "device": DEVICE, "topology": "ring", "link": dict(LINK)}
    model = {"kind": "profile", "path": table}
    return {
        "cluster": {**where, **cluster},
        "workload": {"model": model, "optimizer": "none", "microbatch": 1},
        "strategy": {"kind": "ddp", "bucket_cap": "0 B"},
        "collectives": {"all_reduce": "ring"},
        "numerics": False,
    }
