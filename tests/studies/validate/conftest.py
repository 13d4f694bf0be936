"""A scenario with measurements, written to disk."""

import pytest
import yaml
from small_scenario import MINIMAL

POINTS = [
    {"set": {"cluster.world_size": 1}, "step_time": "30 us", "role": "calibration"},
    {"set": {"cluster.world_size": 2}, "throughput": "250000 samples/s"},
    {"step_time": "90 us", "note": "a slow switch"},
]


@pytest.fixture
def write(tmp_path):
    """Write a scenario with some top keys replaced; ``measured=None`` leaves that out."""

    def write(name, measured=None, **top):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        raw = {**MINIMAL, "collectives": {"cost": "links"}, **top}
        if measured is not False:
            raw["measured"] = {"source": "a bench", "points": POINTS, **(measured or {})}
        path.write_text(yaml.safe_dump(raw, sort_keys=False))
        return path

    return write
