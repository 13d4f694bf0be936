"""Lengths of samples without arrays: what steps take, and what is counted."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from small_scenario import CLUSTER

import simdp
from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.roofline import Roofline
from simdp.engine.samples import BatchSamples
from simdp.errors import ScenarioError
from simdp.scenario import checked

DRAWN = {"kind": "lognormal", "mu": 4.0, "sigma": 0.8, "min": 4, "max": 256}
BLOCKS = {"num_hidden_layers": 2}
MODELS = {
    "llama3-8b": BLOCKS,
    "qwen2.5-0.5b": BLOCKS,
    "mistral-7b": BLOCKS,
    "pythia-1b": BLOCKS,
    "gpt2": {"n_layer": 2},
    "mpt-125m": {"n_layers": 2},
    "bert-base": BLOCKS,
    "t5-small": {"num_layers": 2, "num_decoder_layers": 2},
    "transformer-base": {"num_layers": 2},
}
"""Presets of language models, cut to a few blocks."""
SMALL = {"kind": "qwen2", "vocab_size": 64, "hidden_size": 64, "num_attention_heads": 4} | {
    "num_hidden_layers": 2,
    "intermediate_size": 256,
}

ENDLESS = {"peak": {"float32": "1 GFLOP/s"}, "memory": "80 GB", "memory_bandwidth": "1 EB/s"}
"""Memory takes no time."""


def scenario(model, dataset, cluster=None, strategy="ddp", **options):
    workload = {"model": model, "dataset": dataset, "microbatch": 8, "steps": 8, **options}
    cluster = {**CLUSTER, **(cluster or {})}
    given = {"cluster": cluster, "workload": workload, "strategy": strategy, "numerics": False}
    return checked(given, Path())


def drawn(lengths=DRAWN, num_samples=256, **options):
    return scenario(SMALL, {"lengths": lengths, "num_samples": num_samples}, **options)


def times(chosen):
    found = simdp.simulate(chosen).metrics
    return [found[name] for name in ("step_time_s", "compute_s", "wait_s", "simulated_s")]


@for_each("model", MODELS)
def test_every_language_model_has_samples_of_unequal_length(model):
    keys = {"kind": model, **MODELS[model]}
    short = {"kind": "uniform", "min": 4, "max": 96}
    chosen = scenario(keys, {"lengths": short, "num_samples": 64}, steps=2)
    full = scenario(keys, {"lengths": {"kind": "fixed", "length": 96}}, steps=2)
    samples = BatchSamples(chosen)
    for batches in chosen.workload.batches(4, chosen.seed, chosen.base):
        shapes, which = samples.shapes(batches.micro[0])
        for part, number in zip(batches.micro[0], which, strict=True):
            assert shapes[number][0] == (samples.lengths["x"][part].max(),)
    assert times(chosen)[1] < times(full)[1]


@for_each("strategy", ["ddp", "fsdp", "zero2", "data_parallel", "local_sgd"])
def test_samples_that_are_equally_long_take_what_they_take_without_lengths(strategy):
    size = {"global_batch": 32, "microbatch": None} if strategy == "data_parallel" else {}
    equal = drawn({"kind": "fixed", "length": 96}, strategy=strategy, **size)
    plain = scenario({**SMALL, "sequence_length": 96}, "none", strategy=strategy, **size)
    assert times(equal) == pytest.approx(times(plain), rel=1e-12)


@for_each("grouped", [False, True])
def test_lengths_alone_take_what_tokens_of_these_lengths_take(grouped):
    keys = {"group_by_length": grouped, "shuffle": True}
    tokens = scenario(SMALL, {"kind": "tokens", "num_samples": 256, "lengths": DRAWN}, **keys)
    assert times(drawn(**keys)) == times(tokens)


def test_the_longer_the_samples_the_longer_the_step():
    found = [times(drawn({**DRAWN, "mu": mu}))[1] for mu in (3.0, 3.5, 4.0, 4.5)]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_attention_takes_the_square_of_the_padded_length():
    chosen = drawn({"kind": "uniform", "min": 64, "max": 4096}, num_samples=64)
    graph = chosen.workload.graph
    (attention, *_) = [call.layer for call in graph.calls if call.layer.kind == "attention"]
    kernels = [
        attention.forward_cost([(length, 64)] * 3, 4)[0].flops for length in (512, 1024, 2048)
    ]
    assert np.diff(np.log2(kernels)) == pytest.approx([2.0, 2.0])


def test_a_data_set_without_a_kind_but_with_lengths_has_no_arrays():
    chosen = drawn()
    assert chosen.workload.dataset.kind == "none"
    assert chosen.workload.loss.kind == "cross_entropy"
    assert not chosen.numerics


def test_an_epoch_is_as_long_as_it_has_samples():
    chosen = drawn(steps=None, epochs=3)
    assert chosen.workload.num_steps(4, chosen.base) == 3 * 256 // 32


@for_each("grouped", [False, True])
def test_tokens_per_second_are_the_real_ones_of_the_steps_that_are_timed(grouped):
    chosen = drawn(group_by_length=grouped, shuffle=True, steps=5)
    found = simdp.simulate(chosen).metrics
    lengths = chosen.workload.lengths(chosen.seed, chosen.base)["x"]
    _, *steady = chosen.workload.batches(4, chosen.seed, chosen.base)
    tokens = [sum(lengths[part].sum() for part in step.micro[0]) for step in steady]
    assert found["tokens_per_s"] == pytest.approx(np.mean(tokens) / found["step_time_s"])


# Packs ------------------------------------------------------------------------------------------


def packed(to=256, lengths=DRAWN, strategy="ddp", how="bfd", **options):
    keys = {"packing": {"to": to, "strategy": how}, "microbatch": 2, "steps": 6, **options}
    return drawn(lengths, 1024, strategy=strategy, **keys)


def works(chosen):
    """Seconds of every call, of each kind, on one rank for one micro-batch of each step."""
    samples = BatchSamples(chosen)
    times = CallTimes(chosen.workload, Roofline([chosen.cluster.device], 4))
    for batches in chosen.workload.batches(4, chosen.seed, chosen.base):
        parts = batches.micro[0]
        found = times.seconds("forward", parts.sizes, *samples.looked_at(parts))
        yield parts, dict(zip(times.names, found.seconds[:, found.column].tolist(), strict=True))


def attends(lengths, device, width=64):
    """Seconds of a causal flash kernel whose samples look at themselves alone."""
    return 4 * width * (lengths.astype(float) ** 2 / 2).sum() / device.rate("float32", True)


def test_attention_of_packs_costs_the_sum_of_the_squares_of_their_samples():
    cluster = {"device": {**ENDLESS, "launch": "0 s"}}
    chosen = packed(to=512, cluster=cluster)
    packs = chosen.workload.packs(chosen.base)
    ends = [*packs.first[1:], len(packs.pieces)]
    for parts, seconds in works(chosen):
        for rank, part in enumerate(parts):
            pieces = np.concatenate([packs.pieces[packs.first[p] : ends[p]] for p in part])
            found = seconds["model.layers.0.self_attn"][rank]
            assert found == pytest.approx(attends(pieces, chosen.cluster.device), rel=1e-9)


def test_wrapped_packs_are_looked_at_as_a_whole():
    cluster = {"device": {**ENDLESS, "launch": "0 s"}}
    chosen = packed(to=512, how="wrapped", cluster=cluster)
    for parts, seconds in works(chosen):
        whole = np.full(2, 512)
        for rank in range(len(parts)):
            found = seconds["model.layers.0.self_attn"][rank]
            assert found == pytest.approx(attends(whole, chosen.cluster.device), rel=1e-9)


@for_each("strategy", ["ddp", "fsdp", "zero1", "zero2", "zero3", "local_sgd"])
def test_packs_of_samples_that_fill_them_take_what_samples_of_that_length_take(strategy):
    alike = packed(96, {"kind": "fixed", "length": 96}, strategy=strategy)
    plain = drawn({"kind": "fixed", "length": 96}, 1024, strategy=strategy, microbatch=2, steps=6)
    assert times(alike) == pytest.approx(times(plain), rel=1e-12)


def test_packing_saves_what_padding_takes():
    """As many samples of the same lengths, in an epoch each."""
    keys = {"shuffle": True, "steps": None, "epochs": 1}
    plain, joined = (
        simdp.simulate(chosen).metrics
        for chosen in (drawn(DRAWN, 1024, **keys), packed(**keys, microbatch=8))
    )
    assert joined["tokens_per_s"] > 1.2 * plain["tokens_per_s"]
    assert joined["throughput_samples_per_s"] < plain["throughput_samples_per_s"]


def test_an_epoch_has_as_many_packs_whatever_the_seed():
    chosen = packed(steps=None, epochs=2)
    packs = chosen.workload.packs(chosen.base)
    per_epoch = -(-len(packs.first) // 8)
    assert chosen.workload.num_steps(4, chosen.base) == 2 * per_epoch
    dealt = list(chosen.workload.batches(4, 5, chosen.base))
    assert len(dealt) == 2 * per_epoch


def test_the_tokens_of_an_epoch_of_packs_are_those_of_its_samples():
    chosen = packed()
    lengths = drawn(DRAWN, 1024).workload.lengths(0, chosen.base)["x"]
    assert chosen.workload.lengths(9, chosen.base)["x"].sum() == lengths.sum()


def test_packing_may_be_switched_on_and_off():
    assert drawn(packing=True).workload.packing.to is None
    assert drawn(packing=False).workload.packing is None
    assert drawn(packing=True).workload.model.known_shapes() == ((8192,),)


@for_each(
    ("options", "line"),
    [
        (
            {"group_by_length": True},
            "workload.packing: packs are equally long already; leave this or group_by_length out.",
        ),
        (
            {"attention": "eager"},
            "workload.packing: eager attention does not keep the samples of a pack apart; write "
            "attention: flash, or strategy: wrapped.",
        ),
        (
            {"model": {**SMALL, "sequence_length": 128}},
            "workload.packing: packs have 256 tokens, but the model takes 128; change one.",
        ),
        (
            {"model": {"kind": "parameters", "num_params": 1000}, "dataset": "none"},
            "workload.packing: the model parameters has times but no numbers; leave this out.",
        ),
        (
            {"model": {"kind": "bert", "vocab_size": 64}},
            "workload.packing: joins samples of language models, and bert is none here; leave this "
            "out.",
        ),
        (
            {"dataset": "none"},
            "workload.packing: there are no lengths of samples to join; give the dataset lengths.",
        ),
        (
            {"strategy": "data_parallel", "microbatch": None, "global_batch": 32},
            "workload.packing: data_parallel cuts a batch into samples, but packs lie in one row; "
            "use ddp, or leave this out.",
        ),
    ],
)
def test_packing_that_does_not_fit_is_refused(options, line):
    given = {"model": SMALL, "dataset": {"lengths": {**DRAWN, "max": 128}}, **options}
    with pytest.raises(ScenarioError) as caught:
        scenario(packing={"to": 256}, **given)
    assert caught.value.problems == [line]


def test_packs_have_no_numbers():
    workload = {"model": SMALL, "dataset": {"kind": "tokens", "lengths": DRAWN}, "microbatch": 8}
    with pytest.raises(ScenarioError) as caught:
        checked({"cluster": CLUSTER, "workload": {**workload, "packing": True}}, Path())
    assert caught.value.problems == [
        "workload.packing: packs have times but no numbers; write numerics: false, or leave this "
        "out."
    ]


# Refused ----------------------------------------------------------------------------------------


@for_each(
    ("model", "dataset", "line"),
    [
        (
            SMALL,
            {"kind": "none", "num_samples": 64},
            "workload.dataset: num_samples: without lengths all samples are equal and every step "
            "is full; add lengths, or leave this out.",
        ),
        (
            {"kind": "resnet18"},
            {"lengths": DRAWN},
            "workload.dataset: lengths are of tokens, but the model takes real numbers as x; leave "
            "them out.",
        ),
        (
            {**SMALL, "sequence_length": 128},
            {"lengths": DRAWN},
            "workload.dataset: lengths reach 256 tokens in x, but the model takes 128; change one "
            "of them.",
        ),
        (
            SMALL,
            {"kind": "tokens", "sequence_length": 64, "lengths": DRAWN},
            "workload.dataset: lengths and sequence_length both give the lengths of samples; keep "
            "one.",
        ),
        (
            {"kind": "bert", "vocab_size": 64},
            {"kind": "tokens", "lengths": DRAWN},
            "workload.dataset: tokens has samples of 4 ... 256 tokens, but the model has no "
            "padding token; give it a pad_id, or all samples one length.",
        ),
    ],
)
def test_lengths_that_do_not_fit_are_refused(model, dataset, line):
    with pytest.raises(ScenarioError) as caught:
        scenario(model, dataset)
    assert caught.value.problems == [line]
