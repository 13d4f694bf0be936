"""Every schedule against torch's sequences and the papers' formulas; what is refused and why."""

import json
import math
import re
from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simdp.errors import choices
from simdp.spec import problems
from simdp.workload.schedules import SCHEDULES, AnySchedule
from simdp.workload.schedules.lr_scheduler import OneCycleLR, SequentialLR, StepLR

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = json.loads((GOLDEN / "g05_schedules.json").read_text())
BASE = 0.1
"""Learning rate of the optimizer in all of torch's sequences."""


def schedule(raw):
    return TypeAdapter(AnySchedule).validate_python(raw)


# torch -------------------------------------------------------------------------------------------


LINEAR = {"kind": "linear_lr", "start_factor": 0.1, "end_factor": 1, "total_iters": 5}
LIKE_TORCH = {
    "StepLR(step=5,gamma=0.5)": {"kind": "step_lr", "step_size": 5, "gamma": 0.5},
    "MultiStepLR([5,12],0.1)": {"kind": "multi_step_lr", "milestones": [5, 12]},
    "CosineAnnealingLR(T_max=20,eta_min=0.001)": {
        "kind": "cosine_annealing_lr",
        "T_max": 20,
        "eta_min": 0.001,
    },
    "ExponentialLR(0.9)": {"kind": "exponential_lr", "gamma": 0.9},
    "LinearLR(0.1->1,10)": {**LINEAR, "total_iters": 10},
    "OneCycleLR(max=1,total=30)": {"kind": "one_cycle_lr", "max_lr": 1, "total_steps": 30},
    "SequentialLR(LinearLR(.1,1,5)+Cosine(25))": {
        "kind": "sequential_lr",
        "schedulers": [LINEAR, {"kind": "cosine_annealing_lr", "T_max": 25}],
        "milestones": [5],
    },
}


def test_every_recorded_schedule_has_its_like_here():
    assert set(LIKE_TORCH) == set(RECORDED["lr"])


@for_each("name", LIKE_TORCH)
def test_learning_rates_follow_torch(name):
    chosen = schedule(LIKE_TORCH[name])
    for step, wanted in enumerate(RECORDED["lr"][name], 1):
        assert chosen.lr(BASE, step) == pytest.approx(wanted, rel=1e-12, abs=0)


def test_noam_follows_the_recorded_sequences():
    short = schedule({"kind": "noam", "d_model": 32, "warmup_steps": 10})
    for step, wanted in enumerate(RECORDED["noam_d32_w10"], 1):
        assert short.lr(BASE, step) == pytest.approx(wanted, rel=1e-12, abs=0)
    long = schedule({"kind": "noam", "d_model": 128, "warmup_steps": 4000})
    steps = RECORDED["noam_d128_w4000_steps"]
    for step, wanted in zip(steps, RECORDED["noam_d128_w4000"], strict=True):
        assert long.lr(BASE, step) == pytest.approx(wanted, rel=1e-12, abs=0)


ONE_CYCLE = {"kind": "one_cycle_lr", "max_lr": 1, "total_steps": 20}
# Computed by torch 2.13.0: the learning rate that SGD with lr=0.1 uses at some steps.
MORE = [
    ({"kind": "constant_lr"}, {1: 0.03333333333333333, 5: 0.03333333333333333, 6: 0.1, 9: 0.1}),
    ({"kind": "constant_lr", "factor": 0.7, "total_iters": 3}, {1: 0.07, 3: 0.07, 4: 0.1}),
    ({"kind": "linear_lr"}, {1: 0.03333333333333333, 3: 0.060000000000000005, 6: 0.1, 7: 0.1}),
    ({"kind": "polynomial_lr"}, {1: 0.1, 2: 0.08, 5: 0.02, 6: 0, 8: 0}),
    (
        {"kind": "polynomial_lr", "total_iters": 10, "power": 2.5},
        {1: 0.1, 4: 0.0409963413001697, 10: 0.00031622776601683783, 11: 0, 12: 0},
    ),
    (
        {"kind": "cosine_annealing_lr", "T_max": 7},
        {4: 0.061126046697815725, 8: 0, 9: 0.004951556604879043, 15: 0.1, 20: 0.018825509907063342},
    ),
    (
        {
            **ONE_CYCLE,
            "pct_start": 0.25,
            "anneal_strategy": "linear",
            "div_factor": 10,
            "final_div_factor": 100,
        },
        {1: 0.1, 3: 0.55, 5: 1, 6: 0.9334, 13: 0.4672, 20: 0.001},
    ),
    (
        {**ONE_CYCLE, "pct_start": 0.4, "three_phase": True},
        {
            1: 0.04,
            4: 0.41318995170096917,
            8: 1,
            9: 0.9524650565931612,
            15: 0.04,
            16: 0.0361807218535102,
            20: 4e-6,
        },
    ),
    (
        {**ONE_CYCLE, "total_steps": 10, "pct_start": 0},
        {1: 0.9755283560345442, 5: 0.500002, 10: 4e-6},
    ),
    (
        {
            "kind": "sequential_lr",
            "schedulers": [
                {"kind": "constant_lr", "factor": 0.5, "total_iters": 3},
                {"kind": "step_lr", "step_size": 4, "gamma": 0.5},
                {"kind": "polynomial_lr", "total_iters": 8, "power": 2},
            ],
            "milestones": [5, 12],
        },
        {1: 0.05, 4: 0.1, 6: 0.1, 9: 0.1, 10: 0.05, 13: 0.1, 14: 0.0765625, 20: 0.0015625, 21: 0},
    ),
]


