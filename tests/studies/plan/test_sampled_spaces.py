"""Spaces too large to look at each point: a sample by Optuna, the same for the same seed."""

import sys

import pytest
import yaml

from simdp.errors import ScenarioError
from simdp.studies.executor import executor_for
from simdp.studies.plan import PlanRequest, plan, search

SMALL = {
    "name": "large-space",
    "cluster": {
        "world_size": 4,
        "devices_per_node": 2,
        "device": "a100-sxm4-80gb",
        "link": {"alpha": "5 us", "bandwidth": "5 GB/s"},
        "inter_node": {"topology": "switch", "link": {"alpha": "20 us", "bandwidth": "1 GB/s"}},
        "price": "1 USD/h",
    },
    "workload": {
        "model": {"kind": "mlp", "widths": [512, 1024, 512]},
        "optimizer": "adam",
        "microbatch": 4,
        "grad_accum": 4,
    },
    "numerics": False,
    "target": {"samples": 1e8},
}

BANDWIDTH = [f"{n} MB/s" for n in range(1000, 1000 + 40000, 1)]
CHOICES = {
    "nodes": [1, 2, 4],
    "workload.microbatch": [1, 2, 4, 8, 16],
    "cluster.inter_node.link.bandwidth": BANDWIDTH,
}
ASKED = PlanRequest("fastest", choices=CHOICES)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


@pytest.mark.slow
@pytest.mark.extra
def test_a_large_space_is_sampled_and_says_so(file, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(search, "GENERATIONS", 4)
    monkeypatch.setattr(search, "GENERATION", 32)
    found = plan(file, ASKED)
    assert found.num_points == 600_000
    assert not found.is_exact
    assert 0 < found.num_points - found.pruned["sampled"] <= 4 * 32
    assert found.num_simulated + sum(found.pruned.values()) == found.num_points
    best = plan(file, PlanRequest("fastest", choices={**CHOICES, **_few()})).best[0]
    assert found.best[0].finish_s <= 1.1 * best.finish_s
    with executor_for(2) as executor:
        assert plan(file, ASKED, executor=executor) == found
    assert plan(file, ASKED, {"seed": 5}).best != ()


def _few():
    """The slowest and the fastest of the networks, and one between."""
    return {"cluster.inter_node.link.bandwidth": [BANDWIDTH[0], BANDWIDTH[20000], BANDWIDTH[-1]]}


@pytest.mark.slow
@pytest.mark.extra
def test_limits_hold_for_a_sample(file, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(search, "GENERATIONS", 3)
    monkeypatch.setattr(search, "GENERATION", 16)
    free = plan(file, ASKED).best[0]
    found = plan(file, PlanRequest("cheapest", deadline=2 * free.finish_s, choices=CHOICES))
    assert all(option.finish_s <= 2 * free.finish_s for option in (*found.best, *found.front))
    none = plan(file, PlanRequest("cheapest", deadline=free.finish_s / 1e3, choices=CHOICES))
    assert none.best == ()
    assert none.binding == "deadline"


def test_without_optuna_it_is_said_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ScenarioError) as caught:
        plan(file, ASKED)
    (line,) = caught.value.problems
    assert line.startswith("--choose: makes 600,000 points; more than 500,000")
    assert "pip install 'simdp[plan]'" in line


def test_a_space_that_can_be_enumerated_is_not_sampled(file):
    found = plan(file, PlanRequest("fastest", choices={"nodes": [1, 2]}))
    assert found.is_exact
    assert "sampled" not in found.pruned
