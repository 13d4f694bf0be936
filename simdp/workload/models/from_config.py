"""Models from a config.json of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from pydantic import Field, TypeAdapter, ValidationError

from simdp.errors import ScenarioError, shown, unknown_name
from simdp.files import read_json
from simdp.spec import Int, problems
from simdp.workload.layers.base import ModelGraph, Shape
from simdp.workload.models.base import Model

Keys = Mapping[str, object]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class FromConfig(NamedTuple):
    """Keys of a config.json of one model_type besides our model's own keys."""

    kind: str
    """Our model."""
    architectures: Mapping[str, Keys]
    """Possible classes of transformers, the usual one first, and the keys that each sets."""
    renames: Mapping[str, str]
    """Our names of keys."""
    fixed: Keys
    """Keys without counterpart, and the value at which none is needed; for a list, the value of all
    members."""
    ignored: frozenset[str]
    """Keys without effect on training."""
    adjusted: Callable[[Keys, Mapping[str, object]], Mapping[str, object]] = lambda config, keys: (
        keys
    )
    """Converts a file and the keys found in it to our model's keys."""


def _t5(config: Keys, keys: Mapping[str, object]) -> Mapping[str, object]:
    """Treat ``tie_word_embeddings: false`` by version: since 5 it only drops the head's scaling.

    In earlier versions it also gave the head a weight of its own.
    """
    version = str(config.get("transformers_version", ""))
    if keys.get("tie_word_embeddings", True) or version[:2] in ("2.", "3.", "4."):
        return keys
    return {"scale_decoder_outputs": False, **keys, "tie_word_embeddings": True}


