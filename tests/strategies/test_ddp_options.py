"""DDP's static graph, and gradients that are reduced by themselves."""

import numpy as np
import pytest
from every_strategy import scenario
from for_each import for_each
from pydantic import ValidationError
from small_workload import LINEAR, program, workload

import simdp
from simdp.steps.ops import AllReduce, Backward, FillBucket
from simdp.steps.program import flat
from simdp.strategies.ddp import DDP
from simdp.workload import Workload

NUMBERS = {"numerics": True, "dtype": "float64"}
LAST = "layers.0.weight"
DELAYED = ("layers.2.weight", "layers.1.bias")


def idle_layer():
    layers = [LINEAR, {"name": "idle", **LINEAR}]
    model = {"kind": "sequential", "layers": layers, "unused": ["idle"], "input_shape": [4]}
    data = {"kind": "regression", "num_samples": 640}
    return Workload.model_validate({"model": model, "dataset": data, "microbatch": 2})


def steps(strategy, number=4, **workload):
    chosen = scenario(strategy, **workload)
    batches = next(chosen.workload.batches(4, 0, chosen.base))
    return [list(flat(chosen.program.plan(step, batches))) for step in range(number)]


def reduced(plan):
    return [op.label for op in plan if isinstance(op, AllReduce)]


def weights(strategy, **workload):
    return simdp.simulate(scenario(strategy, **NUMBERS, **workload)).replicas


def assert_same(got, wanted):
    for own, other in zip(got, wanted, strict=True):
        for name in other:
            np.testing.assert_allclose(own[name], other[name], rtol=0, atol=1e-14)


# Static graph ------------------------------------------------------------------------------------


@for_each(("accumulate", "no_sync"), [(1, True), (1, False), (2, False)])
def test_a_static_graph_learns_the_same(accumulate, no_sync):
    plain = {"kind": "ddp", "bucket_cap": "100 B", "no_sync": no_sync}
    static = weights({**plain, "static_graph": True}, grad_accum=accumulate)
    assert_same(static, weights(plain, grad_accum=accumulate))


def test_a_static_graph_has_one_bucket_in_its_first_two_steps():
    found = steps({"kind": "ddp", "static_graph": True, "bucket_cap": "100 B"})
    one = ["bucket 0"]
    assert [reduced(plan) for plan in found[:2]] == [["used parameters", *one], one]
    assert [len(reduced(plan)) for plan in found[2:]] == [2, 2]


def test_its_first_step_reduces_after_backward_behind_the_map():
    first, second, *_ = steps({"kind": "ddp", "static_graph": True})
    order = [type(op) for op in first if isinstance(op, AllReduce | FillBucket | Backward)]
    assert order.index(AllReduce) < order.index(FillBucket)
    assert [type(op) for op in second if isinstance(op, FillBucket | Backward)][-1] is FillBucket


def test_reductions_within_a_step_count_too():
    options = {"kind": "ddp", "static_graph": True, "no_sync": False, "bucket_cap": "100 B"}
    first, second, *_ = steps(options, grad_accum=2)
    assert reduced(first) == ["used parameters", "bucket 0", "bucket 0"]
    assert len(reduced(second)) == 4


def test_a_static_graph_finds_what_is_unused_once():
    assert DDP(static_graph=True).problem_with(2, idle_layer()) is None
    found = program(DDP(static_graph=True, bucket_cap="1 B"), idle_layer())
    maps = [
        [op for op in plan if getattr(op, "label", "") == "used parameters"] for plan in found.plans
    ]
    assert sum(map(len, maps)) == 1
    fills = [op.name for op in flat(found.steady) if isinstance(op, FillBucket)]
    assert fills[:2] == ["idle.weight", "idle.bias"]


# Delayed gradients -------------------------------------------------------------------------------


def delay(hooked=LAST, names=DELAYED, **options):
    return {
        "kind": "ddp",
        "delay_all_reduce_named_params": list(names),
        "param_to_hook_all_reduce": hooked,
        **options,
    }


