"""Schedules that restart, cycle, chain, or look at the loss, against what torch made of them."""

import json
from pathlib import Path

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.schedules import AnySchedule
from simdp.workload.schedules.base import Progress, Seen

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = json.loads((GOLDEN / "g16_schedules.json").read_text())
SEQUENCES = RECORDED["sequences"]
COMPOSED = json.loads((GOLDEN / "g16_composed.json").read_text())["cases"]


def schedule(raw):
    return TypeAdapter(AnySchedule).validate_python(raw)


CYCLE = {"kind": "cyclic_lr", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 5}
CHAIN = [
    {"kind": "constant_lr", "factor": 0.1, "total_iters": 4},
    {"kind": "exponential_lr", "gamma": 0.9},
]
LIKE_TORCH = {
    "CosineAnnealingWarmRestarts(T_0=5)": {"kind": "cosine_annealing_warm_restarts", "T_0": 5},
    "CyclicLR(.01,.1,step_size_up=5,triangular)": CYCLE,
    # The 40 rates are those of a cycle of 41 steps: its first phase ends at 0.3 * 41 - 1.
    "OneCycleLR(max=1,total=40)": {"kind": "one_cycle_lr", "max_lr": 1, "total_steps": 41},
    "LambdaLR(table)": {"kind": "lambda_lr", "table": RECORDED["table"]},
    "ChainedScheduler(ConstantLR(.1,4), ExponentialLR(.9))": {
        "kind": "chained_scheduler",
        "schedulers": CHAIN,
    },
    "PolynomialLR(20,power=2)": {"kind": "polynomial_lr", "total_iters": 20, "power": 2},
    "MultiplicativeLR(.95)": {"kind": "multiplicative_lr", "table": [0.95] * 39},
    "per epoch of 4: StepLR(3,.5)": {
        "kind": "step_lr",
        "step_size": 3,
        "gamma": 0.5,
        "per": "epoch",
    },
    "SequentialLR(ConstantLR(.5,3), ExponentialLR(.9), CosineAnnealingLR(10), at 3, 10)": {
        "kind": "sequential_lr",
        "schedulers": [
            {"kind": "constant_lr", "factor": 0.5, "total_iters": 3},
            {"kind": "exponential_lr", "gamma": 0.9},
            {"kind": "cosine_annealing_lr", "T_max": 10},
        ],
        "milestones": [3, 10],
    },
    "transformers linear warmup 5 of 40": {
        "kind": "linear_warmup",
        "warmup_steps": 5,
        "total_steps": 40,
    },
    "transformers cosine warmup 5 of 40": {
        "kind": "cosine_warmup",
        "warmup_steps": 5,
        "total_steps": 40,
    },
}
PLATEAU = {"kind": "reduce_lr_on_plateau", "factor": 0.5, "patience": 2}
SET_BY_MOMENTUM = {"cyclic_lr", "one_cycle_lr"}


def named(case):
    return case.partition("|")[0]


def test_every_recorded_sequence_has_its_like_here():
    plateaus = {name for name in map(named, SEQUENCES) if name.startswith("ReduceLROnPlateau")}
    assert {named(case) for case in SEQUENCES} == set(LIKE_TORCH) | plateaus
    assert plateaus == {"ReduceLROnPlateau(min,factor=.5,patience=2)"}


