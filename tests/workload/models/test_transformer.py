"""Transformers: losses, gradients, names and orders of torch.nn, and what they cost."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from layer_checks import kept_nbytes
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import (
    Pass,
    ShapeError,
    constant,
    kaiming_uniform,
    normal,
    uniform,
    xavier_uniform,
)
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.models import AnyModel
from simdp.workload.precision import Full

GOLDEN = Path(__file__).parents[2] / "golden"

SMALL = {
    "kind": "transformer",
    "task": "language_model",
    "vocab_size": 11,
    "d_model": 8,
    "nhead": 2,
    "num_layers": 2,
    "dim_feedforward": 12,
    "dropout": 0.0,
}


def model(**keys):
    return TypeAdapter(AnyModel).validate_python(SMALL | keys)


def refusal(**keys):
    raw = SMALL | keys
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModel).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


def shapes(chosen):
    return {p.name: p.shape for p in chosen.parameters()}


def play(script):
    """Run a generator that never yields, and return its value."""
    with pytest.raises(StopIteration) as stop:
        next(script)
    return stop.value.value


def run(chosen, weights, inputs, y=None, ignore_index=-100, samples=None, dtype="float64"):
    """Forward and backward: the output, the loss and the gradients."""
    executor = GraphExecutor(chosen.graph, call_dtypes(chosen.graph, Full(), dtype), dtype)
    samples = np.arange(len(inputs[0])) if samples is None else np.array(samples)
    one = Pass({n: w.astype(dtype) for n, w in weights.items()}, samples=samples, seed=3, step=7)
    (output,), kept = play(executor.forward(one, inputs))
    if y is None:
        return output
    loss, slope = CrossEntropy(ignore_index=ignore_index).value_and_grad(output, y)
    play(executor.backward(one, kept, [slope]))
    return output, loss, one.gradients


def norm(*arrays):
    return sqrt(sum(float(np.vdot(array, array)) for array in arrays))


def by_formula(chosen):
    """Weights that torch was given too."""
    found = {}
    for number, p in enumerate(chosen.parameters()):
        waves = np.sin(1.3 * np.arange(p.num_elements) + number + 1).reshape(p.shape)
        scale = "norm" in p.name and p.name.endswith("weight")
        found[p.name] = 1 + 0.1 * waves if scale else 0.4 * waves
    return found


def tokens(length, known, shift=0, pad=None):
    """Three samples, the second and third with one and two tokens of padding."""
    n, t = np.arange(3)[:, None], np.arange(length)
    found = (7 * n + 3 * t + (n + 1) * t**2 + shift) % known
    if pad is not None:
        found[found == pad] = (pad + 1) % known
        for number in range(3):
            found[number, length - number :] = pad
    return found


def data(chosen):
    x = tokens(6, 11, pad=chosen.pad_id)
    if chosen.task == "classifier":
        return [x], np.array([0, 2, 1])
    if chosen.task == "language_model":
        return [x], tokens(6, 11, shift=4)
    known = chosen.num_tokens("tgt")
    return [x, tokens(5, known, shift=2, pad=chosen.pad_id)], tokens(5, known, shift=5)


# Losses and gradients ----------------------------------------------------------------------------

# torch 2.13.0, float64: the loss; the norms of the whole gradient, of the first embedding's, and
# of the first and the last in_proj_weight's.
CLASSIFIER = {"task": "classifier", "num_labels": 3}
TORCH = {
    "language model": (
        {},
        2.963707204628931,
        (2.300812123870329, 0.3596163778877661, 0.38509102611799967, 0.41559436909760455),
    ),
    "pre-LN, GELU": (
        {"norm_first": True, "activation": "gelu"},
        2.4148684744398436,
        (1.266741686197022, 0.41865317019297177, 0.07047599834903644, 0.07610804516989066),
    ),
    "not causal": (
        {"causal": False},
        3.0310581140272745,
        (2.3740306187003295, 0.4222493007424333, 0.43341795306143827, 0.49294518547740845),
    ),
    "padding": (
        {"pad_id": 0},
        2.913015963246944,
        (2.507627347914986, 0.5552006615538737, 0.2982707935557268, 0.3565148916045163),
    ),
    "neither scale nor positions": (
        {"positional_encoding": "none", "scale_embedding": False},
        2.7394383186863718,
        (1.805849301747135, 0.17526038907923647, 0.10346017234968248, 0.40697051389611344),
    ),
    "classifier": (
        CLASSIFIER,
        1.3712998085427115,
        (1.701852318618223, 0.31808899570692334, 0.32405498161057883, 0.2714326430912641),
    ),
    "classifier, pre-LN, padding": (
        CLASSIFIER | {"pad_id": 0, "norm_first": True},
        0.7786078110804361,
        (1.1748459046944968, 0.2600100777006885, 0.1588914039928771, 0.12192337378623569),
    ),
    "classifier by the first token, GELU, padding": (
        CLASSIFIER | {"pooling": "first", "pad_id": 0, "activation": "gelu"},
        1.9746385808925835,
        (4.223360783836781, 1.654866017895532, 0.9579923200797316, 0.5973556040512259),
    ),
    "causal classifier": (
        CLASSIFIER | {"causal": True},
        1.4237050980693582,
        (1.7086729913080765, 0.24238592584657284, 0.13770368084643717, 0.20863724348347384),
    ),
    "seq2seq, one decoder layer": (
        {"task": "seq2seq", "tgt_vocab_size": 9, "num_decoder_layers": 1},
        3.374520026328043,
        (2.8069071353453285, 0.05073794856588914, 0.048848219831901935, 1.0094169393211039),
    ),
    "seq2seq, pre-LN, GELU": (
        {"task": "seq2seq", "norm_first": True, "activation": "gelu"},
        2.578729487294436,
        (1.370618234334664, 0.013522984253691752, 0.004733638721474002, 0.09010328456870037),
    ),
    "seq2seq, padding": (
        {"task": "seq2seq", "pad_id": 0},
        2.759931943156325,
        (1.5564765546571928, 0.01546646520713704, 0.014814562933804076, 0.04240717690931829),
    ),
    "seq2seq, pre-LN, padding, shared embedding": (
        {"task": "seq2seq", "pad_id": 0, "norm_first": True, "shared_embedding": True},
        2.608248491053217,
        (1.0369937431457827, 0.2202189213950437, 0.001487549595359083, 0.09447715651272967),
    ),
}
every_case = for_each(("keys", "loss", "norms"), TORCH.values(), ids=TORCH)


@every_case
def test_the_loss_and_its_gradients_are_torchs(keys, loss, norms):
    chosen = model(**keys)
    _, found, gradients = run(chosen, by_formula(chosen), *data(chosen))
    names = list(shapes(chosen))
    inward = [name for name in names if name.endswith("in_proj_weight")]
    picked = [gradients[name] for name in (names[0], inward[0], inward[-1])]
    assert found == pytest.approx(loss, rel=1e-12)
    assert norm(*gradients.values()) == pytest.approx(norms[0], rel=1e-11)
    assert [norm(gradient) for gradient in picked] == pytest.approx(list(norms[1:]), rel=1e-11)


@every_case
def test_in_float32_the_loss_is_nearly_the_same(keys, loss, norms):
    chosen = model(**keys)
    output, found, gradients = run(chosen, by_formula(chosen), *data(chosen), dtype="float32")
    assert found == pytest.approx(loss, rel=1e-6)
    assert norm(*gradients.values()) == pytest.approx(norms[0], rel=1e-5)
    assert {output.dtype, *(g.dtype for g in gradients.values())} == {np.dtype("float32")}


def test_loss_and_gradients_of_torchs_language_model_agree_to_the_last_digits():
    with np.load(GOLDEN / "g04_enc_post.npz") as stored:
        golden = dict(stored)
    chosen = model(vocab_size=50, d_model=32, nhead=4, dim_feedforward=64)
    first = golden["tokens"][0]
    weights = {name: golden[f"init.{name}"] for name in shapes(chosen)}
    assert [f"init.{n}" for n in weights] == [n for n in golden if n.startswith("init.")]
    _, loss, gradients = run(chosen, weights, [first[:, :-1]], first[:, 1:], ignore_index=0)
    assert loss == pytest.approx(golden["single.loss"][0], rel=1e-13)
    for name, gradient in gradients.items():
        wanted = golden[f"single.grad1.{name}"]
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12, atol=1e-14, err_msg=name)
    assert norm(*gradients.values()) == pytest.approx(golden["single.norm"][0], rel=1e-12)


# Names and orders --------------------------------------------------------------------------------

ENCODER_LAYER = {
    "self_attn.in_proj_weight": (24, 8),
    "self_attn.in_proj_bias": (24,),
    "self_attn.out_proj.weight": (8, 8),
    "self_attn.out_proj.bias": (8,),
    "linear1.weight": (12, 8),
    "linear1.bias": (12,),
    "linear2.weight": (8, 12),
    "linear2.bias": (8,),
    "norm1.weight": (8,),
    "norm1.bias": (8,),
    "norm2.weight": (8,),
    "norm2.bias": (8,),
}


def named(path, tensors):
    return {f"{path}.{name}": shape for name, shape in tensors.items()}


NORM = {"weight": (8,), "bias": (8,)}
FC = {"fc.weight": (11, 8), "fc.bias": (11,)}


@for_each("norm_first", [False, True])
def test_an_encoder_has_torchs_parameters_and_a_final_norm_only_if_pre_ln(norm_first):
    chosen = model(norm_first=norm_first, num_layers=1)
    last = named("encoder.norm", NORM) if norm_first else {}
    wanted = {"embedding.weight": (11, 8)} | named("encoder.layers.0", ENCODER_LAYER) | last | FC
    assert list(shapes(chosen).items()) == list(wanted.items())


@for_each("norm_first", [False, True])
def test_seq2seq_has_the_parameters_of_nn_transformer_and_both_final_norms(norm_first):
    chosen = model(task="seq2seq", norm_first=norm_first, num_layers=1, tgt_vocab_size=7)
    attention = dict(list(ENCODER_LAYER.items())[:4])
    other = {name.replace("self", "multihead"): shape for name, shape in attention.items()}
    rest = dict(list(ENCODER_LAYER.items())[4:])
    decoder_layer = attention | other | rest | named("norm3", NORM)
    wanted = (
        {"src_embedding.weight": (11, 8), "tgt_embedding.weight": (7, 8)}
        | named("transformer.encoder.layers.0", ENCODER_LAYER)
        | named("transformer.encoder.norm", NORM)
        | named("transformer.decoder.layers.0", decoder_layer)
        | named("transformer.decoder.norm", NORM)
        | {"fc.weight": (7, 8), "fc.bias": (7,)}
    )
    assert list(shapes(chosen).items()) == list(wanted.items())


def test_a_shared_embedding_is_one_parameter():
    chosen = model(task="seq2seq", shared_embedding=True)
    names = list(shapes(chosen))
    assert names[0] == "embedding.weight"
    assert [name for name in names if "embedding" in name] == names[:1]
    assert chosen.ready_order()[-1] == names[0]


# torch 2.13.0: the order in which register_post_accumulate_grad_hook fires.
SELF_ATTENTION = ["out_proj.bias", "out_proj.weight", "in_proj_bias", "in_proj_weight"]
LINEAR = ["linear2.bias", "linear2.weight", "linear1.bias", "linear1.weight"]


def ready(layer, *parts):
    """Names such as ``<layer>.norm1.weight``; a norm stands for its weight and its bias."""
    listed = []
    for part in parts:
        if part.startswith("norm"):
            listed += [f"{part}.weight", f"{part}.bias"]
        elif part == "linear":
            listed += LINEAR
        else:
            listed += [f"{part}.{name}" for name in SELF_ATTENTION]
    return [f"{layer}.{name}" for name in listed]


@for_each("norm_first", [False, True])
def test_gradients_of_an_encoder_become_ready_in_torchs_order(norm_first):
    parts = ["norm2", "linear", "norm1", "self_attn"]
    if norm_first:
        parts = ["linear", "norm2", "self_attn", "norm1"]
    last = ["encoder.norm.weight", "encoder.norm.bias"] if norm_first else []
    assert model(norm_first=norm_first).ready_order() == [
        *("fc.bias", "fc.weight"),
        *last,
        *ready("encoder.layers.1", *parts),
        *ready("encoder.layers.0", *parts),
        "embedding.weight",
    ]


@for_each("norm_first", [False, True])
def test_gradients_of_seq2seq_become_ready_in_torchs_order(norm_first):
    encoder = ["norm2", "linear", "norm1", "self_attn"]
    decoder = ["norm3", "linear", "norm2", "multihead_attn", "norm1", "self_attn"]
    if norm_first:
        encoder = ["linear", "norm2", "self_attn", "norm1"]
        decoder = ["linear", "norm3", "multihead_attn", "norm2", "self_attn", "norm1"]
    chosen = model(task="seq2seq", norm_first=norm_first, num_layers=1, num_decoder_layers=2)
    assert chosen.ready_order() == [
        *("fc.bias", "fc.weight"),
        *("transformer.decoder.norm.weight", "transformer.decoder.norm.bias"),
        *ready("transformer.decoder.layers.1", *decoder),
        *ready("transformer.decoder.layers.0", *decoder),
        *("transformer.encoder.norm.weight", "transformer.encoder.norm.bias"),
        *ready("transformer.encoder.layers.0", *encoder),
        *("tgt_embedding.weight", "src_embedding.weight"),
    ]


def test_weights_start_as_torchs_do():
    chosen = model()
    starts = {p.name.removeprefix("encoder.layers.0."): p.initial for p in chosen.parameters()}
    assert starts["embedding.weight"] == normal(1.0)
    assert starts["self_attn.in_proj_weight"] == xavier_uniform(8, 24)  # xavier over (24, 8)
    assert starts["self_attn.out_proj.weight"] == kaiming_uniform(8)
    assert starts["self_attn.in_proj_bias"] == starts["self_attn.out_proj.bias"] == constant(0.0)
    assert starts["linear2.weight"] == kaiming_uniform(12)
    assert starts["linear2.bias"] == uniform(1 / sqrt(12))
    assert starts["norm1.weight"] == constant(1.0)
    assert starts["norm1.bias"] == constant(0.0)


def test_nn_transformer_draws_all_its_matrices_by_xavier():
    chosen = model(task="seq2seq")
    starts = {p.name: chosen.initial(p) for p in chosen.parameters()}
    layer = "transformer.decoder.layers.0"
    assert starts[f"{layer}.linear1.weight"] == xavier_uniform(8, 12)
    assert starts[f"{layer}.self_attn.out_proj.weight"] == xavier_uniform(8, 8)
    assert starts[f"{layer}.multihead_attn.in_proj_weight"] == xavier_uniform(8, 24)
    assert starts[f"{layer}.linear1.bias"] == uniform(1 / sqrt(8))
    assert starts["src_embedding.weight"] == normal(1.0)
    assert starts["fc.weight"] == kaiming_uniform(8)


# What sees what ----------------------------------------------------------------------------------


def test_a_language_model_never_looks_ahead_and_a_classifier_does():
    for chosen, ahead in ((model(), False), (model(causal=False), True)):
        weights, x = by_formula(chosen), tokens(6, 11)
        before = run(chosen, weights, [x])
        x[:, 4] = (x[:, 4] + 1) % 11
        after = run(chosen, weights, [x])
        assert np.array_equal(before[:, :4], after[:, :4]) != ahead
        assert not np.allclose(before[:, 4:], after[:, 4:])


@for_each("keys", [{}, {"causal": False}, CLASSIFIER, {"task": "seq2seq"}])
@for_each("dropout", [0.0, 0.3])
def test_neither_padding_nor_the_rest_of_the_batch_changes_a_sample(keys, dropout):
    chosen = model(**keys, pad_id=0, dropout=dropout)
    weights, (inputs, _) = by_formula(chosen), data(chosen)
    together = run(chosen, weights, inputs)
    for number in range(3):
        alone = [array[number : number + 1, : array.shape[1] - number] for array in inputs]
        one = run(chosen, weights, alone, samples=[number])[0]
        whole = together[number][: len(one)] if one.ndim == 2 else together[number]
        np.testing.assert_allclose(whole, one, rtol=1e-12, atol=1e-13)


def test_dropout_draws_anew_for_every_place_sample_and_step():
    chosen = model(dropout=0.3)
    weights, x = by_formula(chosen), tokens(6, 11)[:1].repeat(2, axis=0)
    first, second = run(chosen, weights, [x])
    again = run(chosen, weights, [x])
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(again[0], first)
    swapped = run(chosen, weights, [x], samples=[1, 0])
    np.testing.assert_allclose(swapped[::-1], [first, second], rtol=1e-13)


def test_without_dropout_no_layer_drops():
    kinds = [call.layer.kind for call in model().graph.calls]
    assert "dropout" not in kinds
    dropping = [call.layer.kind for call in model(dropout=0.1).graph.calls]
    assert dropping.count("dropout") == 1 + 2 * 3  # the embedding, and three of each layer


def test_a_sample_of_padding_alone_does_no_harm():
    for keys in ({}, CLASSIFIER, {"task": "seq2seq"}):
        chosen = model(**keys, pad_id=0)
        inputs, y = data(chosen)
        for array in inputs:
            array[1] = 0
        output, loss, gradients = run(chosen, by_formula(chosen), inputs, y)
        assert np.isfinite(output).all()
        assert np.isfinite(loss)
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())


# The samples -------------------------------------------------------------------------------------


def test_the_data_gives_the_lengths_that_the_model_leaves_open():
    chosen = model(task="seq2seq")
    assert chosen.graph.inputs == ("x", "tgt")
    assert chosen.input_shapes() == {"x": None, "tgt": None}
    known = chosen.with_input_shapes({"x": (6,), "tgt": (5,)})
    assert known.input_shapes() == {"x": (6,), "tgt": (5,)}
    assert known.output_shape() == (5, 11)
    assert known.with_input_shapes({"x": (9,), "tgt": (9,)}) == known
    assert model().with_input_shapes({"x": (6,)}).output_shape() == (6, 11)
    assert model(**CLASSIFIER, sequence_length=4).output_shape() == (3,)


@for_each("shapes_of_data", [{}, {"x": (6, 2)}, {"x": ()}])
def test_data_that_is_no_list_of_tokens_gives_no_length(shapes_of_data):
    chosen = model().with_input_shapes(shapes_of_data)
    assert chosen.input_shapes() == {"x": None}
    assert chosen.how_to_give_shapes() == (
        "give sequence_length in the model, or data with samples of shape (length,)."
    )
    assert (
        model(task="seq2seq")
        .how_to_give_shapes()
        .startswith("give sequence_length and tgt_sequence_length in the model")
    )


def test_a_model_tells_its_tokens_its_padding_and_what_the_targets_follow():
    chosen = model(task="seq2seq", tgt_vocab_size=7, pad_id=1)
    assert (chosen.num_tokens("x"), chosen.num_tokens("tgt"), chosen.padding) == (11, 7, 1)
    assert chosen.target_follows == "tgt"
    assert model().target_follows == "x"
    assert model(**CLASSIFIER).target_follows is None
    assert model().padding is None
    assert model(task="seq2seq").num_tokens("tgt") == 11


def test_the_defaults_are_those_of_nn_transformer():
    chosen = TypeAdapter(AnyModel).validate_python(
        {"kind": "transformer", "task": "seq2seq", "vocab_size": 5}
    )
    assert (chosen.d_model, chosen.nhead, chosen.num_layers) == (512, 8, 6)
    assert (chosen.dim_feedforward, chosen.dropout, chosen.activation) == (2048, 0.1, "relu")
    assert sum("decoder.layers" in call.layer.name for call in chosen.graph.calls) == 6 * 20


TASKS = "leave it out, or change the task."


@for_each(
    ("keys", "line"),
    [
        (
            {"nhead": 3},
            "nhead: 3 heads do not share d_model 8 evenly; choose a divisor of it.",
        ),
        ({"pad_id": 11}, "pad_id: 11 is not a token; tokens are 0 ... 10."),
        ({"pad_id": -1}, "pad_id: -1 is not a token; tokens are 0 ... 10."),
        (
            {"task": "seq2seq", "tgt_vocab_size": 4, "pad_id": 5},
            "pad_id: 5 is not a token; tokens are 0 ... 3.",
        ),
        (
            {"num_labels": 3},
            f"num_labels goes with task: classifier, but the task is language_model; {TASKS}",
        ),
        (
            {"task": "seq2seq", "pooling": "mean"},
            f"pooling goes with task: classifier, but the task is seq2seq; {TASKS}",
        ),
        (
            {"tgt_vocab_size": 5},
            f"tgt_vocab_size goes with task: seq2seq, but the task is language_model; {TASKS}",
        ),
        (
            {"shared_embedding": True},
            f"shared_embedding goes with task: seq2seq, but the task is language_model; {TASKS}",
        ),
        (
            CLASSIFIER | {"num_decoder_layers": 1},
            f"num_decoder_layers goes with task: seq2seq, but the task is classifier; {TASKS}",
        ),
        (
            {"tgt_sequence_length": 5},
            f"tgt_sequence_length goes with task: seq2seq, but the task is language_model; {TASKS}",
        ),
        (
            {"task": "classifier"},
            "num_labels is required for task: classifier; add num_labels: 2.",
        ),
        (
            {"task": "seq2seq", "causal": False},
            "causal: tgt is always causal in task: seq2seq; leave the key out.",
        ),
        (
            {"task": "seq2seq", "shared_embedding": True, "tgt_vocab_size": 9},
            "shared_embedding: tgt_vocab_size is 9 and vocab_size 11; "
            "one embedding needs one vocabulary.",
        ),
        (
            {"activation": "tanh"},
            "activation: 'tanh' is not allowed; known: 'relu' or 'gelu'.",
        ),
        (
            {"task": "translate"},
            "task: 'translate' is not allowed; known: 'language_model', 'classifier' or 'seq2seq'.",
        ),
        ({"dropout": 1.5}, "dropout: 1.5 is out of range; it must be <= 1.0."),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys, line):
    assert refusal(**keys) == [line]


def test_a_task_and_a_vocabulary_are_required():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModel).validate_python({"kind": "transformer"})
    lines = [found.line for found in problems(caught.value, {"kind": "transformer"})]
    assert lines == [
        "task: is required but was not given; add it.",
        "vocab_size: is required but was not given; add it.",
    ]


# Costs -------------------------------------------------------------------------------------------

MEDIUM = {
    "vocab_size": 1000,
    "d_model": 256,
    "nhead": 4,
    "num_layers": 4,
    "dim_feedforward": 1024,
    "sequence_length": 64,
}


def flops(chosen, kinds=None):
    """FLOPs of forward and backward of the layers of some kinds, by default of all."""
    graph, found = chosen.graph, [0.0, 0.0]
    flowing = graph.shapes(chosen.known_shapes())
    for call, needs in zip(graph.calls, graph.needs, strict=True):
        given = [flowing[value] for value in call.inputs]
        if kinds is None or isinstance(call.layer, kinds):
            found[0] += sum(k.flops for k in call.layer.forward_cost(given, 4))
            found[1] += sum(k.flops for k in call.layer.backward_cost(given, 4, needs))
    return found


def test_a_token_takes_six_flops_per_parameter_and_those_of_its_attention():
    chosen = model(**MEDIUM)
    length, d, layers = 64, 256, 4
    learned = chosen.num_parameters() - 1000 * d  # an embedding is looked up
    forward, backward = flops(chosen)
    attention = 4 * d * length * layers  # Q K^T and P V, each 2 d per query and key
    assert forward / length == pytest.approx(2 * learned + attention, rel=0.02)
    assert backward / length == pytest.approx(2 * (2 * learned + attention), rel=0.02)
    assert (forward + backward) / length == pytest.approx(6 * learned + 3 * attention, rel=0.02)


def test_attention_costs_its_products_and_its_softmax():
    length, d, heads, layers = 64, 256, 4, 4
    forward, backward = flops(model(**MEDIUM), Attention)
    scores = heads * length**2
    assert forward == layers * (2 * 2 * length**2 * d + 5 * scores)
    assert backward == layers * (4 * 2 * length**2 * d + 4 * scores)


def test_what_a_layer_keeps_is_what_megatron_counts():
    """``s h (34 + 5 a s / h)`` bytes of a layer in 16 bit, with samples of s tokens.

    Korthikanti et al., "Reducing activation recomputation in large transformer models", arXiv
    2205.05198, equation 1. torch's layer has one more dropout, after the activation, whose mask is
    4 h; and a norm keeps two numbers of each row.
    """
    s, h, a = 64, 256, 4
    keys = MEDIUM | {"activation": "gelu", "dropout": 0.1, "num_layers": 1}
    chosen = model(**keys)
    flowing = chosen.graph.shapes(chosen.known_shapes())
    kept = sum(
        kept_nbytes(call.layer, [flowing[value] for value in call.inputs], 2)
        for call in chosen.graph.calls
        if call.layer.name.startswith("encoder.layers.0")
    )
    assert kept == s * h * (34 + 4) + 5 * a * s**2 + 2 * 2 * s * 2


def test_samples_that_are_too_odd_are_refused_by_the_layer_that_gets_them():
    chosen = model()
    with pytest.raises(ShapeError) as caught:
        chosen.graph.shapes([(3, 2)])
    assert str(caught.value) == (
        "positional_encoding: takes sequences (length, features), "
        "but gets samples of shape (3, 2, 8)"
    )
