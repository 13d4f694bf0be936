"""Money, energy and targets in words: units, dates, and what is left out."""

from for_each import for_each

from simdp.reports import answers
from simdp.reports.figures import duration, energy, money


def shown(rows):
    return [(row.label, row.text) for row in rows]


COST = {
    "step": {"cost_usd": 2e-4, "energy_kwh": 5e-5},
    "exposed": {"cost_usd": 5e-5, "energy_kwh": 4e-6},
    "million_samples": {"cost_usd": 1.5, "energy_kwh": 0.4},
    "price_usd_per_h": 2.5,
    "price_date": None,
}
TARGET = {
    "kind": "samples",
    "samples": {"mean": 1e6, "sd": 1e5},
    "steps": 13817,
    "time_s": {"mean": 7300.0, "p5": 7000.0, "p50": 7300.0, "p90": 7500.0, "p95": 7600.0},
    "cost_usd": {"mean": 1234.5},
    "energy_kwh": {"mean": 1500.0},
}


def test_times_money_and_energy_are_written_with_units_that_suit():
    times = {None: "-", 0.0: "0", 5e-5: "50 us", 0.02: "20 ms", 100.0: "100 s", 600.0: "10 min"}
    times |= {7300.0: "2.03 h", 3e5: "3.47 days", 1e9: "11,574 days"}
    assert {value: duration(value) for value in times} == times
    said = {None: "-", 2e-4: "0.0002 USD", 12.345: "12.3 USD", 54321.0: "54,321 USD"}
    assert {value: money(value) for value in said} == said
    said = {None: "-", 5e-5: "50 mWh", 0.4: "400 Wh", 2.0: "2 kWh", 4.2e5: "420 MWh"}
    assert {value: energy(value) for value in said} == said


def test_rows_tell_the_target_the_step_and_whose_price_it_is():
    found = shown(answers.rows((COST, TARGET)))
    assert found == [
        ("to the target", "2.03 h in 13,817 steps, 90 % of runs in 1.94 h to 2.11 h"),
        ("  costs", "1,234 USD and 1.5 MWh"),
        (
            "a step costs",
            "0.0002 USD and 50 mWh, 25 % and 8 % of it exposed communication and waiting",
        ),
        ("a million samples", "1.5 USD and 400 Wh"),
        ("price", "2.5 USD/h a device"),
    ]


def test_a_list_price_is_written_with_its_date():
    dated = COST | {"price_date": "2026-05"}
    assert shown(answers.price([(dated, None), (COST, None), (dated, None)])) == [
        ("price", "2.5 USD/h a device, list price of 2026-05; 2.5 USD/h a device")
    ]
    dearer = dated | {"price_usd_per_h": 4.0}
    assert shown(answers.price([(dated, None), (dearer, None)])) == [
        ("price", "2.5, 4 USD/h a device, list price of 2026-05")
    ]
    assert shown(answers.price([({}, None)])) == []


def test_what_nobody_knows_is_left_out():
    assert shown(answers.rows(({}, None))) == []
    certain = {**TARGET, "time_s": {"mean": 60.0}, "cost_usd": None, "energy_kwh": None}
    assert shown(answers.rows(({}, certain))) == [("to the target", "60 s in 13,817 steps")]
    never = {"kind": "loss", "reached": False, "time_s": None}
    assert "was not reached" in shown(answers.rows(({}, never)))[0][1]


ASKED = [
    ({"target": {"kind": "epochs"}}, True),
    ({"cluster": {"price": "2 USD/h"}}, True),
    ({"cluster": {"power": {"busy": "1 W"}}}, True),
    ({"sweep": {"cluster.power.waiting": ["1 W"]}}, True),
    ({"cluster": {"world_size": 2}, "sweep": {"cluster.world_size": [1, 2]}}, False),
    ({}, False),
]


@for_each(("scenario", "asked"), ASKED)
def test_a_scenario_asks_for_money_by_its_own_keys(scenario, asked):
    assert answers.is_asked_for(scenario) is asked


def cells(found):
    return {name: [tell(one) for one in found] for name, tell in answers.columns(found).items()}


def test_columns_are_of_the_target_where_there_is_one():
    never = {"time_s": None, "cost_usd": None, "energy_kwh": None}
    assert cells([(COST, TARGET), ({}, never), ({}, None)]) == {
        "to target": ["2.03 h", "never", "-"],
        "USD": ["1,234", "-", "-"],
        "kWh": ["1,500", "-", "-"],
    }


def test_and_else_of_a_million_samples_or_tokens():
    assert cells([(COST, None), ({}, None)]) == {"USD/M": ["1.5", "-"], "kWh/M": ["0.4", "-"]}
    tokens = {"million_tokens": {"cost_usd": 1e-3, "energy_kwh": 2e-4}}
    assert cells([(COST | tokens, None)]) == {"USD/Mtok": ["0.001"], "kWh/Mtok": ["0.0002"]}
    assert cells([]) == {}


def test_energy_has_a_row_with_its_range_where_waiting_power_decides_about_it():
    wide = shown(answers.rows(({**COST, "energy_between_kwh": [4.5e-5, 5.5e-5]}, None)))
    assert ("  energy", f"45 mWh to 55 mWh, {answers.WAITING_POWER}") in wide
    near = shown(answers.rows(({**COST, "energy_between_kwh": [99.0, 100.0]}, None)))
    assert "  energy" not in dict(near)
