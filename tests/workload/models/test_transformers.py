"""config.json of transformers: which model it gives, and what of it is refused."""

import json

import numpy as np
import pytest
from for_each import for_each
from layer_checks import finished
from one_batch import play, scenario
from pydantic import TypeAdapter

from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.workload import Workload
from simdp.workload.execution import GraphExecutor
from simdp.workload.layers.base import Pass
from simdp.workload.models import AnyModel
from simdp.workload.transforms import evaluated
from simdp.workload.weights import as_torch

# As huggingface.co has them: openai-community/gpt2, google-bert/bert-base-uncased,
# google/vit-base-patch16-224 with two classes, google-t5/t5-small, meta-llama/Llama-3.1-8B,
# Qwen/Qwen2.5-0.5B, mistralai/Mistral-7B-v0.1, mosaicml/mpt-7b, EleutherAI/pythia-1b.
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
VIT = {
    "architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0,
    "encoder_stride": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {"0": "tench", "1": "goldfish"},
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "label2id": {"tench": 0, "goldfish": 1},
    "layer_norm_eps": 1e-12,
    "model_type": "vit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
}

T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
    "vocab_size": 32128,
}
LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MPT = {
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "d_model": 4096,
    "emb_pdrop": 0,
    "embedding_fraction": 1.0,
    "expansion_ratio": 4,
    "init_config": {"init_std": 0.02, "name": "kaiming_normal_"},
    "init_device": "cpu",
    "learned_pos_emb": True,
    "logit_scale": None,
    "max_seq_len": 2048,
    "model_type": "mpt",
    "n_heads": 32,
    "n_layers": 32,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b",
    "verbose": 0,
    "vocab_size": 50432,
}
PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 16,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}


@pytest.fixture
def config(tmp_path):
    def write(content, **keys):
        (tmp_path / "config.json").write_text(json.dumps(content))
        raw = {"kind": "transformers", "path": "config.json", **keys}
        return TypeAdapter(AnyModel).validate_python(raw).read(tmp_path, 4)

    return write


@pytest.fixture
def refused(config, tmp_path):
    def refused(content, **keys):
        with pytest.raises(ScenarioError) as caught:
            config(content, **keys)
        return str(caught.value).removeprefix(f"{tmp_path / 'config.json'}: ")

    return refused


def without(content, *names):
    return {key: value for key, value in content.items() if key not in names}


# What comes out ----------------------------------------------------------------------------------


@for_each(
    ("content", "kind", "parameters"),
    # The elements that transformers has of the class in the file.
    [
        (GPT2, "gpt2", 124439808),
        (BERT, "bert", 109514298),
        (VIT, "vit", 85800194),
        (T5, "t5", 60506624),
        (LLAMA3, "llama", 8030261248),
        (QWEN2, "qwen2", 494032768),
        (MISTRAL, "mistral", 7241732096),
        (MPT, "mpt", 6649286656),
        (PYTHIA, "gpt_neox", 1011781632),
    ],
)
def test_a_config_gives_its_model(config, content, kind, parameters):
    found = config(content)
    assert found.kind == kind
    assert found.num_parameters() == parameters


def test_what_is_nested_is_taken_in(config):
    found = config(LLAMA3)
    assert (found.rope_scaling.rope_type, found.rope_scaling.factor) == ("llama3", 8.0)
    older = config(LLAMA3 | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert older.rope_scaling.rope_type == "linear"
    assert config(MISTRAL | {"sliding_window": None}).sliding_window is None
    assert not config(MPT | {"attn_config": {"alibi": False}}).attn_config.alibi


# As transformers 5.24 writes them, without keys of generation and of storage.
OF_5 = {
    "gpt_neox": {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 24,
        "is_decoder": False,
        "max_position_embeddings": 32,
        "model_type": "gpt_neox",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "rope_parameters": {
            "partial_rotary_factor": 0.5,
            "rope_theta": 20000.0,
            "rope_type": "default",
        },
        "tie_word_embeddings": False,
        "transformers_version": "5.24.0",
        "vocab_size": 50,
    },
    "mpt": {
        "architectures": ["MptForCausalLM"],
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "model_type": "", "qk_ln": False},
        "d_model": 16,
        "expansion_ratio": 2,
        "max_seq_len": 32,
        "model_type": "mpt",
        "n_heads": 4,
        "n_layers": 2,
        "tie_word_embeddings": True,
        "transformers_version": "5.24.0",
        "vocab_size": 50,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "d_ff": 24,
        "d_kv": 4,
        "d_model": 16,
        "feed_forward_proj": "gated-gelu",
        "model_type": "t5",
        "num_heads": 4,
        "num_layers": 2,
        "scale_decoder_outputs": False,
        "tie_word_embeddings": True,
        "transformers_version": "5.24.0",
        "vocab_size": 50,
    },
}


