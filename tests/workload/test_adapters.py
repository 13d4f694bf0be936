"""LoRA: names, shapes and starts as PEFT's, the merged model's numbers, and what is refused."""

from pathlib import Path

import numpy as np
from for_each import for_each
from one_batch import play

from simdp.workload import Workload
from simdp.workload.finetuning import Lora

LORA = {"rank": 2, "alpha": 6, "targets": ["layers.1", "2"]}
GPT = {
    "kind": "gpt2",
    "vocab_size": 13,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 8,
    "sequence_length": 5,
}
LLAMA = {
    "kind": "llama",
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sequence_length": 5,
}
NAMES = {
    f"layers.{number}.lora_{part}.default.weight": shape
    for number, shapes in ((1, {"A": (2, 8), "B": (6, 2)}), (2, {"A": (2, 6), "B": (2, 2)}))
    for part, shape in shapes.items()
}
PLAIN = {"optimizer": {"kind": "sgd", "lr": 1.0}, "steps": 1, "epochs": None}
BASE = "layers.0.weight"


def graph_of(model, **options):
    data = {"kind": "tokens", "num_samples": 8}
    if model["kind"] == "mlp":
        data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 2, **options}
    return Workload.model_validate(raw).settled(Path()).graph


def test_adapters_are_called_as_pefts_and_alone_learn():
    graph = graph_of({"kind": "mlp", "widths": [5, 8, 6, 2]}, lora=LORA)
    assert {p.name: p.shape for p in graph.trainable} == NAMES
    names = [parameter.name for parameter in graph.parameters]
    at = names.index("layers.1.bias")
    assert names[at + 1 : at + 3] == [
        "layers.1.lora_A.default.weight",
        "layers.1.lora_B.default.weight",
    ]
    assert graph.ready_order == tuple(
        f"layers.{number}.lora_{part}.default.weight" for number in (2, 1) for part in ("B", "A")
    )
    assert graph.flows[0] is False


def test_adapters_belong_to_the_blocks_of_their_layers():
    plain, lora = (graph_of(LLAMA, **given) for given in ({}, {"lora": {"targets": ["*_proj"]}}))
    assert [block.name for block in lora.blocks] == [block.name for block in plain.blocks]
    assert len(lora.blocks[0].parameters) == len(plain.blocks[0].parameters) + 14
    assert len(graph_of(GPT, lora={"targets": ["c_attn"]}).trainable) == 4


def test_patterns_freeze_adapters_too():
    graph = graph_of(LLAMA, lora={"targets": ["q_proj"]}, frozen=["*.lora_A.*"])
    assert all(".lora_B." in name for name in graph.ready_order)
    assert len(graph.ready_order) == 2


def weights(strategy="single", world_size=1, **options):
    return play(strategy, world_size, **{**PLAIN, **options}).replicas[0]


def test_the_model_starts_as_it_was_with_a_drawn_as_torch_and_b_zero():
    still = {"optimizer": {"kind": "sgd", "lr": 1e-300}}
    plain, lora = weights(**still), weights(lora=LORA, **still)
    for name, found in plain.items():
        np.testing.assert_array_equal(lora[name], found)
    for name, shape in NAMES.items():
        assert lora[name].shape == shape
        if "lora_B" in name:
            assert np.all(np.abs(lora[name]) <= 1e-290)
        else:
            assert 0 < np.abs(lora[name]).max() <= shape[1] ** -0.5


def test_gradients_are_those_of_the_merged_model(tmp_path):
    rng = np.random.default_rng(1)
    still = weights(lora=LORA, optimizer={"kind": "sgd", "lr": 1e-300})
    given = {name: rng.standard_normal(found.shape) for name, found in still.items()}
    np.savez(tmp_path / "lora.npz", **given)
    merged = {name: found for name, found in given.items() if name not in NAMES}
    for number in (1, 2):
        a, b = (given[f"layers.{number}.lora_{part}.default.weight"] for part in "AB")
        merged[f"layers.{number}.weight"] = merged[f"layers.{number}.weight"] + 3 * b @ a
    np.savez(tmp_path / "merged.npz", **merged)
    whole = weights(weights=str(tmp_path / "merged.npz"))
    for strategy, world_size in (("single", 1), ("ddp", 3), ("fsdp", 2), ("zero3", 2)):
        path = str(tmp_path / "lora.npz")
        found = weights(strategy, world_size, lora=LORA, weights=path)
        for number in (1, 2):
            slope = merged[f"layers.{number}.weight"] - whole[f"layers.{number}.weight"]
            names = [f"layers.{number}.lora_{part}.default.weight" for part in "AB"]
            a, b = (given[name] for name in names)
            np.testing.assert_allclose(a - found[names[0]], 3 * b.T @ slope, atol=1e-12)
            np.testing.assert_allclose(b - found[names[1]], 3 * slope @ a.T, atol=1e-12)
        for name in set(given) - set(NAMES):
            np.testing.assert_array_equal(found[name], given[name])


def test_a_file_of_the_base_alone_leaves_adapters_to_be_drawn(tmp_path):
    still = {"optimizer": {"kind": "sgd", "lr": 1e-300}}
    plain = weights(**still)
    np.savez(tmp_path / "base.npz", **{name: found + 1 for name, found in plain.items()})
    drawn = weights(lora=LORA, **still)
    found = weights(lora=LORA, weights=str(tmp_path / "base.npz"), **still)
    for name in NAMES:
        np.testing.assert_allclose(found[name], drawn[name], atol=1e-290)
    np.testing.assert_array_equal(found[BASE], plain[BASE] + 1)


def test_dropout_comes_before_a():
    graph = graph_of(LLAMA, lora={"targets": ["v_proj"], "dropout": 0.1})
    at = [call.layer.name for call in graph.calls].index("model.layers.0.self_attn.v_proj")
    kinds = [call.layer.kind for call in graph.calls[at : at + 6]]
    assert kinds == ["linear", "dropout", "linear", "linear", "scale", "add"]
    calls, first = graph.calls, len(graph.inputs)
    assert calls[at + 1].inputs == calls[at].inputs
    assert calls[at + 5].inputs == (first + at, first + at + 4)


def test_settings_start_as_pefts():
    lora = Lora(targets=("q_proj",))
    assert (lora.rank, lora.alpha, lora.dropout) == (8, 8.0, 0.0)


@for_each(
    ("given", "line"),
    [
        (
            {"lora": {"targets": ["fc"]}},
            "workload.lora: targets: no linear layer is called 'fc'; known: layers.0.",
        ),
        (
            {"lora": {"targets": []}},
            "workload.lora.targets: ",
        ),
        (
            {"lora": {"targets": ["0"]}, "mode": "inference"},
            "workload.lora: mode: inference trains nothing; leave this out.",
        ),
        (
            {"lora": {"targets": ["0"]}, "model": {"kind": "profile", "path": "x.csv"}},
            "workload.lora: the model profile has times but no numbers; leave this out.",
        ),
        (
            {
                "lora": {"targets": ["0"]},
                "model": {
                    "kind": "sequential",
                    "layers": [{"kind": "conv1d", "name": "c", "in_channels": 1}
                    | {"out_channels": 2, "kernel_size": 2}, {"kind": "flatten"}],
                    "input_shape": [1, 4],
                },
            },
            "workload.lora: targets: no linear layer is called '0'; the model has none.",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_is_refused(refuse, given, line):
    found = refuse({f"workload.{key}": value for key, value in given.items()})
    assert any(said.startswith(line) for said in found), found
