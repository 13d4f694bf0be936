"""First weights: drawn by name, or from a checkpoint that must be the model's."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from pydantic import TypeAdapter
from safetensors_files import safetensors

from simdp.rng import TorchGenerator
from simdp.workload import weights
from simdp.workload.layers.base import trunc_normal
from simdp.workload.models import AnyModel

BATCH_NORM_NET = TypeAdapter(AnyModel).validate_python(
    {
        "kind": "sequential",
        "layers": [
            {"name": "l", "kind": "linear", "in_features": 4, "out_features": 3},
            {"name": "bn", "kind": "batch_norm1d", "num_features": 3},
        ],
        "input_shape": [4],
    }
)
GRAPH = BATCH_NORM_NET.graph
PARAMETERS = {p.name: np.full(p.shape, 0.5) for p in GRAPH.parameters}
BUFFERS = {
    "bn.running_mean": np.full(3, 2.0),
    "bn.running_var": np.full(3, 3.0),
    "bn.num_batches_tracked": np.array(7),
}


def draw(seed=0, rank=0, dtype="float64"):
    return weights.drawn(BATCH_NORM_NET, GRAPH, dtype, seed, rank)


@pytest.fixture
def store(tmp_path):
    def store(arrays):
        np.savez(tmp_path / "w.npz", **arrays)
        return tmp_path / "w.npz"

    return store


# Drawn -------------------------------------------------------------------------------------------


@for_each("dtype", ["float32", "float64"])
def test_parameters_are_drawn_and_buffers_begin_as_torchs(dtype):
    found = draw(dtype=dtype)
    assert set(found) == {*PARAMETERS, *BUFFERS}
    np.testing.assert_array_equal(found["bn.weight"], 1)
    np.testing.assert_array_equal(found["bn.bias"], 0)
    np.testing.assert_array_equal(found["bn.running_mean"], 0)
    np.testing.assert_array_equal(found["bn.running_var"], 1)
    assert found["bn.num_batches_tracked"] == 0
    assert 0 < abs(found["l.weight"]).max() <= 0.5
    counter = found.pop("bn.num_batches_tracked")
    assert (counter.dtype, counter.shape) == (np.int64, ())
    assert {array.dtype for array in found.values()} == {np.dtype(dtype)}


def test_ranks_draw_as_after_seeds_that_follow_each_other():
    assert not np.array_equal(draw()["l.weight"], draw(seed=1)["l.weight"])
    assert not np.array_equal(draw()["l.weight"], draw(rank=1)["l.weight"])
    np.testing.assert_array_equal(draw(seed=2, rank=1)["l.weight"], draw(seed=3)["l.weight"])


FIRST = json.loads((Path(__file__).parents[1] / "golden" / "g21_first_weights.json").read_text())


@for_each("name", FIRST["models"])
def test_first_weights_are_torchs_to_the_last_bit(name):
    model = TypeAdapter(AnyModel).validate_python(FIRST["models"][name])
    found = weights.drawn(model, model.graph, "float32", 0, 0)
    arrays = [found[parameter.name].astype("<f4") for parameter in model.graph.parameters]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    assert digest[:16] == FIRST["sha256"][name]


def test_layers_of_an_encoder_start_equal_and_those_of_a_list_do_not():
    stack = TypeAdapter(AnyModel).validate_python(FIRST["models"]["language_model"])
    found = weights.as_torch(stack, "float32", 0)
    first, last = (found[f"encoder.layers.{n}.linear1.weight"] for n in (0, 2))
    np.testing.assert_array_equal(first, last)
    assert first is not last
    keys = {"kind": "transformer_encoder_layer", "d_model": 8, "nhead": 2}
    listed = {"kind": "sequential", "layers": [keys, keys], "input_shape": [5, 8]}
    found = weights.as_torch(TypeAdapter(AnyModel).validate_python(listed), "float32", 0)
    assert not np.array_equal(found["0.linear1.weight"], found["1.linear1.weight"])


def test_a_truncated_normal_draws_again_what_lies_beyond():
    # torch 2.14: nn.init.trunc_normal_(torch.empty(20), std=1.0, a=-1.0, b=1.0), manual_seed(0)
    found = trunc_normal(1.0, 1.0).draw_as_torch(TorchGenerator(0), (20,), "float32")
    assert abs(found).max() <= 1
    np.testing.assert_array_equal(
        found[[0, 1, 19]],
        np.float32([0.4396958351135254, 0.11241118609905243, 0.05373690277338028]),
    )


# Loaded ------------------------------------------------------------------------------------------


@for_each("dtype", ["float32", "float64"])
def test_a_checkpoint_gives_parameters_and_buffers(store, dtype):
    path = store(PARAMETERS | BUFFERS)
    assert weights.problem_with(path, GRAPH) is None
    found = weights.loaded(path, GRAPH, dtype)
    for name, array in (PARAMETERS | BUFFERS).items():
        np.testing.assert_array_equal(found[name], array)
        wanted = "int64" if name == "bn.num_batches_tracked" else dtype
        assert found[name].dtype == wanted, name


def test_buffers_that_a_checkpoint_lacks_begin_afresh(store):
    path = store(PARAMETERS | {"bn.running_mean": BUFFERS["bn.running_mean"]})
    assert weights.problem_with(path, GRAPH) is None
    found = weights.loaded(path, GRAPH, "float64")
    np.testing.assert_array_equal(found["bn.running_mean"], 2)
    np.testing.assert_array_equal(found["bn.running_var"], 1)
    assert found["bn.num_batches_tracked"] == 0


def test_whole_numbers_may_stand_for_real_ones(store):
    whole = {name: np.ones(array.shape, dtype=np.int32) for name, array in PARAMETERS.items()}
    assert weights.problem_with(store(whole), GRAPH) is None


def without(name):
    return {key: array for key, array in PARAMETERS.items() if key != name}


@for_each(
    ("arrays", "said"),
    [
        (without("l.bias"), "has no 'l.bias' of shape (3,)"),
        (PARAMETERS | {"fc.bias": np.ones(3)}, "has 'fc.bias', which the model lacks"),
        (
            PARAMETERS | {"l.weight": np.ones((4, 3))},
            "has 'l.weight' of shape (4, 3), the model needs (3, 4)",
        ),
        (
            PARAMETERS | {"bn.running_var": np.ones(4)},
            "has 'bn.running_var' of shape (4,), the model needs (3,)",
        ),
        (
            PARAMETERS | {"l.bias": np.array([1.0, np.nan, 1.0])},
            "has 'l.bias' of float64 that is not all finite numbers",
        ),
        (
            PARAMETERS | {"l.bias": np.array(["a", "b", "c"])},
            "has 'l.bias' of <U1 that is not all finite numbers",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(store, arrays, said):
    path = store(arrays)
    assert weights.problem_with(path, GRAPH) == f"{path}: {said}."


def test_only_the_first_differences_are_told(store):
    path = store({"fc.weight": np.ones(3), "fc.bias": np.ones(3)})
    assert weights.problem_with(path, GRAPH) == (
        f"{path}: has 'fc.bias', which the model lacks; has 'fc.weight', which the model lacks; "
        "has no 'bn.bias' of shape (3,) (and 3 more)."
    )


# safetensors, and names as transformers takes them ------------------------------------------------

TINY = {
    "gpt2": {"vocab_size": 7, "n_positions": 8, "n_embd": 4, "n_layer": 2, "n_head": 2},
    "bert": {
        "vocab_size": 7,
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "max_position_embeddings": 8,
    },
    "llama": {
        "vocab_size": 7,
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
    "t5": {
        "vocab_size": 7,
        "d_model": 4,
        "d_kv": 2,
        "d_ff": 6,
        "num_layers": 1,
        "num_heads": 2,
    },
    "vit": {
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "image_size": 4,
        "patch_size": 2,
    },
}


def tiny(kind, **keys):
    return TypeAdapter(AnyModel).validate_python({"kind": kind, **TINY[kind], **keys})


def own(chosen):
    """Numbers for each parameter that tell it from the others."""
    return {
        p.name: np.arange(p.num_elements, dtype=np.float32).reshape(p.shape) + number
        for number, p in enumerate(chosen.parameters())
    }


def assert_loads(path, chosen, arrays):
    assert weights.problem_with(path, chosen.graph, chosen.file_names) is None
    found = weights.loaded(path, chosen.graph, "float64", chosen.file_names)
    for name, array in arrays.items():
        assert found[name].dtype == np.float64
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def said(path, chosen):
    return weights.problem_with(path, chosen.graph, chosen.file_names).removeprefix(f"{path}: ")


@pytest.fixture
def tensors(tmp_path):
    def store(arrays, **more):
        return safetensors(tmp_path / "model.safetensors", arrays, **more)

    return store


@for_each("kind", TINY)
def test_a_safetensors_file_gives_parameters(kind, tensors):
    chosen = tiny(kind)
    assert_loads(tensors(own(chosen)), chosen, own(chosen))


def test_what_is_loaded_is_no_view_of_the_file(tensors):
    chosen = tiny("gpt2")
    path = tensors(own(chosen))
    for array in weights.loaded(path, chosen.graph, "float32", chosen.file_names).values():
        assert type(array) is np.ndarray
        assert array.flags.writeable


def test_bfloat16_weights_load(tensors):
    chosen = tiny("gpt2")
    small = {name: array % 8 for name, array in own(chosen).items()}
    assert_loads(tensors(small, bf16=list(small)), chosen, small)


def test_a_file_of_gpt2_without_its_head_has_no_prefix(tensors):
    chosen = tiny("gpt2")
    bare = {name.removeprefix("transformer."): array for name, array in own(chosen).items()}
    masks = {f"h.{n}.attn.bias": np.ones((1, 1, 8, 8), dtype=np.float32) for n in (0, 1)}
    assert_loads(tensors(bare | masks), chosen, own(chosen))


def test_a_shared_weight_may_be_there_twice_or_once(tensors):
    chosen = tiny("gpt2")
    arrays = own(chosen)
    twice = arrays | {"lm_head.weight": arrays["transformer.wte.weight"]}
    assert_loads(tensors(twice), chosen, arrays)


def test_an_embedding_may_be_there_by_the_names_of_all_who_share_it(tensors):
    chosen = tiny("t5")
    arrays = own(chosen)
    shared = arrays["shared.weight"]
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    assert_loads(tensors(arrays | dict.fromkeys(names, shared)), chosen, arrays)


def test_llamas_head_may_be_left_out_where_it_is_the_embedding(tensors):
    tied, loose = tiny("llama", tie_word_embeddings=True), tiny("llama")
    turns = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1, dtype=np.float32)}
    assert_loads(tensors(own(tied) | turns), tied, own(tied))
    assert_loads(tensors(own(loose)), tied, own(tied))
    assert said(tensors(own(tied)), loose) == "has no 'lm_head.weight' of shape (7, 4)."


def test_a_model_without_a_head_takes_its_part_of_a_file_with_one(tensors):
    whole, part = tiny("bert"), tiny("bert", head="none")
    wanted = {name: own(whole)[f"bert.{name}"] for name in own(part)}
    assert_loads(tensors(own(whole)), part, wanted)


def test_names_of_older_versions_are_understood(tensors):
    chosen = tiny("vit")
    old = {
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    arrays = {}
    for name, array in own(chosen).items():
        for new, before in old.items():
            name = name.replace(f".{new}.", f".{before}.")
        arrays[name.replace("vit.layers.", "vit.encoder.layer.")] = array
    assert "vit.encoder.layer.0.attention.attention.query.weight" in arrays
    assert_loads(tensors(arrays), chosen, own(chosen))
    bert = tiny("bert")
    renamed = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): array
        for name, array in own(bert).items()
    }
    assert_loads(tensors(renamed), bert, own(bert))


def test_differences_are_told_by_the_names_of_the_file(tensors):
    chosen = tiny("gpt2")
    arrays = {name.removeprefix("transformer."): array for name, array in own(chosen).items()}
    del arrays["ln_f.bias"]
    arrays["wte.weight"] = arrays["wte.weight"][:5]
    arrays["score.weight"] = np.ones((2, 4), dtype=np.float32)
    assert said(tensors(arrays), chosen) == (
        "has 'score.weight', which the model lacks; "
        "has 'wte.weight' of shape (5, 4), the model needs (7, 4); "
        "has no 'transformer.ln_f.bias' of shape (4,)."
    )


def test_a_tensor_that_is_there_by_two_names_is_refused(tensors):
    chosen = tiny("bert")
    arrays = own(chosen)
    arrays["bert.embeddings.LayerNorm.gamma"] = np.ones(4, dtype=np.float32)
    assert said(tensors(arrays), chosen) == (
        "has 'bert.embeddings.LayerNorm.weight' and 'bert.embeddings.LayerNorm.gamma', "
        "which are one tensor of the model."
    )
