"""Names and sizes of the models that the probes measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simdp.errors import ScenarioError, unknown_name
from simdp.files import parse_yaml
from simdp.probes.arguments import ProbeError

Settings = dict[str, Any]

MODELS: dict[str, Settings] = {
    "mlp": {"kind": "mlp", "widths": [1024] * 7 + [1000], "activation": "relu", "bias": True},
    "transformer": {
        "kind": "transformer",
        "task": "language_model",
        "vocab_size": 8192,
        "d_model": 256,
        "nhead": 8,
        "num_layers": 4,
        "dim_feedforward": 1024,
        "dropout": 0.1,
        "activation": "relu",
        "norm_first": False,
        "sequence_length": 64,
    },
    "bert-base": {
        "kind": "bert-base",
        "layout": "torch",
        "num_labels": 2,
        "sequence_length": 128,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "resnet50": {"kind": "resnet50", "num_classes": 1000, "image_size": 224},
    "gpt2": {
        "kind": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "sequence_length": 1024,
    },
    "llama-1b": {
        "kind": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "sequence_length": 2048,
    },
}
"""Measured models; every key but ``kind`` and ``task`` may be changed."""

FIXED = ("kind", "task", "layout", "tie_word_embeddings")


class ProbeInputs(NamedTuple):
    """Input of a model."""

    shape: tuple[int, ...]  # of one sample
    num_tokens: int | None  # size of the vocabulary; None for samples of numbers
    num_classes: int  # number of target classes
    per_token: bool  # whether every token has a target, instead of the whole sample


def samples(settings: Settings) -> ProbeInputs:
    """Return a model's input, from its settings."""
    match settings["kind"]:
        case "mlp":
            return ProbeInputs((settings["widths"][0],), None, settings["widths"][-1], False)
        case "transformer" | "gpt2" | "llama":
            vocabulary = settings["vocab_size"]
            return ProbeInputs((settings["sequence_length"],), vocabulary, vocabulary, True)
        case "bert-base":
            return ProbeInputs((settings["sequence_length"],), 30522, settings["num_labels"], False)
        case _:
            side = settings["image_size"]
            return ProbeInputs((3, side, side), None, settings["num_classes"], False)


def chosen(names: Sequence[str], changes: Sequence[str]) -> dict[str, Settings]:
    """Return models by name, with the user's settings.

    ``changes`` are ``model.key=value``, with YAML values.

    Raises
    ------
    ProbeError
        If a name, a key or a value is invalid.
    """
    for name in names:
        if name not in MODELS:
            raise ProbeError(f"--models: {unknown_name('model', name, list(MODELS))}")
    found = {name: dict(MODELS[name]) for name in names}
    for change in changes:
        path, equals, text = change.partition("=")
        name, _, key = path.strip().partition(".")
        if not equals or name not in found:
            raise ProbeError(
                f"--set: {change!r} names none of the models that are measured; write for example "
                f"{next(iter(found))}.{_free(next(iter(found)))[0]}=VALUE."
            )
        if key not in _free(name):
            raise ProbeError(f"--set: {unknown_name(f'key of {name}', key, _free(name))}")
        found[name][key] = _value(change, text, found[name][key])
    return found


def _free(name: str) -> list[str]:
    return [key for key in MODELS[name] if key not in FIXED]


def _value(change: str, text: str, usual: Any) -> Any:
    """Return the value of a change, which must have the type of the default."""
    try:
        value = parse_yaml(text, "--set")
    except ScenarioError as error:
        raise ProbeError(f"--set: {change!r}: {error}") from None
    if isinstance(usual, list):
        fits = isinstance(value, list) and len(value) > 1 and all(map(_is_size, value))
    elif isinstance(usual, float):
        most = max(usual, 1.0)  # of a share, or of a number such as rope_theta
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    elif isinstance(usual, int) and not isinstance(usual, bool):
        fits = _is_size(value)
    else:
        fits = type(value) is type(usual)
    if not fits:
        raise ProbeError(f"--set: {change!r}: the value must be one such as {usual!r}.")
    return value


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def scenario_precision(precision: str) -> Mapping[str, Any] | str:
    """Return a precision's name in scenarios; TF32 is float32 except in arithmetic."""
    kinds = {"bf16": "bfloat16", "fp16": "float16"}
    return {"kind": "amp", "dtype": kinds[precision]} if precision in kinds else "full"
