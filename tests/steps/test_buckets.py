"""Buckets, byte for byte as torch's DDP fills them, and the rule itself on any tensors."""

import json
from pathlib import Path

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from small_workload import facts_of, program_of

from simdp.steps.partition import MiB, assign, limits, rules
from simdp.strategies.ddp import DDP
from simdp.workload.layers.base import Parameter
from simdp.workload.models import AnyModel
from simdp.workload.models.sequential import MLP

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "g08_buckets.json").read_text())["cases"]
RECORDED = json.loads((GOLDEN / "g08_models.json").read_text())["models"]
MODELS = {
    "mlp4x1024": MLP(widths=[1024] * 5),
    "resnet50": TypeAdapter(AnyModel).validate_python("resnet50"),
    "seed_mlp_5_8_6_2": MLP(widths=[5, 8, 6, 2]),
}
FLOAT32 = 4


def torchs_name(name):
    """Torch's Sequential counts activations too: an mlp's layers.1.weight is its 2.weight."""
    first, *rest = name.split(".")
    return f"{2 * int(rest[0])}.{rest[1]}" if first == "layers" else name


def strategy_of(case):
    cap = case["bucket_cap_mb"]
    options = {} if cap is None else {"bucket_cap": f"{int(cap * 1024 * 1024)} B"}
    return DDP(find_unused_parameters=case["find_unused_parameters"], **options)


def layout(case, iteration):
    """Buckets of an iteration, as torch's parameter indices and as bytes."""
    model = MODELS[case["model"]]
    parameters = model.parameters()
    index = {p.name: i for i, p in enumerate(parameters)}
    buckets = strategy_of(case).buckets(parameters, model.ready_order(), FLOAT32, iteration)
    nbytes = [sum(parameters[index[n]].num_elements * FLOAT32 for n in names) for names in buckets]
    return [[index[name] for name in names] for names in buckets], nbytes


every_case = for_each("case", CASES.values(), ids=CASES)


# torch -------------------------------------------------------------------------------------------


@for_each("name", MODELS)
def test_models_have_torchs_tensors_and_ready_order(name):
    model, recorded = MODELS[name], RECORDED[name]
    parameters = model.parameters()
    assert [torchs_name(p.name) for p in parameters] == recorded["names"]
    assert [list(p.shape) for p in parameters] == recorded["shapes"]
    assert [p.num_elements * FLOAT32 for p in parameters] == recorded["nbytes"]
    ready = [recorded["names"][i] for i in recorded["grad_ready_order_no_ddp"]]
    assert [torchs_name(n) for n in model.ready_order()] == ready


@every_case
def test_the_first_iteration_has_torchs_buckets(case):
    _, nbytes = layout(case, iteration=0)
    assert nbytes == case["bucket_sizes"]
    launched = [launch[2] * FLOAT32 for launch in case["comm_launches_iter1"]]
    assert nbytes == launched


@every_case
def test_later_iterations_have_torchs_buckets(case):
    indices, nbytes = layout(case, iteration=1)
    assert nbytes == (case["rebuilt_bucket_sizes"] or case["bucket_sizes"])
    assert nbytes == [launch[2] * FLOAT32 for launch in case["comm_launches_iter2"]]
    if case["has_rebuilt_buckets"]:
        written = ", ".join(" ".join(map(str, bucket)) for bucket in indices)
        assert written == case["rebuilt_per_bucket_param_indices"]
    assert layout(case, iteration=7) == (indices, nbytes)


@every_case
def test_bytes_of_a_steady_step_are_those_of_later_iterations(case):
    model = MODELS[case["model"]]
    facts = facts_of(model.parameters(), model.ready_order())
    nbytes = program_of(strategy_of(case), facts).bucket_nbytes
    assert nbytes == layout(case, iteration=1)[1]
    assert all(isinstance(value, int) for value in nbytes)


# Settings ----------------------------------------------------------------------------------------


def test_without_a_cap_the_first_bucket_is_small():
    assert limits(None) == [1 * MiB, 25 * MiB]


def test_a_cap_holds_for_every_bucket():
    assert limits(25.0 * MiB) == [25 * MiB]


@for_each("iteration", [0, 1])
def test_reverse_registration_has_its_buckets_from_the_start(iteration):
    model = MODELS["mlp4x1024"]
    names = [p.name for p in model.parameters()]
    buckets = DDP(bucket_order="reverse_registration").buckets(
        model.parameters(), model.ready_order(), FLOAT32, iteration
    )
    assert [name for bucket in buckets for name in bucket] == names[::-1]
    assert [len(bucket) for bucket in buckets] == [2, 6]


