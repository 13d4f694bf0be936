"""Power and prices: the catalogue's, the user's own on top, and what is refused."""

import pytest
from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.cluster.hardware import Power

OWN = {"peak": {"float32": "10 TFLOP/s"}, "memory": "16 GB", "memory_bandwidth": "500 GB/s"}


def cluster(**keys):
    raw = {"world_size": 8, "device": "h100-sxm5-80gb", "link": "nvlink4", **keys}
    return Cluster.model_validate(raw)


def problem_with(**keys):
    with pytest.raises(ValidationError) as raised:
        cluster(**keys)
    return str(raised.value)


def test_the_catalogue_says_what_a_node_of_h100_costs_and_draws():
    rates = cluster().rates()
    assert rates.price == pytest.approx(8 * 3 / 3600)
    assert (rates.rest, rates.busy) == (8 * 70.0, 8 * 660.0)
    assert rates.waiting == pytest.approx(8 * (70 + 0.26 * 590))
    assert rates.node == 1740.0


def test_nodes_are_counted_by_nodes():
    inter = {"topology": "switch", "link": "ib-ndr"}
    rates = cluster(world_size=16, devices_per_node=8, inter_node=inter).rates()
    assert rates.node == 2 * 1740.0
    assert rates.busy == 16 * 660.0


def test_the_users_own_comes_first_and_the_catalogue_fills_the_rest():
    rates = cluster(price="2 USD/h", power={"waiting": "200 W"}).rates()
    assert rates.price == pytest.approx(16 / 3600)
    assert (rates.rest, rates.waiting, rates.busy) == (560.0, 1600.0, 5280.0)


def test_nothing_is_known_of_a_device_of_which_nobody_says_anything():
    assert not cluster(device=OWN).rates().is_known
    limit_alone = cluster(device="v100-sxm2-16gb").rates()  # its limit, and nothing of rest
    assert not limit_alone.has_power


def test_waiting_is_a_quarter_of_the_way_and_may_be_an_eighth_or_more_where_it_is_not_given():
    power = Power.model_validate({"rest": "50 W", "busy": "250 W"})
    assert power.settled().waiting == pytest.approx(102.0)
    assert power.waiting_between() == pytest.approx((76.0, 128.0))
    assert cluster().rates().waiting_between == pytest.approx((8 * 146.7, 8 * 300.1))
    assert cluster().rates().scaled(0.5).waiting_between == pytest.approx((4 * 146.7, 4 * 300.1))
    assert cluster(power={"waiting": "200 W"}).rates().waiting_between is None
    assert cluster(device=OWN).rates().waiting_between is None


def test_ranks_on_one_device_pay_for_it_once():
    assert cluster(ranks_per_device=2).rates().busy == 4 * 660.0


def test_mixed_devices_add_up():
    rates = cluster(device=["h100-sxm5-80gb"] * 4 + ["a100-sxm4-80gb"] * 4).rates()
    assert rates.busy == 4 * 660.0 + 4 * 400.0
    assert rates.price == pytest.approx(4 * (3 + 1.3) / 3600)
    assert rates.node == 1740.0  # of the hungrier kind


def test_an_own_device_may_say_what_it_costs_and_draws():
    own = OWN | {
        "price": {"amount": "1 USD/h", "date": "2026-11"},
        "power": {"rest": "10 W", "busy": "100 W"},
    }
    rates = cluster(device=own).rates()
    assert rates.price == pytest.approx(8 / 3600)
    assert rates.rest == 80.0
    assert rates.node == 0.0


def test_a_power_that_says_too_little_is_refused():
    said = problem_with(device=OWN, power={"busy": "300 W"})
    assert "rest of the device is given neither here nor in the catalogue" in said
    assert "add rest, for example rest: 80 W" in said
    assert "rest of v100-sxm2-16gb" in problem_with(device="v100-sxm2-16gb", power={"node": "1 kW"})


def test_a_device_that_draws_less_when_busy_is_refused():
    said = problem_with(power={"rest": "300 W", "busy": "200 W"})
    assert "rest is 300 W and busy 200 W; a device draws least at rest" in said


def test_figures_without_units_are_refused():
    assert '25 has no unit; write for example "2.5 USD/h"' in problem_with(price=25)
    assert '700 has no unit; write for example "700 W"' in problem_with(power={"busy": 700})
    assert "'2.5 USD' is not a price" in problem_with(price="2.5 USD")
