"""Every model: its graph runs, its tensors and orders hold together, and presets stand for it."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import buffers_of, finished, weights_of
from pydantic import TypeAdapter

from simdp.workload.execution import GraphExecutor
from simdp.workload.layers.base import Pass
from simdp.workload.models import MODELS, PRESETS, AnyModel

EXAMPLES = {
    "bert": {
        "vocab_size": 7,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "max_position_embeddings": 8,
        "num_labels": 3,
        "sequence_length": 5,
    },
    "einsum": {"equation": "bd,df->bf", "d": 4, "f": 3},
    "gpt2": {
        "vocab_size": 7,
        "n_positions": 8,
        "n_embd": 4,
        "n_layer": 2,
        "n_head": 2,
        "sequence_length": 5,
    },
    "gpt_neox": {
        "vocab_size": 7,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "max_position_embeddings": 8,
        "sequence_length": 5,
    },
    "inception": {"width_multiplier": 1 / 64, "num_classes": 3},
    "llama": {
        "vocab_size": 7,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8,
        "sequence_length": 5,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "mistral": {
        "vocab_size": 7,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8,
        "sequence_length": 5,
        "sliding_window": 3,
    },
    "mask_rcnn_fpn": {
        "layers": [1, 1, 1, 1],
        "base_channels": 4,
        "fpn_channels": 4,
        "image_height": 64,
        "image_width": 32,
        "num_classes": 3,
        "box_rois": 5,
        "mask_rois": 3,
        "representation": 6,
    },
    "mlp": {"widths": [4, 5, 3], "activation": "tanh"},
    "mpt": {
        "vocab_size": 7,
        "d_model": 4,
        "n_heads": 2,
        "n_layers": 2,
        "max_seq_len": 8,
        "sequence_length": 5,
    },
    "qwen2": {
        "vocab_size": 7,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8,
        "sequence_length": 5,
        "tie_word_embeddings": True,
    },
    "resnet": {"layers": [1, 1], "width_multiplier": 1 / 16, "num_classes": 3, "image_size": 16},
    "retinanet_fpn": {
        "layers": [1, 1, 1, 1],
        "base_channels": 4,
        "fpn_channels": 4,
        "image_height": 64,
        "image_width": 32,
        "num_classes": 3,
        "num_anchors": 2,
    },
    "sequential": {
        "layers": [
            {"kind": "linear", "in_features": 4, "out_features": 5},
            "relu",
            {"name": "last", "kind": "linear", "in_features": 5, "out_features": 3},
        ],
        "input_shape": [4],
    },
    "ssd_resnet": {"layers": [1, 1, 1], "width_multiplier": 1 / 64, "num_classes": 3},
    "t5": {
        "vocab_size": 7,
        "d_model": 4,
        "d_kv": 2,
        "d_ff": 6,
        "num_layers": 1,
        "num_heads": 2,
        "sequence_length": 5,
        "tgt_sequence_length": 4,
    },
    "transformer": {
        "task": "seq2seq",
        "vocab_size": 7,
        "tgt_vocab_size": 6,
        "d_model": 4,
        "nhead": 2,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "dim_feedforward": 6,
        "sequence_length": 5,
        "tgt_sequence_length": 4,
    },
    "unet": {"filters": [2, 3], "num_classes": 2, "patch_size": 8},
    "vgg": {"layers": [1, 1], "width_multiplier": 1 / 64, "num_classes": 3, "image_size": 8},
    "vit": {
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "image_size": 4,
        "patch_size": 2,
        "num_labels": 3,
    },
    "yolo": {"layers": [1, 1, 1], "width_multiplier": 1 / 32, "num_classes": 1, "image_size": 16},
}

WITHOUT_NUMBERS = [
    kind for kind, member in MODELS.items() if member.timed or kind in ("operators", "transformers")
]

every_model = pytest.mark.parametrize("kind", EXAMPLES)


def model(kind, **options):
    return TypeAdapter(AnyModel).validate_python({"kind": kind, **options})


def inputs_of(chosen, batch):
    """Random samples; whole numbers where the model takes tokens."""
    random = np.random.default_rng(0)
    found = []
    for name, shape in zip(chosen.graph.inputs, chosen.known_shapes(), strict=True):
        tokens = chosen.num_tokens(name)
        shape = (batch, *shape)
        found.append(random.integers(tokens, size=shape) if tokens else random.random(shape))
    return found


def run_of(chosen):
    buffers = {}
    for layer in chosen.graph.registered:
        buffers |= buffers_of(layer)
    return Pass(weights_of(chosen.graph), buffers=buffers, samples=np.arange(6))


def test_every_kind_of_model_has_an_example_here():
    assert sorted([*EXAMPLES, *WITHOUT_NUMBERS]) == sorted(MODELS)


@every_model
def test_forward_leads_from_the_input_shapes_to_the_output_shape(kind):
    chosen = model(kind, **EXAMPLES[kind])
    executor = GraphExecutor(chosen.graph, ["float64"] * len(chosen.graph.calls), "float64")
    outputs, _ = finished(executor.forward(run_of(chosen), inputs_of(chosen, 6)))
    assert outputs[0].shape == (6, *chosen.output_shape())


@every_model
def test_backward_finds_a_gradient_of_every_parameter_that_becomes_ready(kind):
    chosen = model(kind, **EXAMPLES[kind])
    executor = GraphExecutor(chosen.graph, ["float64"] * len(chosen.graph.calls), "float64")
    run = run_of(chosen)
    outputs, kept = finished(executor.forward(run, inputs_of(chosen, 6)))
    finished(executor.backward(run, kept, [np.ones_like(output) for output in outputs]))
    shapes = {p.name: p.shape for p in chosen.parameters()}
    assert {name: g.shape for name, g in run.gradients.items()} == {
        name: shapes[name] for name in chosen.ready_order()
    }


@every_model
def test_every_parameter_is_used_and_becomes_ready_once(kind):
    chosen = model(kind, **EXAMPLES[kind])
    assert sorted(chosen.ready_order()) == sorted(p.name for p in chosen.parameters())
    assert chosen.graph.unused == ()


@every_model
def test_elements_are_counted(kind):
    chosen = model(kind, **EXAMPLES[kind])
    assert chosen.num_parameters() == sum(int(np.prod(p.shape)) for p in chosen.parameters())


@every_model
def test_a_model_is_written_as_it_is_read(kind):
    chosen = model(kind, **EXAMPLES[kind])
    written = chosen.model_dump(mode="json", exclude_none=True)
    assert TypeAdapter(AnyModel).validate_python(written) == chosen


# Presets -----------------------------------------------------------------------------------------


@for_each("name", PRESETS)
def test_a_preset_is_a_model_of_its_kind_and_says_where_it_comes_from(name):
    entry = PRESETS.read(name)
    assert entry["source"]
    chosen = model(name)
    assert chosen.kind == entry["kind"]
    for key, value in PRESETS[name].items():
        assert said(chosen.model_dump(mode="json")[key], value) == value, key


def said(written, given):
    """Of what is written, the keys that were given."""
    return {key: written[key] for key in given} if isinstance(given, dict) else written


CONVOLUTIONAL = {
    *("inception", "mask_rcnn_fpn", "resnet", "retinanet_fpn", "ssd_resnet", "unet", "vgg", "yolo"),
}


def test_a_preset_belongs_to_a_family_by_its_layers():
    for name in PRESETS.names():
        model = TypeAdapter(AnyModel).validate_python(name)
        expected = "convolutional" if model.kind in CONVOLUTIONAL else "attention"
        assert model.graph.family == expected, name


def test_a_family_is_that_of_the_strongest_layer():
    def family(*layers):
        listed = [{"name": f"l{i}", **layer} for i, layer in enumerate(layers)]
        model = {"kind": "sequential", "layers": listed, "input_shape": [4, 8]}
        return TypeAdapter(AnyModel).validate_python(model).graph.family

    linear = {"kind": "linear", "in_features": 8, "out_features": 8}
    lstm = {"kind": "lstm", "input_size": 8, "hidden_size": 8}
    assert family(linear) == "dense"
    assert family(linear, lstm) == "recurrent"
    timed = {"kind": "parameters", "num_params": 8}
    assert TypeAdapter(AnyModel).validate_python(timed).graph.family == "unknown"