@for_each("case", [case for case in SEQUENCES if named(case) in LIKE_TORCH])
def test_rates_and_momenta_follow_torch(case):
    chosen = schedule(LIKE_TORCH[named(case)])
    for done, wanted in enumerate(SEQUENCES[case]["lr"]):
        here = Progress(done + 1, epoch=done // 4)
        assert chosen.at(0.1, here) == pytest.approx(wanted, rel=1e-12, abs=1e-15)
        found = chosen.momentum(done + 1)
        assert (found is not None) == (chosen.kind in SET_BY_MOMENTUM)
        if found is not None:
            assert found == pytest.approx(SEQUENCES[case]["momentum"][done], rel=1e-12)


@pytest.mark.parametrize("case", [case for case in SEQUENCES if case.startswith("ReduceLROn")])
def test_a_plateau_is_found_where_torch_finds_it(case):
    chosen, seen = schedule(PLATEAU), Seen()
    losses = RECORDED["metrics"][case.partition("metrics=")[2]]
    for step, wanted in enumerate(SEQUENCES[case]["lr"], 1):
        here = Progress(step, reductions=seen.reductions)
        assert chosen.at(0.1, here) == pytest.approx(wanted, rel=1e-12)
        seen = chosen.seen(seen, losses[step - 1])


def reductions(losses, **options):
    """How often the rate was lowered after each loss."""
    chosen, seen, found = schedule({**PLATEAU, **options}), Seen(), []
    for loss in losses:
        seen = chosen.seen(seen, loss)
        found.append(seen.reductions)
    return found


def test_a_plateau_waits_as_it_is_told():
    same = [1.0] * 8
    assert reductions(same, patience=0) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert reductions(same, patience=1) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert reductions(same, patience=0, cooldown=2) == [0, 1, 1, 1, 2, 2, 2, 3]


def test_what_is_better_depends_on_mode_and_threshold():
    falling = [1.0, 0.95, 0.9, 0.85]
    assert reductions(falling, patience=0) == [0, 0, 0, 0]
    assert reductions(falling, patience=0, mode="max") == [0, 1, 2, 3]
    assert reductions(falling, patience=0, threshold=0.07) == [0, 1, 1, 2]
    assert reductions(falling, patience=0, threshold=0.12, threshold_mode="abs") == [0, 1, 2, 2]
    assert reductions([1.0, float("nan")], patience=0) == [0, 1]


def test_a_plateau_stops_at_the_lowest_rate():
    chosen = schedule({**PLATEAU, "min_lr": 0.03})
    assert [chosen.lr(0.1, number) for number in (1, 2, 3, 9)] == [0.1, 0.05, 0.03, 0.03]
    assert schedule({**PLATEAU, "eps": 0.1}).lr(0.1, 3) == 0.1


def test_cycles_get_lower_as_their_mode_says():
    halved = schedule({**CYCLE, "mode": "triangular2", "step_size_down": 10})
    assert halved.lr(9, 6) == pytest.approx(0.1)
    assert halved.lr(9, 16) == pytest.approx(0.01)
    assert halved.lr(9, 21) == pytest.approx(0.01 + 0.09 / 2)
    falling = schedule({**CYCLE, "mode": "exp_range", "gamma": 0.9})
    assert falling.lr(9, 6) == pytest.approx(0.01 + 0.09 * 0.9**5)
    assert falling.momentum(6) == pytest.approx(0.9 - 0.1 * 0.9**5)
    assert schedule({**CYCLE, "cycle_momentum": False}).momentum(6) is None


def test_restarts_may_come_later_and_later():
    chosen = schedule({"kind": "cosine_annealing_warm_restarts", "T_0": 2, "T_mult": 3})
    high = [step for step in range(1, 30) if chosen.lr(1.0, step) == 1.0]
    assert high == [1, 3, 9, 27]


def test_a_chain_may_count_steps_and_epochs():
    warmup = {"kind": "linear_lr", "start_factor": 0.5, "total_iters": 2}
    falls = {"kind": "step_lr", "step_size": 1, "gamma": 0.1, "per": "epoch"}
    chosen = schedule({"kind": "chained_scheduler", "schedulers": [warmup, falls]})
    assert chosen.counted() == {"step", "epoch"}
    rates = [chosen.at(1.0, Progress(step, epoch=(step - 1) // 2)) for step in range(1, 6)]
    assert rates == pytest.approx([0.5, 0.75, 0.1, 0.1, 0.01])


def test_the_constructor_of_a_cycle_sets_the_momentum_before_its_turn():
    chosen = schedule(
        {"kind": "sequential_lr", "schedulers": ["constant_lr", CYCLE], "milestones": [3]}
    )
    assert [chosen.momentum(step) for step in (1, 3, 4, 9)] == pytest.approx([0.9, 0.9, 0.9, 0.8])


@for_each("case", COMPOSED)
def test_compositions_follow_torch(case):
    chosen = schedule(case["schedule"])
    assert chosen.problem_with(20, 20) is None
    rates = [chosen.lr(0.1, step) for step in range(1, 21)]
    assert rates == pytest.approx(case["lr"], rel=1e-9, abs=1e-14)
    momenta = [chosen.momentum(step) for step in range(1, 21)]
    if "momentum" in case:
        assert momenta == pytest.approx(case["momentum"], rel=1e-9)
    else:
        assert set(momenta) <= {None, 0.9}


def test_a_chain_of_members_that_count_epochs_counts_epochs():
    falls = [
        {"kind": kind, "per": "epoch", **more}
        for kind, more in [
            ("exponential_lr", {"gamma": 0.5}),
            ("cosine_annealing_lr", {"T_max": 4}),
        ]
    ]
    chosen = schedule({"kind": "chained_scheduler", "schedulers": falls})
    alone = schedule(
        {"kind": "chained_scheduler", "schedulers": [{**member, "per": "step"} for member in falls]}
    )
    for epoch in range(4):
        assert chosen.at(0.1, Progress(7 * epoch + 3, epoch)) == alone.lr(0.1, epoch + 1)


# transformers 5.23.0: the factors of its schedules' lambdas, computed by hand from their formulas.
WARMUPS = [
    ({"kind": "constant_warmup", "warmup_steps": 4}, {1: 0, 3: 0.5, 5: 1, 99: 1}),
    (
        {
            "kind": "cosine_hard_restarts_warmup",
            "warmup_steps": 2,
            "total_steps": 10,
            "num_cycles": 2,
        },
        {2: 0.5, 3: 1, 5: 0.5, 7: 1, 9: 0.5, 11: 0, 12: 0},
    ),
    (
        {"kind": "polynomial_warmup", "warmup_steps": 2, "total_steps": 10, "lr_end": 0.2},
        {1: 0, 2: 0.5, 3: 1, 7: 0.6, 11: 0.2, 40: 0.2},
    ),
    (
        {
            "kind": "polynomial_warmup",
            "warmup_steps": 0,
            "total_steps": 10,
            "lr_end": 0,
            "power": 2,
        },
        {1: 1, 6: 0.25, 11: 0},
    ),
    ({"kind": "inverse_sqrt", "warmup_steps": 4}, {1: 0, 3: 0.5, 5: 1, 17: 0.5}),
    ({"kind": "inverse_sqrt", "warmup_steps": 4, "timescale": 1}, {5: 1, 8: 0.5}),
    ({"kind": "inverse_sqrt", "warmup_steps": 0}, {1: 1, 30001: 0.5}),
    (
        {"kind": "warmup_stable_decay", "warmup_steps": 4, "stable_steps": 3, "decay_steps": 4},
        {1: 0, 3: 0.5, 5: 1, 7: 1, 8: 1, 10: 0.5, 12: 0, 50: 0},
    ),
    (
        {
            "kind": "warmup_stable_decay",
            "warmup_steps": 4,
            "stable_steps": 0,
            "decay_steps": 4,
            "warmup_type": "1-sqrt",
            "decay_type": "linear",
            "min_lr_ratio": 0.2,
        },
        {1: 0.2, 4: 0.8 * 0.5 + 0.2, 5: 1, 7: 0.6, 9: 0.2},
    ),
]


@for_each(("raw", "wanted"), WARMUPS)
def test_warm_ups_follow_hugging_face(raw, wanted):
    chosen = schedule(raw)
    found = {step: chosen.lr(1.0, step) for step in wanted}
    assert found == pytest.approx(wanted, abs=1e-12)


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("raw", "line"),
    [
        (
            {
                "kind": "chained_scheduler",
                "schedulers": [{"kind": "constant_lr", "per": "epoch"}, CYCLE],
            },
            "schedulers: number 1, cyclic_lr, sets the rate, and others count epochs and steps; "
            "count one of the two (per), or chain only constant_lr, constant_warmup, "
            "exponential_lr, lambda_lr, linear_lr, multi_step_lr, multiplicative_lr, "
            "polynomial_lr, step_lr.",
        ),
        (
            {"kind": "chained_scheduler", "schedulers": ["constant_lr", PLATEAU]},
            "schedulers: number 1, reduce_lr_on_plateau, follows the loss, which a chain does "
            "not support (nor does torch); use it alone.",
        ),
        (
            {
                "kind": "sequential_lr",
                "schedulers": ["none", {"kind": "chained_scheduler", "schedulers": CHAIN}],
                "milestones": [3],
            },
            "schedulers: number 1, chained_scheduler, is made of several schedulers, which torch's "
            "SequentialLR takes in the first place only; write its members here.",
        ),
        (
            {
                "kind": "sequential_lr",
                "schedulers": [{"kind": "constant_lr", "per": "epoch"}],
                "milestones": [],
            },
            "schedulers: number 0, constant_lr, follows the epoch; write per: epoch beside "
            "schedulers.",
        ),
        (
            {"kind": "sequential_lr", "schedulers": ["none", PLATEAU], "milestones": [3]},
            "schedulers: number 1, reduce_lr_on_plateau, follows the reductions; use it alone.",
        ),
        ({**CYCLE, "gamma": 0.9}, "gamma is of mode exp_range, but mode is triangular; leave"),
        ({"kind": "lambda_lr", "table": []}, "table: [] has too few entries; it needs at least 1."),
        ({"kind": "step_lr", "step_size": 1, "per": "day"}, "per: 'day' is not allowed; known:"),
    ],
)
def test_bad_schedules_are_refused_in_one_line(raw, line):
    with pytest.raises(ValidationError) as caught:
        schedule(raw)
    (found,) = [found.line for found in problems(caught.value, raw)]
    assert found.startswith(line)


def test_a_table_ends():
    short = schedule({"kind": "lambda_lr", "table": [1.0, 0.5]})
    assert short.problem_with(2) is None
    assert short.problem_with(3) == (
        "lambda_lr has a table of 2, but 3 are needed; make it longer."
    )
    falls = schedule({"kind": "multiplicative_lr", "table": [0.5]})
    assert falls.problem_with(2) is None
    assert "multiplicative_lr has a table of 1" in falls.problem_with(3)
    by_epoch = schedule({"kind": "lambda_lr", "table": [1.0, 0.5], "per": "epoch"})
    assert by_epoch.problem_with(100, num_epochs=2) is None
