"""FSDP against torch's ``fully_shard`` on two real ranks: what is sent, when, what is learned."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, one_in
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.steps.ops import AllGather, Batch, ReduceScatter
from simdp.workload.models import MODELS
from simdp.workload.precision import numpy_dtype

GOLDEN = Path(__file__).parents[1] / "golden"
TOLD = json.loads((GOLDEN / "g14_fsdp2_2ranks.json").read_text())
ARRAYS = dict(np.load(GOLDEN / "g14_fsdp2_2ranks.npz"))

LOW = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
ABC = {"units": ["a", "b", "c"]}
OPTIONS = {
    "mlp": ABC,
    "mlp|head_in_root": {"units": ["a", "b"]},
    "mlp|bf16": {**ABC, **LOW},
    "mlp|accum2|bf16": {**ABC, **LOW, "sync": "last"},
    "llama": {},
    "llama|full_ac": {},
    "llama|float32": {},
    "llama|reshard=True": {"reshard_after_forward": True},
    "llama|reshard=False": {"reshard_after_forward": False},
    "llama|reshard=2": {"reshard_after_forward": 2},
    "llama|accum2|sync_last": {"sync": "last"},
    "llama|accum2|sync_each": {},
    "llama|prefetch2": {"forward_prefetch": 2, "backward_prefetch": 2},
    "llama|root_only": {"units": "whole"},
    "llama|titan": {"units": "torchtitan"},
    "llama|titan|full_ac": {"units": "torchtitan"},
    "llama|bf16": LOW,
    "llama|bf16_reduce": {"param_dtype": "bfloat16"},
}
"""What each case of the file is in a scenario."""

KNOWN = [name for name in OPTIONS if name.startswith("mlp") or "llama" in MODELS]
DOUBLE = [name for name in KNOWN if "bf16" not in name and "float32" not in name]
LAYERS = [("a", 5, 7, True), ("b", 7, 6, False), ("c", 6, 3, True)]
"""Of the golden MLP: names, features in and out, and whether there is a bias."""

ADAMW = {"kind": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}


def mlp():
    found = []
    for name, before, behind, bias in LAYERS:
        size = {"in_features": before, "out_features": behind, "bias": bias}
        found += [{"name": name, "kind": "linear", **size}, {"kind": "relu"}]
    return {"kind": "sequential", "layers": found[:-1], "input_shape": [5]}


def llama():
    told = json.loads((GOLDEN / "g13_llama.json").read_text())["config"]
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    keys += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    keys += ("rms_norm_eps", "tie_word_embeddings", "rope_parameters")
    return {"kind": "llama", **{key: told[key] for key in keys}}


def prepare(kind, folder):
    """Write the data and the first weights of the golden run."""
    if kind == "mlp":
        x, y = ARRAYS["mlp_x"].reshape(-1, 5), ARRAYS["mlp_y"].reshape(-1, 3)
        first = named(ARRAYS, "mlp.init.")
    else:
        arrays = dict(np.load(GOLDEN / "g13_llama.npz"))
        x, labels = (arrays[name].reshape(-1, 12) for name in ("tokens", "labels"))
        y = np.concatenate([labels[:, 1:], np.full((len(labels), 1), -100)], axis=1)
        first = named(arrays, "init.")
    np.savez(folder / "data.npz", x=x, y=y)
    np.savez(folder / "weights.npz", **first)
    return first


def named(arrays, lead):
    return {n.removeprefix(lead): array for n, array in arrays.items() if n.startswith(lead)}


def scenario(case, folder, world_size=2, **more):
    kind = case.split("|")[0]
    strategy = {"kind": "fsdp", "weight_by_shard": kind == "llama", **OPTIONS[case]}
    raw = {
        "cluster": {"world_size": world_size, **FAST},
        "workload": {
            "model": mlp() if kind == "mlp" else llama(),
            "weights": "weights.npz",
            "dataset": {"kind": "npz", "path": "data.npz"},
            "loss": "mse" if kind == "mlp" else "cross_entropy",
            "optimizer": ADAMW,
            "lr_schedule": {"kind": "cosine_warmup", "warmup_steps": 2, "total_steps": 8},
            "clip_grad_norm": 1.0,
            "global_batch": 16 if kind == "mlp" else 8,
            "grad_accum": 2 if "accum2" in case else 1,
            "recompute": "blocks" if "full_ac" in case else "none",
            "dtype": "float32" if "bf16" in case or "float32" in case else "float64",
            **more,
        },
        "strategy": strategy,
    }
    return checked(raw, folder)


def collectives(plan):
    """Collectives of a step as the file tells them."""
    found, micro = [], -1
    for op in plan:
        if isinstance(op, Batch):
            micro += 1
            found.append([f"-- forward {micro}"])
        elif isinstance(op, AllGather):
            found.append(["all_gather", op.label, op.nbytes])
        elif isinstance(op, ReduceScatter):
            found.append(["reduce_scatter", op.label, op.bucket.nbytes, op.bucket.dtype])
    return found


def wanted(events):
    found = []
    for event in events:
        if event[0].startswith("-- forward"):
            found.append(event)
        elif event[0] in ("all_gather", "reduce_scatter"):
            whole = max(event[2:4])
            assert min(event[2:4]) * 2 == whole
            nbytes = float(whole * numpy_dtype(event[4]).itemsize)
            told = [event[0], event[1], nbytes]
            found.append(told + ([event[4]] if event[0] == "reduce_scatter" else []))
    return found


@for_each("case", KNOWN)
def test_collectives_come_in_torchs_order_with_its_sizes_and_dtypes(case, tmp_path):
    prepare(case.split("|")[0], tmp_path)
    chosen = scenario(case, tmp_path)
    (told,) = TOLD["cases"][case]["log"]
    assert collectives(chosen.program.steady) == wanted(told["events"])


@pytest.mark.parametrize("case", one_in(3, DOUBLE))
def test_six_steps_learn_what_torchs_do(case, tmp_path):
    prepare(case.split("|")[0], tmp_path)
    result, told = simdp.simulate(scenario(case, tmp_path)), TOLD["cases"][case]
    scale = 2 if "titan" in case else 1  # there losses are sums over the ranks
    np.testing.assert_allclose(result.metrics["loss"], told["single_loss"], rtol=1e-12)
    np.testing.assert_allclose(scale * np.array(told["mean_loss"]), told["single_loss"], rtol=1e-12)
    np.testing.assert_allclose(result.metrics["grad_norm"], told["grad_norm"], rtol=1e-12)
    for name, (total, norm) in told["final_sum_and_l2"].items():
        own = result.replicas[1][name]
        assert own.sum() == pytest.approx(total, rel=1e-11, abs=1e-11), name
        assert np.linalg.norm(own) == pytest.approx(norm, rel=1e-12), name
    for name, weight in named(ARRAYS, f"{case}.final.").items():
        np.testing.assert_allclose(result.replicas[0][name], weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", one_in(2, [name for name in KNOWN if "bf16" in name]))
def test_in_bfloat16_first_losses_and_gradients_are_torchs(case, tmp_path):
    first = prepare(case.split("|")[0], tmp_path)
    told = TOLD["cases"][case]
    result = simdp.simulate(scenario(case, tmp_path))
    if case.startswith("mlp"):
        assert result.metrics["loss_per_rank"][0] == [each[0] for each in told["loss_per_rank"]]
    assert result.metrics["loss"][0] == pytest.approx(told["mean_loss"][0], rel=2e-3)
    np.testing.assert_allclose(result.metrics["loss"], told["mean_loss"], rtol=2e-2)
    close = 3e-7 if case.startswith("mlp") else 1e-2  # that of float32 weights less a gradient
    plain = {"optimizer": {"kind": "sgd", "lr": 1.0}, "lr_schedule": "none", "steps": 1}
    moved = simdp.simulate(scenario(case, tmp_path, **plain, clip_grad_norm=None)).replicas[0]
    for name, gradient in named(ARRAYS, f"{case}.grad1.").items():
        own = first[name].astype(np.float32) - moved[name]
        np.testing.assert_allclose(own, gradient, rtol=0, atol=close, err_msg=name)
    for name, weight in named(ARRAYS, f"{case}.final.").items():
        np.testing.assert_allclose(
            result.replicas[0][name], weight, rtol=0, atol=1e-2 if case.startswith("mlp") else 3e-2
        )


def test_every_rank_keeps_torchs_rows(tmp_path):
    prepare("mlp", tmp_path)
    dealt = scenario("mlp", tmp_path).program.partition
    rows = {"a.weight": 5, "a.bias": 1, "b.weight": 7, "c.weight": 6, "c.bias": 1}
    told = TOLD["cases"]["mlp"]
    shards = {name: [size * rows[name], *rest] for name, (size, *rest) in told["shards"].items()}
    assert {name: [size] for name, size in dealt.owned[0].items()} == {
        name: [shape[0]] for name, shape in shards.items()
    }
    assert [sum(mine.values()) for mine in dealt.owned] == told["local_state_elements"]
