"""A transformer trained as a scenario, against real torch DDP processes, in float64."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, one_in
from small_scenario import FAST

import simdp
from simdp.scenario import checked

GOLDEN = Path(__file__).parents[1] / "golden"

LANGUAGE_MODEL = {
    "kind": "transformer",
    "task": "language_model",
    "vocab_size": 50,
    "d_model": 32,
    "nhead": 4,
    "num_layers": 2,
    "dim_feedforward": 64,
    "dropout": 0.0,
}
STEPS = 5


@pytest.fixture
def golden(tmp_path):
    """Arrays of the golden files, and a function that trains their language model."""
    arrays = {}
    for name in ("g04_enc_post", "g04_enc_post_ddp"):
        arrays |= np.load(GOLDEN / f"{name}.npz")
    tokens = arrays["tokens"].reshape(-1, 13)
    np.savez(tmp_path / "data.npz", x=tokens[:, :-1], y=tokens[:, 1:])
    first = {name[5:]: arrays[name] for name in arrays if name.startswith("init.")}
    np.savez(tmp_path / "weights.npz", **first)

    def train(world_size, strategy, **more):
        workload = {
            "model": LANGUAGE_MODEL,
            "weights": "weights.npz",
            "dataset": {"kind": "npz", "path": "data.npz"},
            "loss": {"kind": "cross_entropy", "ignore_index": 0},
            "optimizer": "adam",
            "lr_schedule": {"kind": "noam", "d_model": 32, "warmup_steps": 10},
            "clip_grad_norm": 1.0,
            "global_batch": 16,
            "dtype": "float64",
            **more,
        }
        cluster = {"world_size": world_size, **FAST}
        raw = {"cluster": cluster, "workload": workload, "strategy": strategy}
        return simdp.simulate(checked(raw, tmp_path))

    return arrays, first, train


CASES = [
    ("single", 1, "single"),
    ("w2", 2, "ddp"),
    ("w4", 4, "ddp"),
    ("w2_weighted", 2, {"kind": "ddp", "weight_by_shard": True}),
    ("w4_weighted", 4, {"kind": "ddp", "weight_by_shard": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "world_size", "strategy"), one_in(3, CASES, first=1))
def test_five_steps_of_adam_noam_and_clipping_equal_torchs(golden, case, world_size, strategy):
    arrays, first, train = golden
    result = train(world_size, strategy)
    metrics = result.metrics
    losses = metrics["loss"] if world_size == 1 else metrics["loss_per_rank"]
    np.testing.assert_allclose(losses, arrays[f"{case}.loss"], rtol=1e-12)
    np.testing.assert_allclose(metrics["lr"], arrays[f"{case}.lr"], rtol=1e-14)
    np.testing.assert_allclose(metrics["grad_norm"], arrays[f"{case}.norm"], rtol=1e-12)
    for own in result.replicas:
        for name in first:
            wanted = arrays[f"{case}.final.{name}"]
            # Adam makes 1e-11 of the 1e-18 that the key bias's gradient is instead of zero.
            np.testing.assert_allclose(own[name], wanted, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.slow
@for_each(("case", "world_size", "strategy"), CASES)
def test_the_averaged_gradients_equal_torchs(golden, case, world_size, strategy):
    arrays, first, train = golden
    # With a learning rate of 1 and nothing clipped, the weights move by the gradient.
    plain = {"optimizer": {"kind": "sgd", "lr": 1.0}, "lr_schedule": "none", "steps": 1}
    moved = train(world_size, strategy, **plain, clip_grad_norm=None).replicas[-1]
    for name, start in first.items():
        wanted = arrays[f"{case}.grad1.{name}"]
        np.testing.assert_allclose(start - moved[name], wanted, rtol=0, atol=1e-12, err_msg=name)


# An encoder-decoder ----------------------------------------------------------------------------

SEQ2SEQ = {
    "kind": "transformer",
    "task": "seq2seq",
    "vocab_size": 20,
    "d_model": 16,
    "nhead": 4,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "dim_feedforward": 24,
    "dropout": 0.0,
    "pad_id": 0,
}
VARIANTS = {
    "post": {"tgt_vocab_size": 18},
    "pre": {"norm_first": True, "activation": "gelu", "shared_embedding": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", one_in(3, [4, 1, 2]))
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_encoder_decoder_trains_as_torchs(tmp_path, variant, world_size):
    """torch 2.13.0: torch.nn.Transformer between embeddings times sqrt(16) with sinusoidal
    positions and a linear map; masks for padding and for what comes later; Adam, Noam's schedule
    (d_model 16, 5 steps of warm-up) and clipping to 1 over three batches of 8 padded sequences.
    """
    golden = np.load(GOLDEN / "seq2seq.npz")
    np.savez(tmp_path / "data.npz", **{name: golden[name] for name in ("x", "tgt", "y")})
    lead = f"{variant}.init."
    first = {name.removeprefix(lead): golden[name] for name in golden if name.startswith(lead)}
    np.savez(tmp_path / "weights.npz", **first)
    workload = {
        "model": SEQ2SEQ | VARIANTS[variant],
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "loss": {"kind": "cross_entropy", "ignore_index": 0},
        "optimizer": "adam",
        "lr_schedule": {"kind": "noam", "d_model": 16, "warmup_steps": 5},
        "clip_grad_norm": 1.0,
        "global_batch": 8,
        "dtype": "float64",
    }
    raw = {
        "cluster": {"world_size": world_size, **FAST},
        "workload": workload,
        "strategy": {"kind": "ddp", "weight_by_shard": True},
    }
    result = simdp.simulate(checked(raw, tmp_path))
    np.testing.assert_allclose(result.metrics["loss"], golden[f"{variant}.loss"], rtol=1e-12)
    np.testing.assert_allclose(result.metrics["grad_norm"], golden[f"{variant}.norm"], rtol=1e-12)
    for own in result.replicas:
        for name in first:
            wanted = golden[f"{variant}.final.{name}"]
            np.testing.assert_allclose(own[name], wanted, rtol=0, atol=1e-9, err_msg=name)
