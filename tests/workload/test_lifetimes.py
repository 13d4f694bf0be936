"""Which tensors of a micro-batch there are, call by call."""

from pathlib import Path

from for_each import for_each

from simdp.workload import Workload
from simdp.workload.lifetimes import lifetimes, recomputed

FLOAT = 4


def mlp(*widths, **options):
    model = {"kind": "mlp", "widths": list(widths), "activation": "relu"}
    return workload(model, {"kind": "regression", "num_samples": 64}, **options)


def workload(model, dataset, **options):
    raw = {"model": model, "dataset": dataset, "microbatch": 8, **options}
    return Workload.model_validate(raw).settled(Path())


MODELS = {
    "mlp": mlp(5, 7, 7, 3),
    "amp": mlp(5, 7, 7, 3, precision="amp"),
    "mixed": mlp(5, 7, 7, 3, precision="mixed"),
    "resnet": workload(
        {"kind": "resnet18", "image_size": 32}, {"kind": "images", "num_samples": 8},
        loss="cross_entropy",
    ),
    "language model": workload(
        {"kind": "transformer", "task": "language_model", "vocab_size": 11, "d_model": 8,
         "nhead": 2, "num_layers": 2, "dim_feedforward": 16},
        {"kind": "tokens", "num_samples": 8, "sequence_length": 6},
        loss="cross_entropy",
    ),
    "inception": workload(
        {"kind": "inception_v3"}, {"kind": "images", "num_samples": 8}, loss="cross_entropy"
    ),
    "counted": workload({"kind": "parameters", "num_params": 100, "num_layers": 4}, "none"),
}  # fmt: skip
EVERY = for_each("name", MODELS)
RECOMPUTING = for_each("recompute", ["none", "blocks", "selective", "selective_every_other"])


def follow(life, blocks=()):
    """Bytes of one sample after each stage's beginning and end, part by part."""
    runs = {run.calls[-1]: run.again for run in blocks}
    order = [*life.forward, life.backward[-1]]
    for number in reversed(range(len(life.backward) - 1)):
        order += [life.again[n] for n in runs.get(number, ())]
        order.append(life.backward[number])
    now, found = {"activations": 0.0, "outputs": 0.0, "temporary": 0.0}, []
    for stage in (*order, life.end):
        for tensor in stage.taken:
            now[tensor.part] += tensor.per_sample + tensor.fixed
        found.append(dict(now))
        for tensor in stage.given:
            now[tensor.part] -= tensor.per_sample + tensor.fixed
        assert min(now.values()) >= -1e-6
    return found, now


def most(life, blocks=(), part=None):
    found, _ = follow(life, blocks)
    return max(sum(now.values()) if part is None else now[part] for now in found)


@EVERY
@RECOMPUTING
def test_whatever_is_taken_is_given_back(name, recompute):
    chosen = MODELS[name].model_copy(update={"recompute": recompute})
    blocks = recomputed(chosen)
    if recompute in ("none", "blocks"):
        assert bool(blocks) == (recompute == "blocks" and bool(chosen.graph.blocks))
    _, left = follow(lifetimes(chosen, blocks), blocks)
    assert not any(left.values())


@EVERY
def test_recomputation_never_keeps_more_and_mostly_less(name):
    chosen = MODELS[name].model_copy(update={"recompute": "blocks"})
    blocks = recomputed(chosen)
    whole, saved = lifetimes(chosen), lifetimes(chosen, blocks)
    after = [sum(t.per_sample + t.fixed for s in life.forward for t in s.taken)
             - sum(t.per_sample + t.fixed for s in life.forward for t in s.given)
             for life in (whole, saved)]  # fmt: skip
    assert after[1] <= after[0]
    assert most(saved, blocks) <= most(whole)


@EVERY
def test_without_backward_nothing_is_kept(name):
    life = lifetimes(MODELS[name], keeps=False)
    assert life.backward == ()
    now = 0.0
    for stage in life.forward:
        now += sum(t.per_sample + t.fixed for t in stage.taken)
        now -= sum(t.per_sample + t.fixed for t in stage.given)
        assert all(t.part != "activations" for t in (*stage.taken, *stage.given))
    assert now == 0


def test_a_relu_keeps_its_output_which_the_next_layer_keeps_too():
    life = lifetimes(mlp(5, 7, 7, 3))
    found, _ = follow(life)
    # Two outputs of relus; the linear layers' own outputs only pass by, but for the last.
    assert max(now["activations"] for now in found) == 2 * 7 * FLOAT
    first_linear, first_relu, *_ = found
    assert first_linear["temporary"] == 7 * FLOAT
    assert first_relu == {"activations": 7 * FLOAT, "outputs": 0, "temporary": 7 * FLOAT}


