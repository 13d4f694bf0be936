"""Groups: which parameters they hold, what they change, how they are refused and written."""

import pickle

import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.optimizers import OPTIMIZERS, AnyOptimizer, ParamGroup
from simdp.workload.optimizers.adam import AdamW
from simdp.workload.optimizers.sgd import SGD

NAMES = ["layers.0.weight", "layers.0.bias", "norm1.weight", "norm1.bias", "fc.weight"]
NO_DECAY = {"params": ["*norm*", "*.bias"], "weight_decay": 0.0}

every_optimizer = for_each("kind", OPTIMIZERS)


def optimizer(kind, **options):
    return TypeAdapter(AnyOptimizer).validate_python({"kind": kind, **options})


def lines(raw):
    """What is wrong with an optimizer, one line each."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyOptimizer).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


# Who belongs to a group --------------------------------------------------------------------------


def test_a_group_changes_the_arguments_of_the_parameters_that_match():
    chosen = optimizer("adamw", lr=0.1, param_groups=[NO_DECAY])
    decays = {name: chosen.for_parameter(name).weight_decay for name in NAMES}
    assert decays == {
        "layers.0.weight": 0.01,
        "layers.0.bias": 0,
        "norm1.weight": 0,
        "norm1.bias": 0,
        "fc.weight": 0.01,
    }
    assert chosen.for_parameter("fc.weight") == AdamW(lr=0.1)
    assert chosen.for_parameter("norm1.bias") == AdamW(lr=0.1, weight_decay=0)


def test_the_first_group_that_matches_wins_whole():
    groups = [{"params": ["*.bias"], "lr": 0.5}, {"params": ["*"], "lr": 0.2, "momentum": 0.9}]
    chosen = optimizer("sgd", param_groups=groups)
    assert chosen.for_parameter("fc.bias") == SGD(lr=0.5)
    assert chosen.for_parameter("fc.weight") == SGD(lr=0.2, momentum=0.9)


def test_a_group_without_arguments_keeps_its_parameters_from_later_groups():
    groups = [{"params": ["fc.*"]}, {"params": ["*"], "lr": 0.5}]
    chosen = optimizer("sgd", param_groups=groups)
    assert chosen.for_parameter("fc.weight") == SGD()
    assert chosen.for_parameter("norm.weight") == SGD(lr=0.5)


@for_each(
    ("pattern", "matching"),
    [
        ("*", NAMES),
        ("*.bias", ["layers.0.bias", "norm1.bias"]),
        ("fc.weight", ["fc.weight"]),
        ("weight", []),
        ("FC.*", []),
        ("layers.?.bias", ["layers.0.bias"]),
        ("norm[12].*", ["norm1.weight", "norm1.bias"]),
        ("[!n]*.bias", ["layers.0.bias"]),
    ],
)
def test_patterns_are_globs_that_tell_upper_from_lower_case(pattern, matching):
    chosen = optimizer("sgd", lr=1, param_groups=[{"params": [pattern], "lr": 2}])
    assert [name for name in NAMES if chosen.for_parameter(name).lr == 2] == matching
    assert chosen.unmatched(NAMES) == ([] if matching else [pattern])


def test_patterns_that_match_nothing_are_listed_in_order():
    groups = [{"params": ["*.bias", "b*"], "lr": 1}, {"params": ["fc.*", "embedding.*", "*.bias"]}]
    chosen = optimizer("sgd", param_groups=groups)
    assert chosen.unmatched(iter(NAMES)) == ["b*", "embedding.*"]
    assert chosen.unmatched([]) == ["*.bias", "b*", "fc.*", "embedding.*", "*.bias"]
    assert SGD().unmatched(NAMES) == []


@every_optimizer
@for_each("none", [{}, {"param_groups": None}])
def test_without_groups_every_parameter_has_the_optimizer_itself(kind, none):
    chosen = optimizer(kind, **none)
    assert chosen.for_parameter("fc.weight") is chosen


@pytest.mark.slow
@every_optimizer
@draws(6, 12)
@given(
    groups=st.lists(st.lists(st.text("abc*?.", min_size=1), min_size=1), max_size=4),
    name=st.text("abc.", min_size=1),
)
def test_groups_that_change_nothing_equal_no_groups(kind, groups, name):
    chosen = optimizer(kind, param_groups=[{"params": patterns} for patterns in groups])
    assert chosen.for_parameter(name) == optimizer(kind)


@given(
    groups=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["*", "a*", "*b", "[ab]", "c"]), min_size=1),
            st.dictionaries(
                st.sampled_from(["lr", "momentum", "weight_decay"]), st.floats(0, 1), max_size=3
            ),
        ),
        max_size=3,
    ),
    name=st.text("abc", min_size=1, max_size=3),
)
def test_a_parameter_has_the_arguments_of_its_group_over_the_optimizers(groups, name):
    own = {"lr": 0.3, "momentum": 0.5}
    chosen = SGD(**own, param_groups=[{"params": p, **arguments} for p, arguments in groups])
    fitting = [a for p, a in groups if ParamGroup(params=p).matches(name)]
    assert chosen.for_parameter(name) == SGD(**{**own, **(fitting[0] if fitting else {})})


# How groups are written --------------------------------------------------------------------------


def test_groups_survive_being_written_and_read_again():
    betas = (0.8, 0.9)
    made = AdamW(param_groups=[NO_DECAY, ParamGroup(params=["*"], betas=betas, amsgrad=True)])
    written = made.model_dump(mode="json", exclude_none=True)
    assert written["param_groups"] == [
        NO_DECAY,
        {"params": ["*"], "betas": [0.8, 0.9], "amsgrad": True},
    ]
    again = TypeAdapter(AnyOptimizer).validate_python(written)
    assert again == made
    assert hash(again) == hash(made)
    assert again.for_parameter("fc.weight") == AdamW(betas=betas, amsgrad=True)


@every_optimizer
def test_an_optimizer_without_groups_writes_none(kind):
    assert "param_groups" not in optimizer(kind).model_dump(mode="json", exclude_none=True)


def test_a_group_holds_what_the_optimizer_would_hold():
    chosen = optimizer("adamw", param_groups=[{"params": ["*"], "lr": 1, "betas": [0, 0.9]}])
    assert chosen.param_groups[0].arguments == {"lr": 1.0, "betas": (0.0, 0.9)}


def test_a_group_that_sets_nothing_to_nothing_is_empty():
    chosen = optimizer("adamw", param_groups=[{"params": ["*"], "lr": None}])
    assert chosen.param_groups[0].arguments == {}


def test_an_optimizer_with_groups_goes_to_other_processes():
    chosen = optimizer("adamw", param_groups=[NO_DECAY])
    assert pickle.loads(pickle.dumps(chosen)) == chosen


def test_a_changed_copy_forgets_what_was_found_before():
    chosen = optimizer("adamw", param_groups=[NO_DECAY])
    assert chosen.for_parameter("fc.bias").lr == 1e-3
    assert chosen.model_copy(update={"lr": 0.5}).for_parameter("fc.bias").lr == 0.5


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("group", "line"),
    [
        (
            {"params": ["*"], "weight_dacay": 0},
            "param_groups.0: unknown key 'weight_dacay'. Did you mean 'weight_decay'? Known: "
            "params, lr, foreach, fused, momentum, dampening, weight_decay, nesterov, maximize.",
        ),
        (
            {"params": ["*"], "betas": [0.9, 0.99]},
            "param_groups.0: unknown key 'betas'; known: params, lr, foreach, fused, "
            "momentum, dampening, weight_decay, nesterov, maximize.",
        ),
        (
            {"params": ["*"], "kind": "adam"},
            "param_groups.0: unknown key 'kind'; known: params, lr, foreach, fused, "
            "momentum, dampening, weight_decay, nesterov, maximize.",
        ),
        (
            {"params": ["*"], "weight_decay": -1},
            "param_groups.0.weight_decay: -1 is out of range; it must be >= 0.0.",
        ),
        ({"params": ["*"], "lr": "fast"}, "param_groups.0.lr: 'fast' is not a number."),
        ({"params": ["*"], "maximize": 1}, "param_groups.0.maximize: 1 is not true or false."),
        ({"lr": 1}, "param_groups.0.params: is required but was not given; add it."),
        ({"params": "*.bias"}, "param_groups.0.params: '*.bias' is not a list."),
        ({"params": []}, "param_groups.0.params: [] has too few entries; it needs at least 1."),
        ({"params": [3]}, "param_groups.0.params.0: 3 is not a text."),
        ("*.bias", "param_groups.0: '*.bias' is not a mapping of keys to values."),
        (
            {"params": ["*"], "nesterov": True},
            "param_groups.0: nesterov needs a momentum above 0 and no dampening; "
            "set momentum: 0.9.",
        ),
    ],
)
def test_a_wrong_group_is_refused_at_its_place(group, line):
    assert lines({"kind": "sgd", "param_groups": [group]}) == [line]
    assert lines({"param_groups": [{"params": ["a"]}, group]}) == [line.replace(".0", ".1", 1)]


def test_every_wrong_group_is_named_at_once():
    groups = [{"params": ["a"], "lr": -1}, {"params": ["b"]}, {"params": ["c"], "momentum": -1}]
    assert lines({"kind": "sgd", "param_groups": groups}) == [
        "param_groups.0.lr: -1 is out of range; it must be >= 0.0.",
        "param_groups.2.momentum: -1 is out of range; it must be >= 0.0.",
    ]


def test_arguments_that_the_group_makes_right_are_accepted():
    chosen = optimizer("sgd", momentum=0.9, param_groups=[{"params": ["*"], "nesterov": True}])
    assert chosen.for_parameter("a") == SGD(momentum=0.9, nesterov=True)


def test_what_is_wrong_with_the_optimizer_itself_is_said_once():
    raw = {"kind": "sgd", "nesterov": True, "param_groups": [{"params": ["*"], "lr": 1}]}
    assert lines(raw) == ["nesterov needs a momentum above 0 and no dampening; set momentum: 0.9."]


@for_each("groups", [3, {"params": ["*"]}, "*"])
def test_groups_are_a_list(groups):
    assert lines({"kind": "sgd", "param_groups": groups}) == [
        f"param_groups: {groups!r} is not a list."
    ]


def test_the_place_in_a_scenario_leads_to_the_group(refuse):
    optimizer = {"kind": "adamw", "param_groups": [NO_DECAY, {"params": ["fc.*"], "lr": -1}]}
    assert refuse({"workload.optimizer": optimizer}) == [
        "workload.optimizer.param_groups.1.lr: -1 is out of range; it must be >= 0.0."
    ]
