"""Llama and Qwen2 trained as scenarios, against transformers under real torch, in float64."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from pydantic import TypeAdapter
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.strategies.ddp import DDP
from simdp.workload.models import AnyModel

GOLDEN = Path(__file__).parents[1] / "golden"

KINDS = ["llama", "qwen2"]
KEYS = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "rope_parameters",
]
WITHOUT_DECAY = ["*norm.weight", "*bias"]
"""Parameters of one dimension, which the golden Qwen2 does not decay."""

FINAL = {"llama": 1e-12, "qwen2": 1e-9}
"""How close final weights come: Adam magnifies what a key's bias gets in place of zero."""

MODES = {"plain": {}, "token_weighted": {"weight_by_shard": True}}


class Golden:
    """A golden file, and its model trained as it was."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.told = json.loads((GOLDEN / f"g13_{kind}.json").read_text())
        self.arrays = dict(np.load(GOLDEN / f"g13_{kind}.npz"))
        x, labels = (self.arrays[name].reshape(-1, 12) for name in ("tokens", "labels"))
        last = np.full((len(labels), 1), -100)
        np.savez(folder / "data.npz", x=x, y=np.concatenate([labels[:, 1:], last], axis=1))
        self.model = {"kind": kind, **{key: self.told["config"][key] for key in KEYS}}
        self.first = self.named("init")
        np.savez(folder / "weights.npz", **self.first)

    def named(self, lead):
        """The arrays of one kind by their parameters' names."""
        lead = f"{lead}."
        return {n.removeprefix(lead): a for n, a in self.arrays.items() if n.startswith(lead)}

    def train(self, world_size=1, strategy="single", **more):
        decay = {"param_groups": [{"params": WITHOUT_DECAY, "weight_decay": 0.0}]}
        workload = {
            "model": self.model,
            "weights": "weights.npz",
            "dataset": {"kind": "npz", "path": "data.npz"},
            "loss": "cross_entropy",
            "optimizer": {
                "kind": "adamw",
                "lr": 0.01,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                **(decay if self.kind == "qwen2" else {}),
            },
            "lr_schedule": {"kind": "cosine_warmup", "warmup_steps": 2, "total_steps": 8},
            "clip_grad_norm": 1.0,
            "global_batch": 8,
            "dtype": "float64",
            **more,
        }
        cluster = {"world_size": world_size, **FAST}
        raw = {"cluster": cluster, "workload": workload, "strategy": strategy}
        return simdp.simulate(checked(raw, self.folder))


@pytest.fixture(params=KINDS)
def golden(request, tmp_path):
    return Golden(request.param, tmp_path)


def test_parameters_are_those_of_transformers_in_their_order(golden):
    shapes = {name: list(array.shape) for name, array in golden.first.items()}
    model = golden.train(steps=1).replicas[0]
    assert {name: list(array.shape) for name, array in model.items()} == shapes
    assert list(golden.told["parameters"].items()) == [
        (name, list(array.shape)) for name, array in model.items()
    ]


@pytest.mark.slow
@for_each("attention", ["flash", "eager"])
def test_six_steps_of_adamw_cosine_and_clipping_equal_torchs(golden, attention):
    result, wanted = golden.train(attention=attention), golden.told["single"]
    metrics = result.metrics
    np.testing.assert_allclose(metrics["loss"], wanted["loss"], rtol=1e-12)
    np.testing.assert_allclose(metrics["lr"], wanted["lr"], rtol=1e-14, atol=1e-18)
    np.testing.assert_allclose(metrics["grad_norm"], wanted["grad_norm"], rtol=1e-12)
    for name, weight in golden.named("final").items():
        own = result.replicas[0][name]
        np.testing.assert_allclose(own, weight, rtol=0, atol=FINAL[golden.kind], err_msg=name)


