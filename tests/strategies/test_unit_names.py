"""Unit names: which modules are units."""

from small_workload import workload

from simdp.strategies.unit_names import chosen, unknown_unit

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


LORA = {"rank": 2, "alpha": 2, "targets": ["q_proj", "down_proj"]}
ADAPTERS = ("model.layers.*", "model.layers.*.*.*.lora_[AB]")


def test_patterns_name_units_which_may_lie_within_each_other():
    graph = workload(model=LLAMA, dataset=DATA, loss="cross_entropy", lora=LORA).graph
    root, *inner = chosen(graph, ADAPTERS)
    assert [module.label for module in inner[:3]] == [
        "model.layers.0",
        "model.layers.0.self_attn.q_proj.lora_A",
        "model.layers.0.self_attn.q_proj.lora_B",
    ]
    assert len(inner) == 2 * 5
    block, adapter, _ = inner[:3]
    assert block.first < adapter.first == adapter.last < block.last
    assert adapter.parameters == ("model.layers.0.self_attn.q_proj.lora_A.default.weight",)
    assert "model.layers.0.self_attn.q_proj.weight" in block.parameters
    assert root.parameters == ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


def test_a_pattern_that_matches_no_module_is_refused():
    found = unknown_unit(("model.layers.*", "*.lora_A"), workload(model=LLAMA, dataset=DATA))
    assert found == (
        "units: no module '*.lora_A' has parameters of its own; the model's blocks: "
        "model.layers.0, model.layers.1. Name modules, or write units: blocks or units: whole."
    )
