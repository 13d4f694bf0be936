"""Encoder layers, and the attention in them: names, defaults, and what is refused."""

from for_each import for_each
from layer_checks import refusal
from pydantic import TypeAdapter

from simdp.workload.layers import LAYERS, AnyModule
from simdp.workload.models import AnyModel


@for_each("kind", ["multihead_attention", "transformer_encoder_layer"])
def test_heads_that_do_not_share_the_width_evenly_are_refused(kind):
    if kind == "multihead_attention":
        keys, names = {"embed_dim": 8, "num_heads": 3}, ("num_heads", "embed_dim")
    else:
        keys, names = {"d_model": 8, "nhead": 3}, ("nhead", "d_model")
    assert refusal(kind=kind, **keys) == [
        f"{names[0]}: 3 heads do not share {names[1]} 8 evenly; choose a divisor of it."
    ]


@for_each(
    ("spelled", "kind"),
    [
        ("TransformerEncoderLayer", "transformer_encoder_layer"),
        ("MultiheadAttention", "multihead_attention"),
        ("LayerNorm", "layer_norm"),
    ],
)
def test_torchs_names_of_layers_are_understood(spelled, kind):
    keys = {
        "layer_norm": {"normalized_shape": 4},
        "multihead_attention": {"embed_dim": 4, "num_heads": 2},
        "transformer_encoder_layer": {"d_model": 4, "nhead": 2},
    }
    made = TypeAdapter(AnyModule).validate_python({"kind": spelled, **keys[kind]})
    assert type(made) is LAYERS[kind]


def test_an_encoder_layer_has_the_defaults_of_torchs():
    layer = TypeAdapter(AnyModule).validate_python(
        {"kind": "transformer_encoder_layer", "d_model": 4, "nhead": 2}
    )
    assert (layer.dim_feedforward, layer.dropout, layer.activation) == (2048, 0.1, "relu")
    assert (layer.layer_norm_eps, layer.norm_first, layer.mask) == (1e-5, False, "none")


def test_encoder_layers_stand_in_a_sequential_model_under_its_names():
    layer = {"kind": "transformer_encoder_layer", "d_model": 4, "nhead": 2, "dim_feedforward": 6}
    chosen = TypeAdapter(AnyModel).validate_python(
        {
            "kind": "sequential",
            "layers": [{"name": "first", **layer}, {"kind": "mean_pool"}],
            "input_shape": [3, 4],
        }
    )
    names = [p.name for p in chosen.parameters()]
    assert names[:2] == ["first.self_attn.in_proj_weight", "first.self_attn.in_proj_bias"]
    assert names[-2:] == ["first.norm2.weight", "first.norm2.bias"]
    assert len(names) == 12
    assert chosen.output_shape() == (4,)