def logits(model):
    """Of tokens 2, 3, ... 7, 1, 2 without dropout, with the weights of torch.manual_seed(0)."""
    x = np.arange(1, 9)[None] % 7 + 1
    inputs = {"x": x, "tgt": x[:, :5]}
    graph = evaluated(model.graph)
    values = {name: w.astype(float) for name, w in as_torch(model, "float32", 0).items()}
    executor = GraphExecutor(graph, ["float64"] * len(graph.calls), "float64")
    run = Pass(values, samples=np.arange(1))
    (y,), _ = finished(executor.forward(run, [inputs[name] for name in graph.inputs]))
    return y[0, -1, :3].tolist()


@for_each(
    ("kind", "parameters", "wanted"),
    # transformers 5.24: torch.manual_seed(0), the class of the file, .double(); MPT's ALiBi and
    # the norms of T5 stay in float32
    [
        ("gpt_neox", 15152, [0.007411218795890911, 0.1360331280024404, -0.14485140561054521]),
        ("mpt", 7024, [-0.01858186767470229, -0.00928548794639194, 0.3266082510279686]),
        ("t5", 12000, [1.2877744718022177, 4.309670300282637, 4.556756573138804]),
    ],
)
def test_a_config_of_transformers_5_computes_what_it_does(config, kind, parameters, wanted):
    found = config(OF_5[kind])
    assert (found.kind, found.num_parameters()) == (kind, parameters)
    assert logits(found) == pytest.approx(wanted, rel=1e-6)


def test_a_head_that_t5_does_not_scale_is_its_embedding_since_transformers_5(config):
    old = without(OF_5["t5"], "scale_decoder_outputs") | {"tie_word_embeddings": False}
    found = config(old)
    assert (found.tie_word_embeddings, found.scale_decoder_outputs) == (True, False)
    found = config(without(old, "transformers_version"))
    assert (found.tie_word_embeddings, found.scale_decoder_outputs) == (True, False)
    found = config(old | {"transformers_version": "4.45.2"})
    assert (found.tie_word_embeddings, found.scale_decoder_outputs) == (False, None)
    assert found.num_parameters() == 12000 + 50 * 16


def test_a_head_of_its_own_in_a_file_of_weights_is_untied(config, tmp_path):
    model = config(OF_5["t5"])
    values = as_torch(model, "float32", 0)
    head = {"lm_head.weight": values["shared.weight"]}
    np.savez(tmp_path / "tied.npz", **values, **head)
    np.savez(tmp_path / "apart.npz", **values, **{name: w + 1 for name, w in head.items()})
    for name, tied in (("tied", True), ("apart", False), ("missing", True)):
        raw = scenario("ddp", 2, model=model.model_dump(), weights=f"{name}.npz")
        workload = Workload.model_validate(raw["workload"]).settled(tmp_path)
        assert workload.model.tie_word_embeddings is tied
    raw = scenario("ddp", 2, model=model.model_dump(), weights="apart.npz")
    settled = Workload.model_validate(raw["workload"]).settled(tmp_path)
    found = settled.initial_weights(0, 0, tmp_path)
    np.testing.assert_array_equal(found["lm_head.weight"], values["shared.weight"] + 1)


def test_files_of_older_versions_keep_loading(config):
    older = without(OF_5["gpt_neox"], "rope_parameters")
    older |= {"rotary_pct": 0.5, "rotary_emb_base": 20000, "rope_scaling": None}
    assert config(older).rope == config(OF_5["gpt_neox"]).rope
    named = {"embed_out.weight", "gpt_neox.final_layer_norm.bias"}
    pairs = config(older).file_names.pairs(named, ["lm_head.weight"])
    assert ("lm_head.weight", "embed_out.weight") in pairs
    partly = OF_5["gpt_neox"] | {"rope_parameters": {"rope_theta": 20000.0}}
    assert config(partly).rope.partial_rotary_factor == 0.25  # as transformers fills it in
    foundry = config(OF_5["mpt"] | {"architectures": ["MPTForCausalLM"]})
    assert (foundry.expansion_ratio, config(OF_5["mpt"]).expansion_ratio) == (2, 4)
    untied = config(OF_5["mpt"] | {"tie_word_embeddings": False})
    assert untied.num_parameters() == 7024 + 50 * 16