@for_each(("raw", "wanted"), MORE)
def test_what_the_golden_file_leaves_out_follows_torch(raw, wanted):
    chosen = schedule(raw)
    for step, rate in wanted.items():
        assert chosen.lr(BASE, step) == pytest.approx(rate, rel=1e-12, abs=1e-18)


# Warm-ups ----------------------------------------------------------------------------------------


@given(
    warmup=st.integers(0, 50), rest=st.integers(0, 50), step=st.integers(1, 150), half=st.booleans()
)
def test_warmups_follow_hugging_faces_code(warmup, rest, step, half):
    total, done = max(1, warmup + rest), step - 1
    cycles = 0.5 if half else 2.0
    if done < warmup:
        linear = cosine = done / max(1, warmup)
    else:
        linear = max(0.0, (total - done) / max(1, total - warmup))
        progress = (done - warmup) / max(1, total - warmup)
        cosine = max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))
    lengths = {"warmup_steps": warmup, "total_steps": total}
    assert schedule({"kind": "linear_warmup", **lengths}).lr(BASE, step) == pytest.approx(
        BASE * linear, rel=1e-12, abs=0
    )
    options = {} if half else {"num_cycles": 2}
    assert schedule({"kind": "cosine_warmup", **lengths, **options}).lr(BASE, step) == (
        pytest.approx(BASE * cosine, rel=1e-12, abs=1e-18)
    )


def test_a_warmup_begins_at_zero_and_ends_there():
    for kind in ("linear_warmup", "cosine_warmup"):
        chosen = schedule({"kind": kind, "warmup_steps": 4, "total_steps": 10})
        rates = [chosen.lr(1.0, step) for step in range(1, 12)]
        assert rates[0] == 0
        assert rates[4] == max(rates) == 1
        assert rates[10] == pytest.approx(0, abs=1e-16)


# Every schedule ----------------------------------------------------------------------------------


EXAMPLES = [
    "none",
    {"kind": "noam", "d_model": 64, "warmup_steps": 10, "factor": 2},
    {"kind": "linear_warmup", "warmup_steps": 5, "total_steps": 50},
    {"kind": "cosine_warmup", "warmup_steps": 5, "total_steps": 50},
    {"kind": "constant_warmup", "warmup_steps": 3},
    {"kind": "cosine_hard_restarts_warmup", "warmup_steps": 2, "total_steps": 9, "num_cycles": 2},
    {"kind": "polynomial_warmup", "warmup_steps": 2, "total_steps": 9, "lr_end": 0.01},
    {"kind": "inverse_sqrt", "warmup_steps": 3},
    {"kind": "warmup_stable_decay", "warmup_steps": 2, "stable_steps": 4, "decay_steps": 3},
    {"kind": "cosine_annealing_warm_restarts", "T_0": 3, "T_mult": 2},
    {"kind": "cyclic_lr", "base_lr": 0.1, "max_lr": 1, "step_size_up": 3},
    {"kind": "lambda_lr", "table": [0.5] * 10},
    {"kind": "multiplicative_lr", "table": [0.5] * 10},
    {"kind": "chained_scheduler", "schedulers": ["constant_lr", "linear_lr"]},
    {"kind": "reduce_lr_on_plateau"},
    *LIKE_TORCH.values(),
    *(raw for raw, _ in MORE),
]

ENDS = re.compile("one_cycle_lr|table")
"""Schedules that have a last step."""

