"""Frozen parameters: what backward computes, keeps and leaves out, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from layer_checks import differences

from simdp.engine.compute.call_times import call_kernels
from simdp.workload import Workload
from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.finetuning import backward_kernels, kept_of, matching, with_frozen
from simdp.workload.layers.base import Kept, Pass
from simdp.workload.lifetimes import lifetimes, recomputed
from simdp.workload.losses import LOSSES
from simdp.workload.step_costs import passes

LINEAR = {"kind": "linear", "in_features": 4, "out_features": 4}
LAYERS = [
    {"name": "blocks.0.a", **LINEAR},
    {"name": "blocks.0.act", "kind": "tanh"},
    {"name": "blocks.1.ln", "kind": "layer_norm", "normalized_shape": 4},
    {"name": "blocks.1.b", **LINEAR},
    {"name": "head", **LINEAR},
]
NAMES = [f"{name}.{part}" for name in ("blocks.0.a", "blocks.1.ln", "blocks.1.b", "head")
         for part in ("weight", "bias")]  # fmt: skip


def workload(frozen=(), **options):
    model = {"kind": "sequential", "layers": LAYERS, "input_shape": [4]}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 2, "frozen": list(frozen), **options}
    return Workload.model_validate(raw).settled(Path())


def test_patterns_match_as_those_of_groups():
    assert matching(["*.ln.*", "hea?.weight"], NAMES) == {
        "blocks.1.ln.weight",
        "blocks.1.ln.bias",
        "head.weight",
    }


def test_backward_goes_only_as_far_as_something_is_learned():
    graph = workload(["blocks.0.*", "*.ln.*"]).graph
    assert graph.ready_order == ("head.bias", "head.weight", "blocks.1.b.bias", "blocks.1.b.weight")
    assert graph.unused == ()
    assert graph.needs == ((False,), (False,), (False,), (False,), (True,))
    assert graph.flows == (False, False, False, True, True)
    above = workload(["head.*", "*.ln.*"]).graph
    assert above.flows == (True,) * 5
    assert above.needs == ((False,), (True,), (True,), (True,), (True,))
    assert [parameter.name for parameter in above.trainable] == [*NAMES[:2], *NAMES[4:6]]


def test_a_graph_that_is_frozen_twice_keeps_both():
    graph = with_frozen(workload(["head.*"]).graph, ["*.b.bias"])
    assert graph.frozen == {"head.weight", "head.bias", "blocks.1.b.bias"}


def kernels(frozen, number, whole=False):
    graph = workload(frozen).graph
    shapes = [(3, 4)]
    if whole:
        return graph.calls[number].layer.backward_cost(shapes, 4, graph.needs[number])
    return backward_kernels(graph, number, shapes, 4)


def test_only_the_products_that_something_needs_are_charged():
    bias, weight, below = kernels([], 4)
    assert kernels(["head.*"], 4) == [below]
    assert kernels(["head.bias"], 4) == [weight, below]
    assert kernels(["head.weight"], 4) == [bias, below]
    assert kernels(["blocks.*"], 4) == [bias, weight]
    assert kernels(["blocks.0.*"], 0) == kernels(["blocks.0.*"], 1) == []
    below, together = kernels(["head.bias"], 2)
    assert kernels(["*.ln.*"], 2) == [below]
    assert kernels(["*.ln.bias"], 2) == [below, together]  # one kernel makes both


def test_a_layer_whose_sums_serve_both_gradients_is_charged_whole():
    norm = {"name": "bn", "kind": "batch_norm1d", "num_features": 4}
    layers = [LAYERS[0], norm]
    model = {"kind": "sequential", "layers": layers, "input_shape": [4]}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 2, "frozen": ["bn.*"]}
    graph = Workload.model_validate(raw).settled(Path()).graph
    found = backward_kernels(graph, 1, [(4,)], 4)
    assert len(found) == 2
    assert found == graph.calls[1].layer.backward_cost([(4,)], 4, [True])


def test_a_frozen_product_keeps_no_input_and_a_call_without_gradients_nothing():
    graph = workload(["head.weight", "*.ln.*", "*.b.bias"]).graph
    assert kept_of(graph, 4, [(4,)], 4) == Kept()
    assert kept_of(graph, 3, [(4,)], 4) == Kept(inputs=(0,))
    assert kept_of(graph, 2, [(4,)], 4) == graph.calls[2].layer.kept([(4,)], 4)
    assert kept_of(workload(["blocks.*"]).graph, 1, [(4,)], 4) == Kept()
    assert kept_of(workload().graph, 4, [(4,)], 4) == Kept(inputs=(0,))


def kept_bytes(frozen, **options):
    chosen = workload(frozen, **options)
    stages = lifetimes(chosen, recomputed(chosen)).forward
    made = [tensor for stage in stages for tensor in stage.taken if tensor.part == "activations"]
    return sum(tensor.per_sample for tensor in made)


def test_activations_are_fewer():
    assert kept_bytes(["head.*"]) == kept_bytes([]) - 4 * 4
    assert kept_bytes(["blocks.*"]) == 4 * 4  # what enters the head
    assert kept_bytes([f"{name}*" for name in NAMES[:-1]]) == 0


def test_autocasts_copies_of_weights_are_kept_where_gradients_flow():
    amp = {"precision": {"kind": "amp", "dtype": "bfloat16"}}
    copies = 2 * 20

    def fixed(frozen):
        stages = lifetimes(workload(frozen, **amp)).forward
        return sum(t.fixed for stage in stages for t in stage.taken if t.part == "activations")

    assert fixed(["blocks.0.*"]) == fixed([]) - copies
    assert fixed(["head.*"]) == fixed([])  # for the gradient of its input


def test_what_backward_never_reaches_does_not_run_again():
    again = [run.calls for run in recomputed(workload(["blocks.0.*"], recompute="blocks"))]
    assert again == [range(2, 4)]


def test_compiled_chains_and_autocast_leave_out_what_is_frozen():
    def seconds(frozen, **options):
        return call_kernels(workload(frozen, **options), "backward", ((4,),))

    assert seconds(["blocks.0.*", "*.ln.*"], compile=True)[2] == []
    # A norm's two sums are gone, a slope's product is left.
    plain, frozen = (seconds(found, compile=True)[2] for found in ([], ["*.ln.*"]))
    assert [len(plain), len(frozen)] == [2, 1]
    amp = {"precision": {"kind": "amp", "dtype": "bfloat16"}}
    cast, *rest = seconds([], **amp)[4]
    assert cast.fixed == 20 * (2 + 4)
    assert seconds(["head.*"], **amp)[4] == rest[2:]
    assert seconds(["head.bias"], **amp)[4][0].fixed == 16 * (2 + 4)


def test_model_flops_count_the_passes_that_are_left():
    assert [passes(workload().graph, n) for n in range(5)] == [3] * 5
    graph = workload(["blocks.0.*", "*.ln.*", "head.weight"]).graph
    assert [passes(graph, n) for n in range(5)] == [1, 1, 1, 2, 2]


def test_gradients_are_those_of_finite_differences_and_of_frozen_ones_there_are_none():
    frozen = ["blocks.0.a.bias", "*.ln.weight", "head.*"]
    graph = workload(frozen).graph
    rng = np.random.default_rng(0)
    weights = {p.name: rng.standard_normal(p.shape) for p in graph.parameters}
    x, target = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    executor = GraphExecutor(graph, call_dtypes(graph, workload().precision, "float64"), "float64")
    loss = LOSSES["mse"]()

    def play(script):
        with pytest.raises(StopIteration) as stop:
            next(script)
        return stop.value.value

    def value():
        outputs, _ = play(executor.forward(Pass(weights), [x], keeps=False))
        return loss.value_and_grad(outputs[0], target)[0]

    run = Pass(weights)
    outputs, kept = play(executor.forward(run, [x]))
    play(executor.backward(run, kept, [loss.value_and_grad(outputs[0], target)[1]]))
    assert set(run.gradients) == set(graph.ready_order)
    assert set(run.gradients) == {NAMES[0], NAMES[3], NAMES[4], NAMES[5]}
    for name, gradient in run.gradients.items():
        wanted = differences(value, weights[name])
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-8)


LINES = [
    ({"frozen": ["fc.*"]}, "workload.frozen: no parameter matches 'fc.*'; known: layers.0.weight,"),
    (
        {"frozen": ["*"]},
        "workload.frozen: every parameter matches, so that nothing is trained; leave",
    ),
    (
        {"frozen": ["*0*"], "mode": "inference"},
        "workload.frozen: mode: inference trains nothing; leave this out.",
    ),
    (
        {"frozen": ["*"], "model": {"kind": "profile", "path": "x.csv"}},
        "workload.frozen: the model profile has times but no numbers; leave this out.",
    ),
]


@for_each(("given", "line"), LINES)
def test_what_cannot_be_frozen_is_refused(refuse, given, line):
    found = refuse({f"workload.{key}": value for key, value in given.items()})
    assert any(said.startswith(line) for said in found), found