def test_a_cap_of_nothing_puts_every_tensor_into_a_bucket_of_its_own():
    model = MODELS["seed_mlp_5_8_6_2"]
    facts = facts_of(model.parameters(), model.ready_order())
    assert program_of(DDP(bucket_cap="0 B"), facts).bucket_nbytes == [8, 48, 24, 192, 32, 160]


# Versions of torch -------------------------------------------------------------------------------


def versioned(iteration, **options):
    """Bytes of the buckets of four layers of 4 MiB."""
    model = MODELS["mlp4x1024"]
    parameters = model.parameters()
    sizes = {p.name: p.num_elements * FLOAT32 for p in parameters}
    layout = DDP(**options).buckets(parameters, model.ready_order(), FLOAT32, iteration)
    return [sum(sizes[name] for name in names) for names in layout]


LAYER, BIAS = 4 * MiB, 4096
EVERYTHING = [4 * (LAYER + BIAS)]
SMALL_ONE_LAST = [3 * LAYER + 4 * BIAS, LAYER]
"""Filled in order of registration, which begins with a weight, and sent from the last."""

SMALL_ONE_FIRST = [LAYER + BIAS, 3 * (LAYER + BIAS)]
"""In the order in which gradients become ready: a bias and its weight are beyond 1 MiB."""


@for_each(
    ("version", "first", "later"),
    [
        ("1.4", SMALL_ONE_LAST, SMALL_ONE_LAST),
        ("1.5.1", SMALL_ONE_LAST, SMALL_ONE_LAST),
        ("1.6", SMALL_ONE_LAST, SMALL_ONE_FIRST),
        ("1.9", SMALL_ONE_LAST, SMALL_ONE_FIRST),
        ("1.10", SMALL_ONE_LAST, SMALL_ONE_FIRST),
        ("1.12", EVERYTHING, SMALL_ONE_FIRST),
        ("2.13", EVERYTHING, SMALL_ONE_FIRST),
        (None, EVERYTHING, SMALL_ONE_FIRST),
    ],
)
def test_a_version_has_the_buckets_of_its_time(version, first, later):
    assert versioned(0, version=version) == first
    assert versioned(1, version=version) == versioned(7, version=version) == later


@for_each(
    ("version", "caps"), [("1.4", [MiB, 4.0]), ("2.4", [MiB, 4.0]), ("2.5", [4.0]), (None, [4.0])]
)
def test_the_first_bucket_was_small_even_where_a_cap_was_given(version, caps):
    assert limits(4.0, rules(version).equal_caps) == caps
    assert limits(None, rules(version).equal_caps) == [1 * MiB, 25 * MiB]


def test_a_cap_of_an_older_torch_leaves_its_small_bucket_where_it_was():
    assert versioned(1, version="1.4", bucket_cap="8 MiB") == [
        LAYER + 2 * BIAS,  # what is left over
        2 * (LAYER + BIAS),
        LAYER,
    ]


def test_keys_that_are_given_win_over_the_version():
    assert versioned(1, version="1.4", bucket_order="gradient_ready") == SMALL_ONE_FIRST
    assert versioned(0, version="1.12", bucket_order="reverse_buckets") == SMALL_ONE_LAST
    unused = versioned(1, version="2.13", find_unused_parameters=True)
    assert unused == SMALL_ONE_LAST


@for_each("version", [1.4, 2, "2", "1.x", "v1.4", "", "0.4"])
def test_a_version_has_two_numbers_between_quotes(version):
    with pytest.raises(ValidationError, match="is not a version of torch; write for example"):
        DDP(version=version)


# The rule ----------------------------------------------------------------------------------------

tensors = st.lists(st.integers(0, 50), max_size=30).map(
    lambda sizes: [Parameter(f"p{i}", (size,), 1.0) for i, size in enumerate(sizes)]
)
caps = st.lists(st.integers(0, 300), min_size=1, max_size=3)


@given(parameters=tensors, itemsize=st.sampled_from([2, 4, 8]), caps=caps)
def test_no_tensor_is_split_lost_or_moved(parameters, itemsize, caps):
    buckets = assign(parameters, itemsize, caps)
    assert [name for names in buckets for name in names] == [p.name for p in parameters]
    assert all(buckets)


@given(parameters=tensors, itemsize=st.sampled_from([2, 4, 8]), caps=caps)
def test_a_bucket_closes_as_soon_as_it_holds_its_limit(parameters, itemsize, caps):
    nbytes = {p.name: p.num_elements * itemsize for p in parameters}
    buckets = assign(parameters, itemsize, caps)
    for number, names in enumerate(buckets):
        limit = caps[min(number, len(caps) - 1)]
        held = sum(nbytes[name] for name in names)
        assert held >= limit or number == len(buckets) - 1
        assert len(names) == 1 or held - nbytes[names[-1]] < limit


def test_no_tensors_make_no_buckets():
    assert assign([], 4, [100]) == []
