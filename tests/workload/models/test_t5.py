"""T5 against its formulas written out token by token, and the presets' published figures."""

from math import log, sqrt

import numpy as np
import pytest
from for_each import for_each, for_some
from image_nets import model, pseudo, published, weights
from layer_checks import finished
from one_batch import play

from simdp.workload.execution import GraphExecutor
from simdp.workload.layers.attention import T5Attention, buckets
from simdp.workload.layers.base import Pass, ShapeError, constant, normal
from simdp.workload.step_costs import forward_flops

PRESETS = ["t5-small", "t5-base", "t5-large"]

TINY = {
    "vocab_size": 11,
    "d_model": 6,
    "d_kv": 3,
    "d_ff": 8,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "dropout_rate": 0.0,
    "sequence_length": 7,
    "tgt_sequence_length": 5,
}
KINDS = [
    {},
    {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    {"num_decoder_layers": 1, "pad_id": 0},
]
X = np.array([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 0, 0, 0]])
TGT = np.array([[0, 2, 7, 1, 8], [0, 2, 8, 4, 5]])


def t5(**keys):
    return model("t5", **TINY | keys)


# The formulas, one sample and one number at a time ------------------------------------------------


def bucket(distance, both_ways, number, most):
    """Raffel et al., as transformers' _relative_position_bucket words it."""
    start = 0
    if both_ways:
        number //= 2
        start = number if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = number // 2
    if distance < exact:
        return start + distance
    grown = exact + int(log(distance / exact) / log(most / exact) * (number - exact) + 1e-9)
    return start + min(grown, number - 1)


