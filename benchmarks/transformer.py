"""How fast a transformer's forward and backward are, beside the same model of torch.nn.

    python -m benchmarks.transformer

Both run on one thread, in float32, in turns; the best of several rounds counts. torch is needed
for this script alone: ``pip install torch --index-url https://download.pytorch.org/whl/cpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.beside_torch import NO_TORCH, complain, simdp_step
from benchmarks.table import show
from simdp.workload.layers.embedding import waves
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.models.transformer import Transformer
from simdp.workload.weights import drawn

TARGET = 0.5
ROUNDS = 12
BATCH, LENGTH = 16, 64
SIZES: dict[str, Any] = {
    "task": "language_model",
    "vocab_size": 1000,
    "d_model": 256,
    "nhead": 4,
    "num_layers": 4,
    "dim_feedforward": 1024,
    "dropout": 0.0,
    "sequence_length": LENGTH,
}
CASES: dict[str, dict[str, Any]] = {
    "post-LN, ReLU": {},
    "pre-LN, GELU": {"norm_first": True, "activation": "gelu"},
    "post-LN, ReLU, dropout 0.1": {"dropout": 0.1},
    "post-LN, ReLU, 512 tokens a sample": {"sequence_length": 512},
}


def torch_step(model: Transformer, x: Any, y: Any) -> Callable[[], float]:
    """The same in torch, with the same weights."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    embedding = nn.Embedding(model.vocab_size, model.d_model)
    layer = nn.TransformerEncoderLayer(
        model.d_model,
        model.nhead,
        model.dim_feedforward,
        model.dropout,
        model.activation,
        batch_first=True,
        norm_first=model.norm_first,
    )
    norm = nn.LayerNorm(model.d_model) if model.norm_first else None
    encoder = nn.TransformerEncoder(layer, model.num_layers, norm, enable_nested_tensor=False)
    fc = nn.Linear(model.d_model, model.vocab_size)
    whole = nn.ModuleDict({"embedding": embedding, "encoder": encoder, "fc": fc})
    weights = drawn(model, model.graph, "float32", 0, 0)
    whole.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()})
    tokens, targets = torch.from_numpy(x), torch.from_numpy(y).reshape(-1)
    place = torch.from_numpy(waves(x.shape[1], model.d_model, "float32").copy())
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])

    def step() -> float:
        whole.zero_grad(set_to_none=True)
        h = nn.functional.dropout(embedding(tokens) * sqrt(model.d_model) + place, model.dropout)
        logits = fc(encoder(h, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.reshape(len(targets), -1), targets)
        loss.backward()
        return loss.item()

    return step


def compare(options: dict[str, Any]) -> tuple[float, float]:
    """Least time of forward and backward in simdp and in torch [s]."""
    model = Transformer(**(SIZES | options))
    length = model.sequence_length or LENGTH
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (BATCH, length + 1))
    x, y = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    ours = simdp_step(model, x, lambda logits: CrossEntropy().value_and_grad(logits, y))
    theirs = torch_step(model, x, y)
    if not model.dropout:
        assert abs(ours() - theirs()) < 1e-4, "the two compute different losses"
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for step, found in zip((ours, theirs), times, strict=True):
            begin = perf_counter()
            step()
            found.append(perf_counter() - begin)
    return min(times[0]), min(times[1])


def main() -> int:
    try:
        import torch
    except ImportError:
        complain("transformer")
        return NO_TORCH
    rows = []
    for name, options in CASES.items():
        ours, theirs = compare(options)
        figure = (
            f"{1e3 * ours:.0f} ms, torch {1e3 * theirs:.0f} ms: {theirs / ours:.2f} of its speed"
        )
        rows.append((name, figure, f"{TARGET}", theirs / ours >= TARGET))
    title = f"transformer, forward and backward, one thread, torch {torch.__version__}"
    return show(title, rows)


if __name__ == "__main__":
    raise SystemExit(main())