every_example = for_each("raw", EXAMPLES, ids=str)


def test_every_kind_of_schedule_has_an_example_here():
    assert {schedule(raw).kind for raw in EXAMPLES} == set(SCHEDULES)


@every_example
def test_a_schedule_survives_being_written_and_read_again(raw):
    chosen = schedule(raw)
    assert schedule(chosen.model_dump(mode="json", exclude_none=True)) == chosen


@every_example
def test_rates_are_floats_that_are_finite_and_not_negative(raw):
    chosen = schedule(raw)
    for step in range(1, 11):
        rate = chosen.lr(BASE, step)
        assert isinstance(rate, float)
        assert 0 <= rate < math.inf


@every_example
def test_rates_scale_with_the_base_or_do_without_it(raw):
    chosen = schedule(raw)
    if any(getattr(chosen, name, 0) for name in ("eta_min", "min_lr", "lr_end")):
        return  # a lowest rate of its own
    for step in (1, 4, 9):
        once, twice = chosen.lr(1.0, step), chosen.lr(2.0, step)
        fixed = not chosen.takes_base
        assert twice == pytest.approx(once if fixed else 2 * once, rel=1e-12, abs=1e-18)


@for_each("raw", ["none", None, False, {"kind": "none"}])
def test_no_schedule_leaves_the_rate(raw):
    assert [schedule(raw).lr(0.3, step) for step in (1, 2, 10**6)] == [0.3, 0.3, 0.3]


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_sequence_of_the_same_schedule_starts_it_anew(milestone, step):
    one = StepLR(step_size=3, gamma=0.5)
    both = SequentialLR(schedulers=[one, one], milestones=[milestone])
    own = step if step <= milestone else step - milestone
    assert both.lr(BASE, step) == one.lr(BASE, own)


def test_a_milestone_may_be_repeated():
    twice = schedule({"kind": "multi_step_lr", "milestones": [5, 12, 12], "gamma": 0.5})
    assert [twice.lr(1.0, step) for step in (12, 13)] == [0.5, 0.125]


def test_a_long_composition_is_checked_by_its_members():
    table = {"kind": "lambda_lr", "table": [1.0] * 30}
    chain = schedule({"kind": "chained_scheduler", "schedulers": [table, "constant_lr"]})
    both = schedule({"kind": "sequential_lr", "schedulers": ["none", table], "milestones": [10**6]})
    assert "has a table of 30" in chain.problem_with(10**9)
    assert "has a table of 30" in both.problem_with(10**6 + 31)
    assert both.problem_with(10**6 + 30) is None


# What is refused ---------------------------------------------------------------------------------


KNOWN = choices(sorted(SCHEDULES), "lr_schedule")[9:-1]
PAIR = {"kind": "sequential_lr", "schedulers": ["constant_lr", "none"]}


