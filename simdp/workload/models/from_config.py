"""FromConfig: how a config.json of transformers becomes the keys of one of our models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Keys = Mapping[str, Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class FromConfig(NamedTuple):
    """What may stand in a config.json of one model_type, beside our model's own keys.

    Attributes
    ----------
    kind : str
        Our model.
    architectures : mapping of str to mapping
        Classes of transformers that it can be, the usual one first, and the keys that each sets.
    renames : mapping of str to str
        What we call a key otherwise.
    fixed : mapping of str to value
        Keys that we have no counterpart of, and the value with which none is needed; of a list,
        that of all members.
    ignored : frozenset of str
        Keys that change nothing of what training computes.
    adjusted : callable
        Makes our model's keys of a file and of those that were found in it.
    """

    kind: str
    architectures: Mapping[str, Keys]
    renames: Mapping[str, str]
    fixed: Keys
    ignored: frozenset[str]
    adjusted: Callable[[Keys, dict[str, Any]], dict[str, Any]] = lambda config, keys: keys


def _t5(config: Keys, keys: dict[str, Any]) -> dict[str, Any]:
    """Since transformers 5 ``tie_word_embeddings: false`` only drops the scaling of the head.

    Before, it also gave the head a weight of its own, which files of those versions hold.
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
"""Keys of every configuration: of its file, of tokens, of text that is generated, of what is
returned. In which type weights are stored is the scenario's ``precision``."""

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
        # transformers' class is 4 times as wide whatever the file's expansion_ratio
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
"""By model_type; those whose kind is in the table of models can be read."""
