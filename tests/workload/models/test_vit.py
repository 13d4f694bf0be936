"""ViT against transformers' ViTForImageClassification, and the presets' published figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from image_nets import (
    assert_gradients_are_differences,
    assert_has_published_parameters,
    assert_runs_in_float32,
    giga_multiply_adds,
    model,
    published,
    refusal,
)
from layer_checks import finished
from one_batch import play

from simdp.workload.execution import GraphExecutor
from simdp.workload.layers.base import Pass, ShapeError, constant, normal, trunc_normal

GOLDEN = Path(__file__).parents[2] / "golden"
TOLD = json.loads((GOLDEN / "g18_vit.json").read_text())
KEYS = {"kind": "vit", **TOLD["config"]}
PRESETS = ["vit-b", "vit-l"]

TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "image_size": 6,
    "patch_size": 2,
    "num_channels": 2,
    "num_labels": 3,
    "layer_norm_eps": 1e-6,
}


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "g18_vit.npz") as stored:
        return dict(stored)


def tensors(golden, lead):
    return {name: golden[f"{lead}.{name}"] for name in TOLD["parameters"]}


# Transformers ------------------------------------------------------------------------------------


def test_parameters_are_named_and_ordered_as_transformers():
    chosen = model(**KEYS)
    assert {p.name: list(p.shape) for p in chosen.parameters()} == TOLD["parameters"]
    assert [p.name for p in chosen.parameters()] == list(TOLD["parameters"])
    assert chosen.graph.unused == ()


def test_outputs_and_gradients_are_transformers(golden):
    graph = model(**KEYS).graph
    executor = GraphExecutor(graph, ["float64"] * len(graph.calls), "float64")
    run = Pass(tensors(golden, "init"), samples=np.arange(8))
    (logits,), kept = finished(executor.forward(run, [golden["pixel_values"][0].astype(float)]))
    np.testing.assert_allclose(logits, golden["logits1"], rtol=1e-12, atol=1e-13)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    slopes = (shares - np.eye(5)[golden["labels"][0]]) / 8
    finished(executor.backward(run, kept, [slopes]))
    for name, wanted in tensors(golden, "grad1").items():
        np.testing.assert_allclose(run.gradients[name], wanted, rtol=1e-12, atol=1e-13)


@pytest.fixture
def training(golden, tmp_path):
    """Six steps of AdamW, with clipping and a warm-up, as the file has them."""
    x, y = golden["pixel_values"], golden["labels"]
    np.savez(tmp_path / "data.npz", x=x.reshape(48, *x.shape[2:]), y=y.reshape(48))
    np.savez(tmp_path / "init.npz", **tensors(golden, "init"))
    optimizer = {"kind": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}
    return {
        "model": KEYS,
        "weights": str(tmp_path / "init.npz"),
        "dataset": {"kind": "npz", "path": str(tmp_path / "data.npz")},
        "loss": "cross_entropy",
        "optimizer": optimizer,
        "lr_schedule": {"kind": "cosine_warmup", "warmup_steps": 2, "total_steps": 8},
        "clip_grad_norm": 1.0,
        "global_batch": 8,
    }


def test_six_steps_are_transformers(golden, training):
    result = play("single", 1, **training)
    assert result.metrics["loss"] == pytest.approx(TOLD["single"]["loss"], rel=1e-9)
    assert result.metrics["grad_norm"] == pytest.approx(TOLD["single"]["grad_norm"], rel=1e-9)
    assert result.metrics["lr"] == pytest.approx(TOLD["single"]["lr"], abs=1e-15)
    for name, wanted in tensors(golden, "final").items():
        np.testing.assert_allclose(result.replicas[0][name], wanted, rtol=1e-9, atol=1e-9)


def test_ddp_of_two_ranks_is_torchs(training):
    result = play("ddp", 2, **training)
    wanted = TOLD["ddp_2_ranks"]
    per_rank = np.array(result.metrics["loss_per_rank"]).T
    np.testing.assert_allclose(per_rank, wanted["loss"], rtol=1e-9)
    for name, (total, norm) in wanted["final_sum_and_l2"].items():
        found = result.replicas[1][name]
        assert found.sum() == pytest.approx(total, rel=1e-8, abs=1e-8), name
        assert np.linalg.norm(found) == pytest.approx(norm, rel=1e-9), name


# Presets -----------------------------------------------------------------------------------------


@for_each("name", PRESETS)
def test_presets_have_the_published_parameters(name):
    assert_has_published_parameters(name)


@for_each("name", PRESETS)
def test_presets_have_the_published_flops(name):
    found = giga_multiply_adds(model(name))
    assert found == pytest.approx(published(name, "flops"), rel=2e-3)


# Own words ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradients_are_differences():
    assert_gradients_are_differences(model("vit", **TINY))


def test_float32_stays_float32():
    assert_runs_in_float32(model("vit", **TINY))


def test_dropout_stands_where_transformers_has_it():
    chosen = model("vit", **TINY, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
    kinds = [call.layer.kind for call in chosen.graph.calls]
    assert kinds.count("dropout") == 1 + 2 * 2
    assert [c.layer.dropout for c in chosen.graph.calls if c.layer.kind == "attention"] == [0.2] * 2


def test_maps_to_queries_keys_and_values_may_have_no_bias():
    names = [p.name for p in model("vit", **TINY, qkv_bias=False).parameters()]
    assert "vit.layers.0.attention.q_proj.bias" not in names
    assert "vit.layers.0.attention.o_proj.bias" in names


def test_weights_start_as_transformers():
    chosen = model("vit", **TINY, initializer_range=0.3)
    initial = {p.name: chosen.initial(p) for p in chosen.parameters()}
    assert initial["vit.embeddings.cls_token"] == trunc_normal(0.3)
    assert initial["vit.embeddings.patch_embeddings.projection.weight"] == normal(0.3)
    assert initial["vit.layers.0.mlp.fc1.bias"] == constant(0.0)
    assert initial["vit.layernorm.weight"] == constant(1.0)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"patch_size": 300},
            "patch_size: 300 is larger than the image of 224 pixels; write a patch that fits.",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys, said):
    (line,) = refusal(kind="vit", **keys)
    assert line == said


def test_heads_that_do_not_divide_are_refused():
    (line,) = refusal(kind="vit", num_attention_heads=5)
    assert line.startswith("num_attention_heads")


def test_other_images_are_refused():
    chosen = model("vit", **TINY)
    with pytest.raises(ShapeError, match=r"vit\.embeddings: takes 9 patches of 8 channels"):
        chosen.shapes(((2, 8, 8),))
