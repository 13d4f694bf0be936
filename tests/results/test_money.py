"""Money and energy against sums done by hand, and MLPerf's power readings of 1 and 8 nodes."""

from dataclasses import replace

import numpy as np
import pytest

from simdp.cluster.hardware import DEVICES, Power
from simdp.results.metrics import Metrics, Rates, bill, energy_range, lasting, step_bill
from simdp.units import parse

EIGHT = Rates(price=24 / 3600, busy=5600.0, waiting=1600.0, rest=560.0, node=1400.0)


def test_an_hour_costs_the_price_and_draws_by_what_devices_do():
    found = bill(EIGHT, busy=1800.0, waiting=900.0, rest=900.0)
    assert found.cost_usd == pytest.approx(24.0)
    assert found.energy_kwh == pytest.approx(0.5 * 5.6 + 0.25 * 1.6 + 0.25 * 0.56 + 1.4)


def test_downtime_costs_money_and_the_power_of_rest():
    found = bill(EIGHT, 0.0, 0.0, 3600.0)
    assert found.cost_usd == pytest.approx(24.0)
    assert found.energy_kwh == pytest.approx(0.56 + 1.4)


def test_bills_of_many_runs_are_made_at_once():
    busy = np.array([3600.0, 7200.0])
    found = bill(EIGHT, busy, 0 * busy, 0 * busy)
    assert found.cost_usd.tolist() == pytest.approx([24.0, 48.0])
    assert found.energy_kwh.tolist() == pytest.approx([7.0, 14.0])


def test_what_nobody_says_is_not_invented():
    assert bill(Rates(price=1.0), 2.0, 0.0, 0.0) == (2.0, None)
    assert bill(EIGHT._replace(price=None), 3600.0, 0.0, 0.0).cost_usd is None
    assert not Rates(busy=700.0).is_known


def test_half_a_cluster_costs_half():
    half = bill(EIGHT.scaled(0.5), 3600.0, 0.0, 0.0)
    assert half == pytest.approx((12.0, 3.5))


def test_energy_has_a_range_where_the_power_of_waiting_is_not_given():
    between = EIGHT._replace(waiting_between=(1100.0, 2500.0))
    assert energy_range(between, 1800.0, 900.0, 900.0) == pytest.approx((4.615, 4.965))
    assert energy_range(between, 1800.0, 0.0, 0.0) == pytest.approx((3.5, 3.5))
    assert energy_range(EIGHT, 1800.0, 900.0, 900.0) is None


METRICS = Metrics.of(
    {
        "compute_s": 0.06,
        "update_s": 0.01,
        "exposed_comm_s": 0.015,
        "wait_s": 0.005,
        "other_s": 0.01,
        "step_time_s": 0.1,
        "throughput_samples_per_s": 2560.0,
        "tokens_per_s": None,
    }
)


def test_a_step_is_billed_by_its_parts_and_what_is_exposed_apart():
    found = step_bill(EIGHT, METRICS)
    joules = 5600 * 0.07 + 1600 * 0.02 + 560 * 0.01 + 1400 * 0.1
    assert found["step"] == pytest.approx(
        {"cost_usd": 24 * 0.1 / 3600, "energy_kwh": joules / 3.6e6}
    )
    exposed = {"cost_usd": 24 * 0.02 / 3600, "energy_kwh": (1600 + 1400) * 0.02 / 3.6e6}
    assert found["exposed"] == pytest.approx(exposed)
    million = {key: value * 1e6 / 256 for key, value in found["step"].items()}
    assert found["million_samples"] == pytest.approx(million)
    assert "million_tokens" not in found
    in_tokens = step_bill(EIGHT, replace(METRICS, tokens_per_s=2.56e6))["million_tokens"]
    assert in_tokens == pytest.approx({key: value / 1000 for key, value in million.items()})


def test_steps_that_follow_each_other_cost_as_many_as_they_are():
    one = step_bill(EIGHT, METRICS)["step"]
    assert lasting(EIGHT, METRICS, 100.0)._asdict() == pytest.approx(
        {key: 1000 * value for key, value in one.items()}
    )


# ResNet-50 on nodes of eight H100, MLPerf Training v4.0 (Sustainable Metal Cloud, AC meters, median
# of 5 runs): minutes, mean watts of a node, kWh of all. At rest a node takes 2,300 W.
ONE_NODE = {"minutes": 13.369, "watts": 7091.0, "kwh": 1.5801}
EIGHT_NODES = {"minutes": 2.543, "watts": 5812.0, "kwh": 1.9734}
AT_REST = 2300.0


def eight_nodes(waiting, computing):
    """KWh of eight nodes, calibrated on one, from what a waiting GPU draws [W]."""
    power = DEVICES.figures("h100-sxm5-80gb")["power"]
    rest, node = parse(power["rest"], "power"), parse(power["node"], "power")
    assert 8 * rest + node == AT_REST
    busy = (ONE_NODE["watts"] - node) / 8
    rates = Rates(busy=64 * busy, waiting=64 * waiting, rest=64 * rest, node=8 * node)
    seconds = 60 * EIGHT_NODES["minutes"]
    return bill(rates, computing * seconds, (1 - computing) * seconds, 0.0).energy_kwh


def test_one_node_and_a_hung_gpus_watts_tell_the_kwh_of_eight_nodes():
    """What the GPUs wait for is all time beyond an eighth of one node's."""
    computing = ONE_NODE["minutes"] / (8 * EIGHT_NODES["minutes"])
    assert computing == pytest.approx(0.657, abs=1e-3)
    assert eight_nodes(150.0, computing) / EIGHT_NODES["kwh"] - 1 == pytest.approx(-0.026, abs=2e-3)
    # Idle while waiting, or as busy as ever, would not do; nor quite the lower of two readings.
    assert eight_nodes(70.0, computing) / EIGHT_NODES["kwh"] - 1 == pytest.approx(-0.064, abs=2e-3)
    busy = eight_nodes((7091.0 - 1740.0) / 8, computing)
    assert busy / EIGHT_NODES["kwh"] - 1 == pytest.approx(0.22, abs=5e-3)
    assert eight_nodes(209.0, computing) == pytest.approx(EIGHT_NODES["kwh"], rel=2e-3)
    # What simdp takes where nobody says, and between which ends.
    power = Power.model_validate(DEVICES.figures("h100-sxm5-80gb")["power"])
    assert eight_nodes(power.settled().waiting, computing) == pytest.approx(1.990, abs=2e-3)
    low, high = (eight_nodes(watts, computing) for watts in power.waiting_between())
    assert low < EIGHT_NODES["kwh"] < high
    assert (low, high) == pytest.approx((1.919, 2.061), abs=2e-3)
    assert eight_nodes(100.0, computing) / EIGHT_NODES["kwh"] - 1 == pytest.approx(-0.048, abs=2e-3)