def test_the_architecture_chooses_the_head(config):
    assert config(BERT).head == "masked_lm"
    assert config(BERT).pad_id == 0
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    chosen = config(BERT | labels, architecture="BertForSequenceClassification")
    assert (chosen.head, chosen.num_labels) == ("classification", 3)
    assert config(BERT | labels).num_labels is None
    assert config(without(BERT, "architectures")).head == "classification"
    assert config(BERT | {"architectures": ["BertModel"]}).head == "none"


def test_the_architecture_tells_a_model_without_a_type(config):
    assert config(without(GPT2, "model_type")).kind == "gpt2"


def test_labels_are_counted(config):
    assert config(VIT).num_labels == 2
    assert config(without(VIT, "id2label")).num_labels == 2
    assert config(VIT | {"num_labels": 7}).num_labels == 7


def test_the_length_of_samples_is_the_scenarios(config):
    assert config(GPT2, sequence_length=128).known_shapes() == ((128,),)


def test_keys_that_are_null_are_not_set(config):
    assert config(GPT2 | {"n_inner": None, "layer_norm_epsilon": None}) == config(GPT2)


def test_a_harmless_value_of_an_unknown_key_is_harmless(config):
    assert config(BERT | {"is_decoder": False, "pruned_heads": {}}) == config(BERT)
    assert config(GPT2 | {"quantization_config": None}) == config(GPT2)


def test_a_scenario_learns_with_it(tmp_path):
    small = {"n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 7}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2 | small))
    chosen = {"kind": "transformers", "path": str(path), "sequence_length": 5}
    own = {"kind": "gpt2", **small, "sequence_length": 5}
    told = {"dataset": {"kind": "tokens", "num_samples": 60}}
    found, wanted = (play("ddp", 2, model=model, **told) for model in (chosen, own))
    assert found.metrics["loss"] == wanted.metrics["loss"]
    raw = scenario("ddp", 2, model=chosen, **told)
    assert checked(raw, tmp_path).resolved()["workload"]["model"]["kind"] == "gpt2"


# Refused -----------------------------------------------------------------------------------------


def test_unknown_models_are_named_with_the_nearest(refused):
    line = refused({"model_type": "gpt_2"})
    assert line.startswith("unknown model_type 'gpt_2'. Did you mean 'gpt2'? Known: ")
    line = refused({"architectures": ["BertForMasked"]})
    assert line.startswith("unknown architecture 'BertForMasked'. Did you mean 'BertForMaskedLM'?")
    assert refused({}).startswith("unknown model_type None; known: ")
    assert refused({"model_type": [1], "architectures": [2]}).startswith("unknown model_type [1]")


def test_classes_with_other_heads_are_refused(refused):
    assert refused(BERT | {"architectures": ["BertForPreTraining"]}) == (
        "unknown architecture 'BertForPreTraining'. Did you mean 'BertForMaskedLM'? Known: "
        "BertForMaskedLM, BertForSequenceClassification, BertModel. Choose one by architecture in "
        "the model."
    )


def test_a_model_inside_another_is_to_be_named_alone(refused):
    assert refused({"model_type": "llava", "text_config": GPT2}) == (
        "holds a text_config inside that of 'llava'; write that part into a file of its own, and "
        "name it instead."
    )


@for_each(
    ("content", "said"),
    [
        (
            BERT | {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key', but the model bert supports only "
            "'absolute'; change it, or leave it out.",
        ),
        (
            GPT2 | {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is True, but the model gpt2 supports only False; "
            "change it, or leave it out.",
        ),
        (
            GPT2 | {"quantization_config": {"bits": 4}},
            "quantization_config is {'bits': 4}, which the model gpt2 does not support; remove it "
            "if it does not affect the computation.",
        ),
        (
            GPT2 | {"n_head": 5},
            "n_head: 5 heads do not share n_embd 768 evenly; choose a divisor of it.",
        ),
        (
            OF_5["gpt_neox"] | {"rotary_pct": 0.5},
            "rotary_pct and rope_parameters.partial_rotary_factor are both given; keep one of "
            "them.",
        ),
        (VIT | {"hidden_act": "quick_gelu"}, "hidden_act: "),
        ([GPT2], "is not a config.json; it holds no keys."),
    ],
)
def test_what_changes_the_computation_is_refused(refused, content, said):
    assert refused(content).startswith(said)


def test_lengths_are_for_models_of_text(refused):
    assert refused(VIT, sequence_length=5) == (
        "sequence_length: the model vit has none; leave it out."
    )


def test_a_file_that_is_not_there_is_the_models_problem(tmp_path):
    raw = scenario("ddp", 2, model={"kind": "transformers", "path": "none.json"})
    with pytest.raises(ScenarioError) as caught:
        checked(raw, tmp_path)
    assert str(caught.value) == (
        f"workload.model: {tmp_path / 'none.json'}: there is no such file."
    )