@for_each("options", [{}, {"bucket_cap": "0 B"}, {"no_sync": False}])
def test_delayed_gradients_learn_the_same(options):
    found = weights(delay(**options), grad_accum=2)
    assert_same(found, weights({"kind": "ddp", **options}, grad_accum=2))


def test_delayed_gradients_are_in_no_bucket_and_sent_with_the_gradient_that_is_hooked():
    *_, plan = steps(delay("layers.1.weight", ["layers.2.weight", "layers.2.bias"]))
    (late,) = [op for op in plan if getattr(op, "label", "") == "delayed gradients"]
    assert late.bucket.names == ("layers.2.weight", "layers.2.bias")
    buckets = [name for op in plan if isinstance(op, AllReduce) for name in op.bucket.names]
    assert len(buckets) == len(set(buckets)) == 6
    filled = [op.name for op in plan[: plan.index(late)] if isinstance(op, FillBucket)]
    assert filled == ["layers.2.bias", "layers.2.weight", "layers.1.bias"]


def test_all_but_the_hooked_one_may_be_delayed():
    names = [f"layers.{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")]
    found = weights(delay("layers.0.weight", [*names, "layers.0.bias"][:4]))
    assert_same(found, weights({"kind": "ddp"}))


@for_each(
    ("hooked", "names", "line"),
    [
        (
            LAST,
            ["fc"],
            "delay_all_reduce_named_params: no parameter is called 'fc'; known: layers.",
        ),
        ("fc", DELAYED, "param_to_hook_all_reduce: no parameter 'fc' gets a gradient; known: "),
        (
            "layers.2.weight",
            DELAYED,
            "param_to_hook_all_reduce: layers.2.weight has no gradient yet when layers.2.weight",
        ),
    ],
)
def test_delays_that_cannot_be_are_refused(refuse, hooked, names, line):
    (found,) = refuse({"strategy": delay(hooked, names), "workload.model": MLP})
    assert found.startswith(f"strategy.{line}")


MLP = {"kind": "mlp", "widths": [6, 8, 5, 3]}


@for_each("one", [{"delay_all_reduce_named_params": ("a",)}, {"param_to_hook_all_reduce": "a"}])
def test_the_two_keys_of_a_delay_go_together(one):
    with pytest.raises(ValidationError, match="go together; write both, or none"):
        DDP(**one)


# What torch refuses, and skips -------------------------------------------------------------------


def test_a_static_graph_with_no_sync_is_refused_as_torch_fails():
    line = DDP(static_graph=True).problem_with(2, workload(grad_accum=2))
    assert line == (
        "static_graph: torch fails in the first step, where only the last of 2 micro-steps is "
        "not under no_sync; write no_sync: false, or static_graph: false."
    )
    assert DDP(static_graph=True, no_sync=False).problem_with(2, workload(grad_accum=2)) is None


def test_buckets_in_which_nothing_is_used_are_skipped():
    options = {"find_unused_parameters": True, "bucket_cap": "1 B"}
    every, fewer = (
        program(DDP(**options, skip_all_reduce_unused_params=skips), idle_layer())
        for skips in (False, True)
    )
    unused = set(idle_layer().graph.unused)
    sent = [
        [set(op.bucket.names) for op in flat(one.steady) if isinstance(op, AllReduce) and op.bucket]
        for one in (every, fewer)
    ]
    assert [names for names in sent[0] if not names <= unused] == sent[1]
    assert len(sent[1]) < len(sent[0])


def test_what_is_skipped_has_to_be_known_before():
    line = DDP(skip_all_reduce_unused_params=True).problem_with(2, workload())
    assert line.startswith("skip_all_reduce_unused_params: needs the unused parameters before")
    chosen = workload(unused={1: ["layers.0.bias"]})
    both = DDP(skip_all_reduce_unused_params=True, find_unused_parameters=True)
    line = both.problem_with(2, chosen)
    assert line.startswith("skip_all_reduce_unused_params: workload.unused gives ranks different")
