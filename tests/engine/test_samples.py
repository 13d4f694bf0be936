"""Samples: batches are cut to their longest sample, which changes their time and nothing else."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import CLUSTER

import simdp
from simdp.engine.samples import BatchSamples
from simdp.scenario import checked
from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers.base import Pass
from simdp.workload.sampling import SampleParts, uneven_sampler

TRANSFORMER = {
    "kind": "transformer",
    "vocab_size": 23,
    "d_model": 8,
    "nhead": 2,
    "num_layers": 2,
    "dim_feedforward": 12,
    "dropout": 0.3,
    "pad_id": 0,
}
BERT = {
    "kind": "bert",
    "vocab_size": 23,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 20,
    "pad_id": 0,
}
SMALL = {"vocab_size": 23, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
UNSEEN = {
    "llama": {**SMALL, "kind": "llama", "intermediate_size": 12},
    "mistral": {
        **SMALL,
        "kind": "mistral",
        "num_key_value_heads": 1,
        "intermediate_size": 12,
        "sliding_window": 3,
    },
    "qwen2": {**SMALL, "kind": "qwen2", "intermediate_size": 12},
    "gpt_neox": {**SMALL, "kind": "gpt_neox", "intermediate_size": 12, "rotary_pct": 1.0},
    "gpt2": {"kind": "gpt2", "vocab_size": 23, "n_positions": 20, "n_embd": 8, "n_layer": 2}
    | {"n_head": 2},
    "mpt": {"kind": "mpt", "vocab_size": 23, "d_model": 8, "n_layers": 2, "n_heads": 2},
}
"""Language models without a padding token, in which nobody looks at what comes later."""
MODELS = {
    "language model": {**TRANSFORMER, "task": "language_model"},
    "language model that looks both ways": {
        **TRANSFORMER,
        "task": "language_model",
        "causal": False,
    },
    "classifier": {**TRANSFORMER, "task": "classifier", "num_labels": 3},
    "classifier of the first token": {
        **TRANSFORMER,
        "task": "classifier",
        "num_labels": 3,
        "pooling": "first",
    },
    "seq2seq": {**TRANSFORMER, "task": "seq2seq", "tgt_vocab_size": 19},
    "bert": BERT,
    "masked bert": {**BERT, "head": "masked_lm"},
    **UNSEEN,
}
TOKENS = {"kind": "tokens", "num_samples": 96, "sequence_length": 20, "min_length": 2}
DEVICE = {
    "peak": {"float32": "2 TFLOP/s", "float64": "1 TFLOP/s"},
    "memory": "16 GB",
    "memory_bandwidth": "500 GB/s",
    "efficiency": 0.5,
    "launch": "0 s",
}
every_model = pytest.mark.parametrize("model", MODELS)


def shapes(samples, part):
    """Shapes of the inputs of one rank's samples."""
    (found,), _ = samples.shapes(SampleParts(part, np.array([0]), np.array([len(part)])))
    return found


def scenario(model, keys=None, dataset=None, numerics=True, **options):
    """A small scenario of a model over tokens; other keywords go to the workload."""
    workload = {
        "model": {**MODELS[model], **(keys or {})},
        "dataset": {**TOKENS, **(dataset or {})},
        "dtype": "float64",
        "microbatch": 4,
        **options,
    }
    cluster = {**CLUSTER, "device": DEVICE}
    return checked({"cluster": cluster, "workload": workload, "numerics": numerics}, Path())


@cache
def known(model):
    """A model's scenario and its samples, made once."""
    chosen = scenario(model)
    return chosen.workload, BatchSamples(chosen)


# Cutting -----------------------------------------------------------------------------------------


def drained(script):
    """What a generator that never yields returns."""
    with pytest.raises(StopIteration) as stop:
        next(script)
    return stop.value.value


def learned(chosen, part, inputs, target):
    """Loss and gradients of the first rank's weights on a batch."""
    workload, graph = chosen.workload, chosen.workload.graph
    executor = GraphExecutor(graph, call_dtypes(graph, workload.precision, "float64"), "float64")
    run = Pass(parameters=workload.initial_weights(0, 0, chosen.base), samples=part)
    (output,), kept = drained(executor.forward(run, inputs))
    value, slope = workload.loss.value_and_grad(output, target)
    drained(executor.backward(run, kept, [slope]))
    return value, run.gradients


@pytest.mark.slow
@every_model
def test_cutting_changes_no_loss_and_no_gradient(model):
    chosen = scenario(model)
    samples, shorter = BatchSamples(chosen), 0
    for part in np.split(np.arange(24), 6):
        whole = [samples.arrays[name][part] for name in chosen.workload.graph.inputs]
        cut = samples.inputs(part)
        shorter += cut[0].shape[1] < whole[0].shape[1]
        value, gradients = learned(chosen, part, whole, samples.arrays["y"][part])
        found, slopes = learned(chosen, part, cut, samples.target(part))
        assert found == pytest.approx(value, rel=1e-12)
        assert set(slopes) == set(gradients)
        for name, gradient in gradients.items():
            scale = max(abs(gradient).max(), 1e-3)
            np.testing.assert_allclose(slopes[name], gradient, rtol=0, atol=1e-12 * scale)
    assert shorter > 1