def test_the_loss_needs_the_output_and_its_gradient():
    found, _ = follow(lifetimes(mlp(5, 7, 3)))
    assert max(now["outputs"] for now in found) == 2 * 3 * FLOAT
    logits = 6 * 11 * FLOAT
    found, _ = follow(lifetimes(MODELS["language model"]))
    # The output, log_softmax of it, the gradient of that, and the output's own.
    assert max(now["outputs"] for now in found) == 4 * logits


def test_in_16_bit_the_loss_works_on_copies_in_32():
    model = {**MODELS["language model"].model.model_dump(), "num_layers": 1}
    data = {"kind": "tokens", "num_samples": 8, "sequence_length": 6}
    found, _ = follow(lifetimes(workload(model, data, loss="cross_entropy", precision="mixed")))
    logits = 6 * 11
    # log_softmax, and the gradients of it and of the copy, beside the output.
    assert max(now["outputs"] for now in found) == 3 * 4 * logits + 2 * logits


def test_a_fused_loss_keeps_the_logits_and_makes_their_gradient_in_16_bit():
    """4 bytes a logit, not 14; 12 without outputs, 7 in 8 chunks (measured with torch)."""
    model = {**MODELS["language model"].model.model_dump(), "num_layers": 1}
    data = {"kind": "tokens", "num_samples": 8, "sequence_length": 6}
    logits = 6 * 11
    for loss, keeps, expected in (
        ("cross_entropy", True, 14),
        ("cross_entropy", False, 12),
        ({"kind": "cross_entropy", "num_chunks": 8}, True, 7),
        ({"kind": "cross_entropy", "implementation": "fused"}, True, 4),
    ):
        chosen = workload(model, data, loss=loss, precision="mixed", keeps_outputs=keeps)
        found, _ = follow(lifetimes(chosen))
        assert max(now["outputs"] for now in found) == expected * logits


def test_the_gradient_that_flows_is_there_beside_the_next_one():
    found, _ = follow(lifetimes(mlp(5, 7, 7, 3)))
    backward = found[-7:]  # loss, linear, relu, linear, relu, linear, end
    in_linear = backward[3]  # takes a gradient of 7, and makes one of 7
    assert in_linear["temporary"] == 2 * 7 * FLOAT


def test_autocast_copies_what_it_runs_in_16_bit():
    life = lifetimes(mlp(5, 7, 3, precision="amp"))
    found, _ = follow(life)
    weights = 2 * (5 * 7 + 7 + 7 * 3 + 3)
    # The cast micro-batch, the output of the relu, and the casts of the weights.
    assert max(now["activations"] for now in found) == 2 * 5 + 2 * 7 + weights


def test_a_block_is_computed_again_right_before_its_backward():
    chosen = mlp(5, 7, 7, 3, recompute="blocks")
    assert [run.calls for run in recomputed(chosen)] == [range(2), range(2, 4)]  # and a product
    life = lifetimes(chosen, recomputed(chosen))
    assert sorted(life.again) == [0, 1, 2, 3]
    # In forward only what enters a block is kept: the outputs of the two relus.
    kept = [t for stage in life.forward for t in stage.taken if t.part == "activations"]
    assert [t.per_sample for t in kept] == [7 * FLOAT, 7 * FLOAT]


def test_selective_recomputation_keeps_products_and_runs_the_rest_again():
    model = {"kind": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 6}
    dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "vocab_size": 11}
    data = {"kind": "tokens", "num_samples": 8, "sequence_length": 6}
    token = 6 * 8 * FLOAT
    for recompute, products in (
        ("blocks", 0),
        ("selective", 3 + 1 + 4 + 1),  # q, k and v at once; the way back; wide; the way back
        ("selective_every_other", 3 + 4),
    ):
        chosen = workload(model | dropped, data, loss="cross_entropy", recompute=recompute)
        (run,) = recomputed(chosen)
        life = lifetimes(chosen, [run])
        calls = run.calls[: len(run.calls) - run.stopped]
        assert set(life.again) == set(run.again) == set(calls) - run.stored
        taken = [t for n in run.calls for t in life.forward[n].taken if t.part == "activations"]
        # One more leaves the block, for the norm behind it.
        assert sum(t.per_sample for t in taken) == (products + 1) * token, recompute