@for_each(
    ("raw", "lines"),
    [
        ("naom", [f"unknown lr_schedule 'naom'. Did you mean 'noam'? Known: {KNOWN}."]),
        ({"T_max": 5}, [f"this lr_schedule has no kind; known: {KNOWN}."]),
        (
            "noam",
            [
                "d_model: is required but was not given; add it.",
                "warmup_steps: is required but was not given; add it.",
            ],
        ),
        (
            {"kind": "noam", "d_model": 1, "warmup_steps": 0},
            ["warmup_steps: 0 is out of range; it must be >= 1."],
        ),
        (
            {"kind": "cosine_annealing_lr", "T_mx": 5},
            [
                "unknown key 'T_mx'. Did you mean 'T_max'? Known: per, T_max, eta_min.",
                "T_max: is required but was not given; add it.",
            ],
        ),
        ({"kind": "step_lr", "step_size": 1.5}, ["step_size: 1.5 is not a whole number."]),
        ({"kind": "exponential_lr"}, ["gamma: is required but was not given; add it."]),
        (
            {"kind": "exponential_lr", "gamma": -0.9},
            ["gamma: -0.9 is out of range; it must be >= 0.0."],
        ),
        (
            {"kind": "linear_lr", "start_factor": 0},
            ["start_factor: 0 is out of range; it must be > 0.0."],
        ),
        (
            {"kind": "linear_lr", "end_factor": 2, "total_iters": 0},
            [
                "end_factor: 2 is out of range; it must be <= 1.0.",
                "total_iters: 0 is out of range; it must be >= 1.",
            ],
        ),
        ({"kind": "constant_lr", "factor": 3}, ["factor: 3 is out of range; it must be <= 1.0."]),
        ({"kind": "constant_lr", "factor": 0}, ["factor: 0 is out of range; it must be > 0.0."]),
        (
            {"kind": "polynomial_lr", "power": -1},
            ["power: -1 is out of range; it must be >= 0.0."],
        ),
        (
            {"kind": "multi_step_lr", "milestones": [5, 12, 11]},
            ["milestones: [5, 12, 11] falls; give the smallest milestone first."],
        ),
        ({"kind": "multi_step_lr", "milestones": 5}, ["milestones: 5 is not a list."]),
        (
            {"kind": "linear_warmup", "warmup_steps": 20, "total_steps": 10},
            ["total_steps: 10 is less than warmup_steps, 20; raise it or warm up less."],
        ),
        (
            {"kind": "cosine_warmup", "warmup_steps": 20, "total_steps": 10},
            ["total_steps: 10 is less than warmup_steps, 20; raise it or warm up less."],
        ),
        (
            {"kind": "cosine_warmup", "warmup_steps": -1, "total_steps": 10},
            ["warmup_steps: -1 is out of range; it must be >= 0."],
        ),
        (
            {**ONE_CYCLE, "anneal_strategy": "cosine"},
            [
                "anneal_strategy: 'cosine' is not allowed. Did you mean 'cos'? Known: "
                "'cos' or 'linear'."
            ],
        ),
        ({**ONE_CYCLE, "pct_start": 2}, ["pct_start: 2 is out of range; it must be <= 1.0."]),
        (
            {**ONE_CYCLE, "pct_start": 0.05},
            [
                "pct_start 0.05 of total_steps 20 is a single step, which cannot rise; "
                "raise pct_start."
            ],
        ),
        (
            {**PAIR, "milestones": [3, 5]},
            ["milestones: [3, 5] has length 2, but 2 schedulers need 1 of them."],
        ),
        (
            {**PAIR, "milestones": [-1]},
            ["milestones.0: -1 is out of range; it must be >= 0."],
        ),
        (
            {"kind": "sequential_lr", "schedulers": [], "milestones": [3]},
            ["schedulers: [] has too few entries; it needs at least 1."],
        ),
        (
            {"kind": "sequential_lr", "schedulers": ["none", "cyclic"], "milestones": [3]},
            [
                f"schedulers.1: unknown lr_schedule 'cyclic'. Did you mean 'cyclic_lr'? Known: "
                f"{KNOWN}."
            ],
        ),
        (
            {"kind": "sequential_lr", "schedulers": [{**PAIR, "milestones": []}], "milestones": []},
            ["schedulers.0.milestones: [] has length 0, but 2 schedulers need 1 of them."],
        ),
        (
            {"kind": "sequential_lr", "schedulers": [ONE_CYCLE, "none"], "milestones": [25]},
            [
                "milestones: [25] gives schedulers.0 25 steps: one_cycle_lr ends with step 20, "
                "but there is a step 25; raise total_steps."
            ],
        ),
    ],
)
def test_a_wrong_schedule_is_refused(raw, lines):
    with pytest.raises(ValidationError) as caught:
        schedule(raw)
    assert [found.line for found in problems(caught.value, raw)] == lines


# Runs that a schedule cannot lead ----------------------------------------------------------------


def test_a_cycle_has_no_rate_after_its_end():
    cycle = OneCycleLR(max_lr=1, total_steps=20)
    message = "one_cycle_lr ends with step 20, but there is a step 21; raise total_steps."
    assert cycle.problem_with(20) is None
    assert cycle.problem_with(21) == message
    with pytest.raises(ValueError, match="ends with step 20, but there is a step 21"):
        cycle.lr(BASE, 21)


def test_a_sequence_ends_where_its_last_schedule_does():
    both = schedule({"kind": "sequential_lr", "schedulers": ["none", ONE_CYCLE], "milestones": [5]})
    assert both.problem_with(25) is None
    assert "ends with step 20" in both.problem_with(26)


@for_each("raw", [raw for raw in EXAMPLES if not ENDS.search(str(raw))], ids=str)
def test_other_schedules_lead_any_run(raw):
    assert schedule(raw).problem_with(10**6) is None


@for_each("gamma", [10.0, 1e200])
def test_a_rate_that_grows_out_of_all_bounds_is_explained(gamma):
    assert schedule({"kind": "exponential_lr", "gamma": gamma}).problem_with(1000) == (
        "the learning rate of step 1000 is too large to write; lower the factors."
    )
