"""Unit names: which modules are units."""

from small_workload import workload

from simdp.strategies.unit_names import chosen

LLAMA = {
    "kind": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
DATA = {"kind": "tokens", "num_samples": 4}


def labels(model, units):
    graph = workload(model=model, dataset=DATA, loss="cross_entropy").graph
    found = chosen(graph, units)
    names = [name for module in found for name in module.parameters]
    assert sorted(names) == sorted(parameter.name for parameter in graph.parameters)
    return [(module.label, module.stays, bool(module.parameters)) for module in found]


def test_torchtitan_wraps_what_is_before_the_blocks_and_behind_them():
    assert labels(LLAMA, "torchtitan") == [
        ("root", True, False),
        ("model.embed_tokens", False, True),
        ("model.layers.0", False, True),
        ("model.layers.1", False, True),
        ("model.norm, lm_head", True, True),
    ]


def test_a_tied_embedding_stays_in_the_root_with_what_is_on_its_side():
    tied = labels({**LLAMA, "tie_word_embeddings": True}, "torchtitan")
    assert [label for label, *_ in tied] == ["root", "model.layers.0", "model.layers.1"]
    assert tied[0] == ("root", True, True)


def test_blocks_whole_and_names():
    assert [label for label, *_ in labels(LLAMA, "blocks")] == [
        "root",
        "model.layers.0",
        "model.layers.1",
    ]
    assert labels(LLAMA, "whole") == [("root", True, True)]
    named = labels(LLAMA, ("model.layers.1", "lm_head"))
    assert [label for label, *_ in named] == ["root", "model.layers.1", "lm_head"]
