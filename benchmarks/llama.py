"""How fast a small Llama's forward and backward are, beside the same model written in torch.

    python -m benchmarks.llama

Both run on one thread, in float32, in turns; the least CPU time of several rounds counts. torch
runs its fused kernels (scaled_dot_product_attention, rms_norm) and transformers' rotary embedding.
torch is needed for the comparison alone: ``pip install torch --index-url
https://download.pytorch.org/whl/cpu``; without it the figures of simdp stand alone.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np

from benchmarks.beside_torch import complain, simdp_step
from benchmarks.table import show
from simdp.workload.layers.rotary import waves
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.models.llama import Llama
from simdp.workload.weights import drawn

TARGET = 0.5
ROUNDS = 8
TOKENS = 1024
SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
LENGTHS = (64, 256, 1024)
"""Tokens of a sample; a batch has `TOKENS` of them."""

Step = Callable[[], Any]


def torch_step(model: Llama, x: Any, y: Any) -> Step:
    """The same in torch, with the same weights."""
    import torch
    from torch.nn import functional as f

    torch.set_num_threads(1)
    found = drawn(model, model.graph, "float32", 0, 0)
    weights = {n: torch.from_numpy(w).requires_grad_() for n, w in found.items()}
    tokens, targets = torch.from_numpy(x), torch.from_numpy(y).reshape(-1)
    depth = model.hidden_size // model.num_attention_heads
    cos, sin = (
        torch.from_numpy(np.concatenate([w, w], axis=2)[:, 0].copy())
        for w in waves(model.rope, depth, x.shape[1], "float32")
    )

    def norm(h: Any, name: str) -> Any:
        return f.rms_norm(h, h.shape[-1:], weights[f"{name}.weight"], model.rms_norm_eps)

    def heads(h: Any, name: str) -> Any:
        found = f.linear(h, weights[f"{name}.weight"])
        return found.view(*h.shape[:2], -1, depth).transpose(1, 2)

    def turned(h: Any) -> Any:
        left, right = h.chunk(2, dim=-1)
        return h * cos + torch.cat([-right, left], dim=-1) * sin

    def layer(h: Any, name: str) -> Any:
        inner = norm(h, f"{name}.input_layernorm")
        q, k, v = (heads(inner, f"{name}.self_attn.{of}_proj") for of in "qkv")
        seen = f.scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=True
        )
        seen = seen.transpose(1, 2).reshape(h.shape)
        h = h + f.linear(seen, weights[f"{name}.self_attn.o_proj.weight"])
        inner = norm(h, f"{name}.post_attention_layernorm")
        gate, up, down = (weights[f"{name}.mlp.{of}_proj.weight"] for of in ("gate", "up", "down"))
        return h + f.linear(f.silu(f.linear(inner, gate)) * f.linear(inner, up), down)

    def step() -> float:
        for weight in weights.values():
            weight.grad = None
        h = f.embedding(tokens, weights["model.embed_tokens.weight"])
        for number in range(model.num_hidden_layers):
            h = layer(h, f"model.layers.{number}")
        logits = f.linear(norm(h, "model.norm"), weights["lm_head.weight"])
        loss = f.cross_entropy(logits.reshape(len(targets), -1), targets)
        loss.backward()
        return loss.item()

    return step


def row(length: int, with_torch: bool) -> tuple[str, str, str, bool]:
    model = Llama(**SIZES, sequence_length=length)
    shape = (TOKENS // length, length + 1)
    text = np.random.default_rng(0).integers(0, model.vocab_size, shape)
    x, y = text[:, :-1].copy(), text[:, 1:].copy()
    steps = {"simdp": simdp_step(model, x, lambda logits: CrossEntropy().value_and_grad(logits, y))}
    if with_torch:
        steps["torch"] = torch_step(model, x, y)
        assert abs(steps["simdp"]() - steps["torch"]()) < 1e-4, "the two compute different losses"
    times: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            begin = process_time()
            step()
            times[name] = min(process_time() - begin, times.get(name, 1e9))
    figure = f"simdp {1e3 * times['simdp']:.0f} ms"
    if not with_torch:
        return f"{length} tokens a sample", figure, "-", True
    speed = times["torch"] / times["simdp"]
    figure += f", torch {1e3 * times['torch']:.0f} ms: {speed:.2f} of its speed"
    return f"{length} tokens a sample", figure, f"{TARGET}", speed >= TARGET


def main() -> int:
    with_torch, version = True, "torch is not installed"
    try:
        import torch
    except ImportError:
        with_torch = False
        complain("llama")
    else:
        version = f"torch {torch.__version__}"
    rows = [row(length, with_torch) for length in LENGTHS]
    return show(f"Llama of {TOKENS} tokens, forward and backward, one thread, {version}", rows)


if __name__ == "__main__":
    raise SystemExit(main())
