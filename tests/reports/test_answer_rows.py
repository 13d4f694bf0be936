"""Answers in words: what things cost, what is known of the hardware, and what would help."""

from dataclasses import replace

from simdp.reports import answers
from simdp.reports.figures import Row
from simdp.results.metrics import Metrics
from simdp.results.result import Advice, Result


def shown(rows):
    return [(row.label, row.text) for row in rows]


DULL = Metrics(step_time_s=1e-3, exposed_comm_s=0.0, throughput_samples_per_s=2000.0)


def result(network=None, remarks=None, all_reduce="ring"):
    scenario = {"cluster": {"world_size": 8}, "collectives": {"all_reduce": {"kind": all_reduce}}}
    return Result(scenario, {}, DULL, network=network or {}, remarks=remarks or {})


def test_rates_are_written_where_they_apply():
    assert answers.rates(DULL) == ["2,000 samples/s"]
    assert answers.rates(replace(DULL, **{"tokens_per_s": 1e6})) == [
        "2,000 samples/s",
        "1,000,000 tokens/s",
    ]
    assert answers.rates(replace(DULL, **{"throughput_samples_per_s": None})) == ["-"]
    assert shown(answers.mfu(DULL)) == []
    assert shown(answers.mfu(replace(DULL, **{"mfu": 0.4567}))) == [
        ("MFU", "45.7 % of the devices' peak")
    ]
    again = replace(DULL, **{"mfu": 0.3, "hfu": 0.4})
    assert shown(answers.mfu(again)) == [("MFU", "30 % of the devices' peak; HFU 40 %")]
    each = replace(DULL, **{"tokens_per_s": 1e6, "tokens_per_s_per_gpu": 2.5e5})
    assert answers.rates(each)[1] == "1,000,000 tokens/s, 250,000 per device"


def costs(metrics):
    """Rows on the time of a step."""
    makers = (answers.interval, answers.without_stragglers, answers.all_hidden)
    return [row for rows in makers for row in rows(metrics)]


def test_costs_are_written_as_the_step_without_them():
    assert shown(costs(DULL)) == []
    full = {"exposed_comm_s": 0.25e-3, "interval_s": [0.9e-3, 1.2e-3], "without_stragglers_s": 8e-4}
    assert shown(costs(replace(DULL, **full))) == [
        ("90 % interval of a step", "900 us to 1.2 ms"),
        ("without stragglers", "800 us, 20 % less"),
        ("if all comm was hidden", "750 us, 25 % less"),
    ]
    same = shown(costs(replace(DULL, **{"without_stragglers_s": 0.9999e-3})))
    assert same == [("without stragglers", "999.9 us, about the same")]
    nothing = {"step_time_s": 0.0, "interval_s": None, "without_stragglers_s": 8e-4}
    assert shown(costs(replace(DULL, **full | nothing))) == []


def test_the_noise_of_gradients_is_told_with_what_the_batch_costs():
    assert shown(answers.gradient_noise(None)) == []
    found = {"steps": 100, "noise_scale": 212.34, "samples": 1.6, "steps_taken": 2.66}
    ((name, said),) = shown(answers.gradient_noise(found))
    assert name == "gradient noise"
    assert said.startswith("scale 212 samples, about the critical batch")
    assert "1.6 times the fewest samples, 2.66 times the fewest steps" in said
    ((_, said),) = shown(answers.gradient_noise(found | {"noise_scale": None}))
    assert said == "chance hides the signal in 100 steps; try more"


def test_cards_that_carry_nothing_are_named_with_what_would_use_them():
    assert shown(answers.cards(result())) == []
    assert shown(answers.cards(result({"cards": {"used": 8, "of": 8}}))) == []
    ((name, said),) = shown(answers.cards(result({"cards": {"used": 1, "of": 8}})))
    assert name == "network cards"
    assert said.startswith("1 of 8 of a node are used")
    assert "collectives.cost: nccl" in said
    ((_, other),) = shown(answers.cards(result({"cards": {"used": 2, "of": 8}}, all_reduce="tree")))
    assert "ring" not in other
    assert "collectives.cost: nccl" in other


def test_remarks_of_many_points_are_made_once_and_kept_short():
    remarks = {"calibration": "none", "undetermined": "a constant, " * 50}
    assert [name for name, _ in shown(answers.known([result(remarks=remarks)]))] == ["calibration"]
    rows = shown(answers.known([result(remarks=remarks)] * 3, verbose=True))
    assert [name for name, _ in rows] == ["calibration", "undetermined"]
    assert len(rows[1][1]) <= answers.MOST_LETTERS
    assert rows[1][1].endswith("...")


def test_advice_says_how_much_was_tried():
    assert shown(answers.advice(None)) == shown(answers.advice(Advice([], 0))) == []
    assert shown(answers.advice(Advice([], 1))) == [
        ("would help", "none of 1 change simulated, times alone")
    ]
    assert shown(answers.advice(Advice(["this", "that"], 5))) == [
        ("would help", "this"),
        ("would help", "that"),
        ("", "(5 changes simulated, times alone)"),
    ]


def test_rows_break_at_spaces():
    ((_, said),) = answers.wrapped([Row("a", "a", "collectives.all_reduce: " * 4)], cell=30)
    assert max(map(len, said.splitlines())) <= 30
    text = answers.lines([Row("a", "a", "word " * 40), Row("b", "b", "short")], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.splitlines()[-1] == "b: short"


def test_few_samples_a_second_have_three_digits():
    for rate, said in ((0.4683, "0.468"), (5.563, "5.56"), (418479.2, "418,479"), (100.2, "100")):
        assert answers.rates(Metrics(throughput_samples_per_s=rate)) == [f"{said} samples/s"]