def test_gradients_equal_torchs(golden):
    # With a learning rate of 1 and nothing clipped, the weights move by the gradient.
    plain = {"optimizer": {"kind": "sgd", "lr": 1.0}, "lr_schedule": "none", "steps": 1}
    moved = golden.train(**plain, clip_grad_norm=None).replicas[0]
    for name, gradient in golden.named("grad1").items():
        own = golden.first[name] - moved[name]
        np.testing.assert_allclose(own, gradient, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_of_ddp_learn_as_torchs(golden, mode):
    wanted = golden.told["ddp"][f"cap=None|{mode}"]
    result = golden.train(2, {"kind": "ddp", **MODES[mode]})
    losses = np.transpose(result.metrics["loss_per_rank"])
    if mode == "token_weighted":  # the file holds what backward starts from
        tokens = np.array(wanted["tokens"])
        losses = losses * 2 * tokens / tokens.sum(axis=0)
    np.testing.assert_allclose(losses, wanted["loss"], rtol=1e-12)
    np.testing.assert_allclose(result.metrics["grad_norm"], wanted["grad_norm"], rtol=1e-12)
    for name, (total, norm) in wanted["final_sum_and_l2"].items():
        own = result.replicas[1][name]
        assert own.sum() == pytest.approx(total, rel=1e-9, abs=1e-9), name
        assert np.linalg.norm(own) == pytest.approx(norm, rel=1e-11), name


@for_each("cap", ["None", "0.02", "0.06"])
def test_ddp_fills_torchs_buckets_in_its_order(golden, cap):
    wanted = golden.told["ddp"][f"cap={cap}|plain"]["buckets"]
    nbytes = None if cap == "None" else f"{int(float(cap) * 2**20)} B"
    model = TypeAdapter(AnyModel).validate_python(golden.model)
    buckets = DDP(bucket_cap=nbytes).buckets(model.parameters(), model.ready_order(), 8, 1)
    assert [list(names) for names in buckets] == wanted["rebuilt_order"]
    sizes = {p.name: 8 * p.num_elements for p in model.parameters()}
    held = [str(sum(sizes[name] for name in names)) for names in buckets]
    assert ", ".join(held) == wanted["rebuilt_bytes"]


# Every decoder, under everything that shards ------------------------------------------------------

SMALL = {
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "sequence_length": 6,
}
MPT = {"vocab_size": 11, "d_model": 6, "n_heads": 3, "n_layers": 2, "max_seq_len": 6}
DECODERS = {
    "llama": SMALL | {"num_key_value_heads": 2, "attention_dropout": 0.2},
    "qwen2": SMALL | {"tie_word_embeddings": True},
    "mistral": SMALL | {"num_key_value_heads": 1, "sliding_window": 3},
    "mpt": MPT,
    "gpt_neox": SMALL | {"rotary_pct": 0.5},
}


@pytest.mark.slow
@for_some("kind", DECODERS, 8)
def test_whatever_is_sharded_learns_what_one_device_does(kind, tmp_path):
    def train(world_size, strategy):
        workload = {
            "model": {"kind": kind, **DECODERS[kind]},
            "dataset": {"kind": "tokens", "num_samples": 48},
            "loss": "cross_entropy",
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
            "clip_grad_norm": 1.0,
            "global_batch": 16,
            "dtype": "float64",
        }
        cluster = {"world_size": world_size, "devices_per_node": 2, **FAST}
        cluster |= {"inter_node": {"topology": "switch", "link": "ib-hdr"}}
        raw = {"cluster": cluster, "workload": workload, "strategy": strategy}
        return simdp.simulate(checked(raw, tmp_path))

    one = train(1, "single")
    for strategy in ("ddp", "zero1", "zero2", "fsdp", "hsdp"):
        many = train(4, strategy)
        np.testing.assert_allclose(many.metrics["loss"], one.metrics["loss"], rtol=1e-12)
        assert many.metrics["replicas_identical"]
        for name, array in one.replicas[0].items():
            own = many.replicas[3][name]
            np.testing.assert_allclose(own, array, rtol=0, atol=1e-12, err_msg=f"{strategy} {name}")