@given(
    model=st.sampled_from(list(MODELS)), part=st.lists(st.integers(0, 95), min_size=1, max_size=5)
)
def test_nothing_that_counts_is_cut_and_nothing_else_is_kept(model, part):
    (workload, samples), part = known(model), np.array(part)
    for name, cut in zip(workload.graph.inputs, samples.inputs(part), strict=True):
        whole = samples.arrays[name][part]
        assert (cut == whole[:, : cut.shape[1]]).all()
        assert (whole[:, cut.shape[1] :] == 0).all()
        assert (cut[:, -1] != 0).any() or workload.model.padding is None
    counts = [workload.loss.count(y) for y in (samples.arrays["y"][part], samples.target(part))]
    assert counts[0] == counts[1] > 0
    assert shapes(samples, part) == tuple(array.shape[1:] for array in samples.inputs(part))


@given(
    model=st.sampled_from(list(MODELS)),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=9),
    seed=st.integers(0, 9),
)
def test_every_rank_has_the_shapes_of_its_own_samples(model, sizes, seed):
    _, samples = known(model)
    order = np.random.default_rng(seed).permutation(96)
    parts = uneven_sampler(order, sizes)
    found, which = samples.shapes(parts)
    assert len(set(found)) == len(found)
    for part, number in zip(parts, which, strict=True):
        assert found[number] == tuple(array.shape[1:] for array in samples.inputs(part))


@every_model
def test_shapes_are_known_without_the_arrays(model):
    _, samples = known(model)
    timed = BatchSamples(scenario(model, numerics=False))
    assert timed.arrays == {}
    for part in np.split(np.arange(96), 24):
        assert shapes(timed, part) == shapes(samples, part)


@every_model
def test_a_rank_without_samples_has_the_full_shapes(model):
    workload, samples = known(model)
    nothing = np.array([], dtype=np.int64)
    assert shapes(samples, nothing) == workload.model.known_shapes()
    assert [array.shape[1:] for array in samples.inputs(nothing)] == list(
        workload.model.known_shapes()
    )
    assert len(samples.target(nothing)) == 0


@for_each("model", ["language model", *UNSEEN])
def test_samples_of_one_length_without_a_padding_token_are_not_cut(model):
    padding = {"pad_id": None} if model == "language model" else {}
    chosen = scenario(model, padding, {"min_length": None})
    samples, part = BatchSamples(chosen), np.arange(3)
    assert samples.lengths == {}
    assert samples.inputs(part)[0].shape == (3, 20)
    assert shapes(samples, part) == ((20,),)


def test_batches_are_copies_that_may_be_changed():
    _, samples = known("language model")
    batch = samples.inputs(np.arange(3))[0]
    assert batch.flags.c_contiguous
    batch += 1
    assert not np.array_equal(batch, samples.inputs(np.arange(3))[0])


# Time --------------------------------------------------------------------------------------------


def times(result):
    return {
        name: result.metrics[name]
        for name in ("step_time_s", "compute_s", "wait_s", "exposed_comm_s", "simulated_s")
    }


@pytest.mark.slow
@for_some("model", MODELS, 8)
def test_lengths_alone_give_the_times_of_a_run_with_numbers(model):
    with_arrays, without = (
        simdp.simulate(scenario(model, numerics=numerics, epochs=1)) for numerics in (True, False)
    )
    assert times(with_arrays) == pytest.approx(times(without), rel=1e-12)
    assert with_arrays.metrics["replicas_identical"]


LONG = {"num_samples": 1024, "sequence_length": 256, "median_length": 48}


def timed(dataset=None, **options):
    chosen = scenario(
        "classifier",
        {"d_model": 64, "dim_feedforward": 256},
        {**LONG, **(dataset or {})},
        numerics=False,
        **{"microbatch": 8, "shuffle": True, **options},
    )
    return chosen, simdp.simulate(chosen)


@pytest.mark.slow
def test_a_rank_that_draws_longer_samples_computes_longer():
    chosen, result = timed(epochs=1)
    lengths = chosen.workload.lengths(chosen.seed, chosen.base)["x"]
    batches = list(chosen.workload.batches(4, chosen.seed, chosen.base))
    compute = np.zeros((len(batches), 4))
    for span in result.trace.spans:
        if span.activity in ("forward", "backward"):
            compute[span.step, span.rank] += span.end - span.start
    for step, ranks in enumerate(compute):
        longest = [lengths[part].max() for part in batches[step].micro[0]]
        for rank, other in np.ndindex(4, 4):
            if longest[rank] > longest[other]:
                assert ranks[rank] > ranks[other]
    assert result.metrics["wait_s"] > 0.1 * result.metrics["step_time_s"]


def test_samples_of_one_length_make_nobody_wait():
    _, result = timed({"median_length": None, "min_length": None})
    assert result.metrics["wait_s"] == pytest.approx(0, abs=1e-12)


def test_grouping_by_length_makes_ranks_wait_less_and_work_less():
    (_, mixed), (_, grouped) = timed(), timed(group_by_length=True)
    assert grouped.metrics["wait_s"] < 0.4 * mixed.metrics["wait_s"]
    assert grouped.metrics["compute_s"] < 0.8 * mixed.metrics["compute_s"]
    assert grouped.metrics["throughput_samples_per_s"] > mixed.metrics["throughput_samples_per_s"]


def test_grouping_by_length_trains_on_every_sample_of_the_epoch():
    chosen = scenario("classifier", group_by_length=True, shuffle=True)
    dealt = [
        sample
        for step in chosen.workload.batches(4, 0, chosen.base)
        for ranks in step.micro
        for part in ranks
        for sample in part
    ]
    assert sorted(dealt) == list(range(96))
