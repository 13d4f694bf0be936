"""Names and sizes of the models that the probes measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, TypeVar

from simdp.errors import ScenarioError, unknown_name
from simdp.files import parse_yaml
from simdp.probes.arguments import ProbeError


class ProbeInputs(NamedTuple):
    """Input of a model."""

    shape: tuple[int, ...]  # of one sample
    num_tokens: int | None  # size of the vocabulary; None for samples of numbers
    num_classes: int  # number of target classes
    per_token: bool  # whether every token has a target, instead of the whole sample


class NextToken:
    """Settings of a model of a causal language."""

    vocab_size: int
    sequence_length: int

    @property
    def inputs(self) -> ProbeInputs:
        """Tokens, each of which has a next one."""
        return ProbeInputs((self.sequence_length,), self.vocab_size, self.vocab_size, True)


@dataclass(frozen=True)
class MLPSettings:
    """Sizes of an MLP."""

    kind: str = "mlp"
    widths: list[int] = field(default_factory=lambda: [1024] * 7 + [1000])
    activation: str = "relu"
    bias: bool = True

    @property
    def inputs(self) -> ProbeInputs:
        """Samples of numbers."""
        return ProbeInputs((self.widths[0],), None, self.widths[-1], False)


@dataclass(frozen=True)
class TransformerSettings(NextToken):
    """Sizes of a causal language model of torch's encoder layers."""

    kind: str = "transformer"
    task: str = "language_model"
    vocab_size: int = 8192
    d_model: int = 256
    nhead: int = 8
    num_layers: int = 4
    dim_feedforward: int = 1024
    dropout: float = 0.1
    activation: str = "relu"
    norm_first: bool = False
    sequence_length: int = 64


@dataclass(frozen=True)
class BertSettings:
    """Sizes of BERT for classification."""

    kind: str = "bert-base"
    layout: str = "torch"
    num_labels: int = 2
    sequence_length: int = 128
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072

    @property
    def inputs(self) -> ProbeInputs:
        """Tokens, which have one label together."""
        return ProbeInputs((self.sequence_length,), BERT_VOCABULARY, self.num_labels, False)


BERT_VOCABULARY = 30522
"""Of BERT-Base (Devlin et al., NAACL 2019, arXiv 1810.04805)."""


@dataclass(frozen=True)
class ResNetSettings:
    """Sizes of ResNet-50."""

    kind: str = "resnet50"
    num_classes: int = 1000
    image_size: int = 224

    @property
    def inputs(self) -> ProbeInputs:
        """Images of three channels."""
        return ProbeInputs((3, self.image_size, self.image_size), None, self.num_classes, False)


@dataclass(frozen=True)
class GPT2Settings(NextToken):
    """Sizes of GPT-2."""

    kind: str = "gpt2"
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    sequence_length: int = 1024


@dataclass(frozen=True)
class LlamaSettings(NextToken):
    """Sizes of Llama 3.2 1B."""

    kind: str = "llama"
    vocab_size: int = 128256
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = 16
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    sequence_length: int = 2048


Settings = (
    MLPSettings | TransformerSettings | BertSettings | ResNetSettings | GPT2Settings | LlamaSettings
)
"""Sizes of a model under the keys of its scenario."""

MODELS: dict[str, Settings] = {
    "mlp": MLPSettings(),
    "transformer": TransformerSettings(),
    "bert-base": BertSettings(),
    "resnet50": ResNetSettings(),
    "gpt2": GPT2Settings(),
    "llama-1b": LlamaSettings(),
}
"""Measured models; every key but those of `FIXED` may be changed."""

FIXED = ("kind", "task", "layout", "tie_word_embeddings")


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
    models = {name: MODELS[name] for name in names}
    for change in changes:
        path, equals, text = change.partition("=")
        name, _, key = path.strip().partition(".")
        if not equals or name not in models:
            first = next(iter(models))
            raise ProbeError(
                f"--set: {change!r} names none of the models that are measured; write for example "
                f"{first}.{_free(first)[0]}=VALUE."
            )
        if key not in _free(name):
            raise ProbeError(f"--set: {unknown_name(f'key of {name}', key, _free(name))}")
        value = _value(change, text, getattr(models[name], key))
        models[name] = replace(models[name], **{key: value})
    return models


def _free(name: str) -> list[str]:
    return [key.name for key in fields(MODELS[name]) if key.name not in FIXED]


T = TypeVar("T")


def _value(change: str, text: str, usual: T) -> T:
    """Return the value of a change, which must have the type of the default."""
    try:
        value = parse_yaml(text, "--set")
    except ScenarioError as error:
        raise ProbeError(f"--set: {change!r}: {error}") from None
    if isinstance(usual, list):
        fits = isinstance(value, list) and len(value) > 1 and all(map(_is_size, value))
    elif isinstance(usual, float):
        most = max(float(usual), 1.0)  # of a share, or of a number such as rope_theta
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    elif isinstance(usual, int) and not isinstance(usual, bool):
        fits = _is_size(value)
    else:
        fits = type(value) is type(usual)
    if not fits:
        raise ProbeError(f"--set: {change!r}: the value must be one such as {usual!r}.")
    return value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def scenario_precision(precision: str) -> Mapping[str, str] | str:
    """Return a precision's name in scenarios; TF32 is float32 except in arithmetic."""
    kinds = {"bf16": "bfloat16", "fp16": "float16"}
    return {"kind": "amp", "dtype": kinds[precision]} if precision in kinds else "full"