ALWAYS_IGNORED = _words(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation
    auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cls_token_id
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label is_encoder_decoder
    label2id length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_attentions output_hidden_states output_past
    output_scores pad_token_id prefix problem_type remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params
    temperature tf_legacy_loss tokenizer_class tokenizer_name top_k top_p torch_dtype torchscript
    transformers_version typical_p unk_token_id use_bfloat16 use_cache
    """
)
"""Keys of every configuration: of its file, tokens, text generation and return values. The dtype
of weights is the scenario's ``precision``."""

ALWAYS_FIXED: Keys = {
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}

LIKE_LLAMA = _words("attention_impl rope_interleaved")

FROM_CONFIG: dict[str, FromConfig] = {
    "bert": FromConfig(
        "bert",
        {
            "BertForSequenceClassification": {"head": "classification"},
            "BertForMaskedLM": {"head": "masked_lm"},
            "BertModel": {"head": "none"},
        },
        {"pad_token_id": "pad_id"},
        {
            "classifier_dropout": None,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
        },
        _words(
            "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
            "pooler_size_per_head pooler_type"
        ),
    ),
    "gpt2": FromConfig(
        "gpt2",
        {"GPT2LMHeadModel": {}},
        {},
        {
            "scale_attn_by_inverse_layer_idx": False,
            "scale_attn_weights": True,
            "tie_word_embeddings": True,
        },
        _words(
            "n_ctx reorder_and_upcast_attn summary_activation summary_first_dropout "
            "summary_proj_to_labels summary_type summary_use_proj"
        ),
    ),
    "gpt_neox": FromConfig(
        "gpt_neox",
        {"GPTNeoXForCausalLM": {}},
        {"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        {"rope_scaling": None},
        _words("classifier_dropout"),
    ),
    "llama": FromConfig("llama", {"LlamaForCausalLM": {}}, {}, {"pretraining_tp": 1}, LIKE_LLAMA),
    "mistral": FromConfig("mistral", {"MistralForCausalLM": {}}, {}, {}, LIKE_LLAMA),
    "mpt": FromConfig(
        "mpt",
        # transformers' class ignores the file's expansion_ratio and uses 4
        {"MptForCausalLM": {"expansion_ratio": 4}, "MPTForCausalLM": {}},
        {},
        {
            "attn_type": "multihead_attention",
            "attn_uses_sequence_id": False,
            "clip_qkv": None,
            "embedding_fraction": 1.0,
            "logit_scale": None,
            "no_bias": True,
            "prefix_lm": False,
            "qk_ln": False,
            "softmax_scale": None,
        },
        _words("attn_impl init_config init_device learned_pos_emb norm_type verbose"),
    ),
    "qwen2": FromConfig(
        "qwen2",
        {"Qwen2ForCausalLM": {}},
        {},
        {"layer_types": "full_attention", "use_mrope": False, "use_sliding_window": False},
        LIKE_LLAMA | _words("max_window_layers sliding_window"),
    ),
    "t5": FromConfig(
        "t5",
        {"T5ForConditionalGeneration": {}, "T5WithLMHeadModel": {}},
        {"pad_token_id": "pad_id"},
        {},
        _words("classifier_dropout dense_act_fn is_gated_act n_positions"),
        _t5,
    ),
    "vit": FromConfig(
        "vit",
        {"ViTForImageClassification": {}},
        {},
        {},
        _words("encoder_stride pooler_act pooler_output_size"),
    ),
}
"""Entries by model_type."""


OWN = ("sequence_length", "tgt_sequence_length")
"""Keys that are passed on to the model."""


class Transformers(Model):
    """``{kind: transformers, path: config.json}``: the model that such a file describes.

    It is replaced by that model when the scenario is read. A key of the file that affects the
    computation and that the model lacks is an error.
    """

    kind: Literal["transformers"] = "transformers"
    path: str
    """The file or its folder, relative to the scenario's."""
    architecture: str | None = None
    """Class of transformers, such as BertForSequenceClassification; by default the first one of the
    file's ``architectures``."""
    sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Tokens of a sample, if the model takes text."""
    tgt_sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Tokens of a sample, if the model takes text."""

    @property
    def unread(self) -> bool:
        return True

    def read(self, base: Path, itemsize: int) -> Model:
        path = base / self.path
        path = path / "config.json" if path.is_dir() else path
        config = read_json(path)
        if not isinstance(config, dict):
            raise _refusal(path, "is not a config.json; it holds no keys.")
        entry, architecture = self._entry(path, config)
        from simdp.workload.models import MODELS  # imports this module

        member = MODELS[entry.kind]
        keys = _keys(path, config, entry, member) | dict(entry.architectures[architecture])
        keys = dict(entry.adjusted(config, keys))
        labels = config.get("id2label")
        classifies = keys.get("head", "classification") == "classification"
        if classifies and isinstance(labels, dict) and "num_labels" in member.model_fields:
            keys.setdefault("num_labels", len(labels))
        for key in OWN:
            if getattr(self, key) is not None:
                if key not in member.model_fields:
                    raise _refusal(path, f"{key}: the model {entry.kind} has none; leave it out.")
                keys[key] = getattr(self, key)
        raw = {"kind": entry.kind, **keys}
        try:
            made: Model = TypeAdapter(member).validate_python(raw)
        except ValidationError as error:
            raise ScenarioError(
                [f"{path}: {wrong.line}" for wrong in problems(error, raw)]
            ) from None
        return made

    def _entry(self, path: Path, config: Mapping[str, object]) -> tuple[FromConfig, str]:
        """Entry of the file's model, and its class."""
        from simdp.workload.models import MODELS

        known = {name: entry for name, entry in FROM_CONFIG.items() if entry.kind in MODELS}
        listed = config.get("architectures") or []
        first = str(listed[0]) if isinstance(listed, list) and listed else None
        wanted = self.architecture or first
        model_type = config.get("model_type")
        if model_type is None and wanted is not None:
            of = [name for name, entry in known.items() if wanted in entry.architectures]
            if not of:
                classes = [name for entry in known.values() for name in entry.architectures]
                raise _refusal(path, _unknown("architecture", wanted, classes))
            model_type = of[0]
        is_known = isinstance(model_type, str) and model_type in known
        if "text_config" in config and not is_known:
            raise _refusal(
                path,
                f"holds a text_config inside that of {shown(model_type)}; write that part into a "
                "file of its own, and name it instead.",
            )
        if not is_known:
            raise _refusal(path, _unknown("model_type", model_type, known))
        entry = known[str(model_type)]
        if wanted is None:
            wanted = next(iter(entry.architectures))
        if wanted not in entry.architectures:
            wrong = _unknown("architecture", wanted, entry.architectures)
            raise _refusal(path, f"{wrong} Choose one by architecture in the model.")
        return entry, wanted

    def build(self) -> ModelGraph:
        raise AssertionError("the model of the file takes this one's place")

    def input_shapes(self) -> dict[str, Shape | None]:
        return {}


def _keys(
    path: Path, config: Mapping[str, object], entry: FromConfig, member: type[Model]
) -> dict[str, object]:
    """The model's keys; raises if other keys affect the computation."""
    keys = {}
    for key, value in config.items():
        own = entry.renames.get(key, key)
        if own in member.model_fields and own not in entry.ignored:
            field = member.model_fields[own]
            if value is not None or type(None) in get_args(field.annotation):
                keys[own] = _nested(path, key, value, entry, field.annotation)
        else:
            _refuse_what_matters(path, key, value, entry)
    return keys


def _nested(path: Path, key: str, value: object, entry: FromConfig, annotation: object) -> object:
    """A value that may have keys itself, without those that have no effect."""
    if not isinstance(value, dict):
        return value
    if "type" in value and "rope_type" not in value and key.startswith("rope"):
        value = {
            ("rope_type" if name == "type" else name): member for name, member in value.items()
        }
    fields = getattr(annotation, "model_fields", None)
    if fields is None:
        return value
    kept = {}
    for name, member in value.items():
        if name in fields:
            kept[name] = member
        else:
            _refuse_what_matters(path, f"{key}.{name}", member, entry)
    return kept


def _refuse_what_matters(path: Path, key: str, value: object, entry: FromConfig) -> None:
    """Raise if a key that the model lacks may affect the computation."""
    name = key.split(".")[-1]
    fixed = {**ALWAYS_FIXED, **entry.fixed}
    if name in ALWAYS_IGNORED or name in entry.ignored:
        return
    if name in fixed:
        members = value if isinstance(value, list) else [value]
        if any(member not in (None, fixed[name]) for member in members):
            raise _refusal(
                path,
                f"{key} is {shown(value)}, but the model {entry.kind} supports only "
                f"{shown(fixed[name])}; change it, or leave it out.",
            )
    elif value is not None:
        raise _refusal(
            path,
            f"{key} is {shown(value)}, which the model {entry.kind} does not support; remove it "
            "if it does not affect the computation.",
        )


def _unknown(what: str, given: object, known: Iterable[str]) -> str:
    names = sorted(known)
    return unknown_name(what, given, names, get_close_matches(str(given), names, n=1, cutoff=0.4))


def _refusal(path: Path, line: str) -> ScenarioError:
    return ScenarioError([f"{path}: {line}"])