class Reference:
    """Plain loops over heads and tokens."""

    def __init__(self, chosen, values):
        self.m, self.w = chosen, values

    def norm(self, x, name):
        eps = self.m.layer_norm_epsilon
        rows = [row / sqrt(sum(n * n for n in row) / len(row) + eps) for row in x]
        return np.array(rows) * self.w[f"{name}.weight"]

    def attend(self, name, x, memory, hidden, table):
        """Scores are products as they are, plus what the table has for their distance."""
        q, k, v = (
            of @ self.w[f"{name}.{part}.weight"].T
            for part, of in zip("qkv", (x, memory, memory), strict=True)
        )
        depth, out = self.m.d_kv, np.zeros_like(q)
        for head in range(self.m.num_heads):
            own = slice(head * depth, (head + 1) * depth)
            for i in range(len(x)):
                scores = {}
                for j in range(len(memory)):
                    if hidden[j] or (table is not None and not table[1] and j > i):
                        continue
                    scores[j] = float(q[i, own] @ k[j, own])
                    if table is not None:
                        number = self.m.relative_attention_num_buckets
                        most = self.m.relative_attention_max_distance
                        where = bucket(j - i, table[1], number, most)
                        scores[j] += table[0][where, head]
                total = sum(np.exp(score) for score in scores.values())
                for j, score in scores.items():
                    out[i, own] += np.exp(score) / total * v[j, own]
        return out @ self.w[f"{name}.o.weight"].T

    def feed(self, name, x):
        gated = self.m.feed_forward_proj == "gated-gelu"
        if not gated:
            return np.maximum(x @ self.w[f"{name}.wi.weight"].T, 0) @ self.w[f"{name}.wo.weight"].T
        gate = x @ self.w[f"{name}.wi_0.weight"].T
        gate = 0.5 * gate * (1 + np.tanh(sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return (gate * (x @ self.w[f"{name}.wi_1.weight"].T)) @ self.w[f"{name}.wo.weight"].T

    def stack(self, side, tokens, memory, hidden):
        h = self.w["shared.weight"][tokens]
        depth = self.m.num_layers
        if side == "decoder":
            depth = self.m.num_decoder_layers or depth
        lead = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table = self.w[lead], side == "encoder"
        for number in range(depth):
            name = f"{side}.block.{number}.layer"
            a = self.norm(h, f"{name}.0.layer_norm")
            seen = hidden if side == "encoder" else [False] * len(tokens)
            h = h + self.attend(f"{name}.0.SelfAttention", a, a, seen, table)
            last = 1
            if memory is not None:
                a, last = self.norm(h, f"{name}.1.layer_norm"), 2
                h = h + self.attend(f"{name}.1.EncDecAttention", a, memory, hidden, None)
            a = self.norm(h, f"{name}.{last}.layer_norm")
            h = h + self.feed(f"{name}.{last}.DenseReluDense", a)
        return self.norm(h, f"{side}.final_layer_norm")

    def logits(self, x, tgt):
        found = []
        for source, target in zip(x, tgt, strict=True):
            hidden = [token == self.m.pad_id for token in source]
            memory = self.stack("encoder", source, None, hidden)
            h = self.stack("decoder", target, memory, hidden)
            if self.m.tie_word_embeddings:
                found.append(h * self.m.d_model**-0.5 @ self.w["shared.weight"].T)
            else:
                found.append(h @ self.w["lm_head.weight"].T)
        return np.array(found)


def forward(chosen, values):
    dtype = next(iter(values.values())).dtype.name
    executor = GraphExecutor(chosen.graph, [dtype] * len(chosen.graph.calls), dtype)
    run = Pass(values, samples=np.arange(len(X)))
    (y,), kept = finished(executor.forward(run, [X, TGT]))
    return executor, run, y, kept


@for_each("keys", KINDS)
def test_outputs_are_those_of_the_formulas(keys):
    chosen = t5(**keys)
    values = weights(chosen)
    wanted = Reference(chosen, values).logits(X, TGT)
    np.testing.assert_allclose(forward(chosen, values)[2], wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@for_some("keys", KINDS, 2)
def test_gradients_are_differences_of_the_formulas(keys):
    chosen = t5(**keys)
    values = weights(chosen)
    executor, run, y, kept = forward(chosen, values)
    slopes = pseudo(y.shape, 2000)
    finished(executor.backward(run, kept, [slopes]))
    assert sorted(run.gradients) == sorted(values)

    def loss(changed):
        return float(np.vdot(slopes, Reference(chosen, values | changed).logits(X, TGT)))

    for seed, name in enumerate(values):
        along = pseudo(values[name].shape, 3000 + seed)
        ahead, behind = (loss({name: values[name] + sign * 1e-6 * along}) for sign in (1, -1))
        slope = float(np.vdot(run.gradients[name], along))
        assert (ahead - behind) / 2e-6 == pytest.approx(slope, rel=1e-5, abs=1e-7), name


@for_each(
    ("both_ways", "number", "most"),
    [(True, 32, 128), (False, 32, 128), (True, 8, 6), (False, 6, 9)],
)
def test_distances_fall_into_transformers_buckets(both_ways, number, most):
    found = buckets(200, 150, both_ways, number, most)
    for query in (0, 3, 77, 199):
        wanted = [bucket(key - query, both_ways, number, most) for key in range(150)]
        assert found[query].tolist() == wanted


def test_float32_stays_float32():
    chosen = t5()
    values = {name: value.astype(np.float32) for name, value in weights(chosen).items()}
    executor, run, y, kept = forward(chosen, values)
    finished(executor.backward(run, kept, [np.ones_like(y)]))
    assert {y.dtype, *(g.dtype for g in run.gradients.values())} == {np.dtype(np.float32)}


# Tensors -----------------------------------------------------------------------------------------


def test_parameters_are_named_and_ordered_as_transformers():
    names = [p.name for p in t5(tie_word_embeddings=False).parameters()]
    lead = "encoder.block.0.layer"
    assert names[:9] == [
        "shared.weight",
        *[f"{lead}.0.SelfAttention.{part}.weight" for part in "qkvo"],
        f"{lead}.0.SelfAttention.relative_attention_bias.weight",
        f"{lead}.0.layer_norm.weight",
        f"{lead}.1.DenseReluDense.wi.weight",
        f"{lead}.1.DenseReluDense.wo.weight",
    ]
    assert names[9:11] == [
        f"{lead}.1.layer_norm.weight",
        "encoder.block.1.layer.0.SelfAttention.q.weight",
    ]
    assert "decoder.block.1.layer.1.EncDecAttention.q.weight" in names
    assert sum("relative_attention_bias" in name for name in names) == 2
    assert names[-2:] == ["decoder.final_layer_norm.weight", "lm_head.weight"]
    assert "lm_head.weight" not in [p.name for p in t5().parameters()]


def test_weights_start_as_transformers():
    chosen = t5(initializer_factor=2.0)
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    lead = "encoder.block.0.layer"
    assert initial["shared.weight"] == normal(2.0)
    assert initial[f"{lead}.0.SelfAttention.q.weight"] == normal(2.0 * (6 * 3) ** -0.5)
    assert initial[f"{lead}.0.SelfAttention.k.weight"] == normal(2.0 * 6**-0.5)
    assert initial[f"{lead}.0.SelfAttention.o.weight"] == normal(2.0 * (2 * 3) ** -0.5)
    bias = f"{lead}.0.SelfAttention.relative_attention_bias.weight"
    assert initial[bias] == normal(2.0 * 6**-0.5)
    assert initial[f"{lead}.1.DenseReluDense.wo.weight"] == normal(2.0 * 8**-0.5)
    assert initial[f"{lead}.0.layer_norm.weight"] == constant(2.0)


def test_dropout_stands_where_transformers_has_it():
    chosen = t5(dropout_rate=0.1)
    drops = [c.layer.name for c in chosen.graph.calls if c.layer.kind == "dropout"]
    assert len(drops) == 4 + 2 * 3 + 2 * 4
    assert {c.layer.dropout for c in chosen.graph.calls if c.layer.kind == "t5_attention"} == {0.1}


# Training ----------------------------------------------------------------------------------------


def test_two_ranks_learn_what_one_learns(tmp_path):
    random = np.random.default_rng(0)
    x, tgt, y = (random.integers(1, 11, size=(16, n)) for n in (7, 5, 5))
    x[:, 5:] *= random.integers(2, size=(16, 1))
    np.savez(tmp_path / "data.npz", x=x, tgt=tgt, y=y)
    keys = {name: value for name, value in TINY.items() if "length" not in name}
    told = {
        "model": {"kind": "t5", **keys, "pad_id": 0, "dropout_rate": 0.2},
        "dataset": {"kind": "npz", "path": str(tmp_path / "data.npz")},
        "loss": "cross_entropy",
        "optimizer": {"kind": "adam", "lr": 0.01},
        "global_batch": 8,
    }
    one, two = play("single", 1, **told), play("ddp", 2, **told)
    assert one.metrics["loss"] == pytest.approx(two.metrics["loss"], rel=1e-12)
    for name, array in one.replicas[0].items():
        np.testing.assert_allclose(two.replicas[1][name], array, rtol=1e-9, atol=1e-11)


# Presets -----------------------------------------------------------------------------------------


@for_each("name", PRESETS)
def test_presets_have_the_published_parameters(name):
    assert model(name).num_parameters() == published(name, "parameters")


@for_each("name", PRESETS)
def test_presets_have_the_flops_of_their_products(name):
    found = forward_flops(model(name).graph, model(name).known_shapes())
    assert found.products / 1e9 == pytest.approx(published(name, "flops"), rel=0.02)


# Refused -----------------------------------------------------------------------------------------


def test_queries_keys_and_values_that_do_not_fit_are_refused():
    core = T5Attention(name="l", num_heads=2)
    with pytest.raises(ShapeError, match="takes queries, keys and values of 2 heads, but gets"):
        core.output_shape((3, 5), (4, 5), (4, 5))
    with pytest.raises(ShapeError, match="takes queries, keys and values of 2 heads, but gets"):
        core.output_shape((3, 4), (4, 4), (5, 4))


def test_lengths_that_nobody_knows_are_to_be_given():
    chosen = model("t5", **{k: v for k, v in TINY.items() if "length" not in k})
    assert chosen.input_shapes() == {"x": None, "tgt": None}
    assert chosen.how_to_give_shapes().startswith("give sequence_length and tgt_sequence_length")
