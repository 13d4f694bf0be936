"""Which calls run a second time in backward."""

from pathlib import Path

import pytest

from simdp.workload import OF_RECOMPUTE, Workload
from simdp.workload.lifetimes import Rerun, recomputed

BLOCK = [
    {"name": "ln", "kind": "layer_norm", "normalized_shape": 4},
    {"name": "wide", "kind": "linear", "in_features": 4, "out_features": 8},
    {"name": "act", "kind": "relu"},
    {"name": "narrow", "kind": "linear", "in_features": 8, "out_features": 4},
]


def runs(recompute, layers=BLOCK, num_blocks=1, **more):
    named = [
        {**layer, "name": f"blocks.{block}.{layer['name']}"}
        for block in range(num_blocks)
        for layer in layers
    ]
    model = {"kind": "sequential", "input_shape": [4], "layers": named}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 2, "recompute": recompute, **more}
    return recomputed(Workload.model_validate(raw).settled(Path()))


def test_products_of_a_block_are_stored_all_of_them_or_every_other():
    assert runs("none") == []
    assert runs("blocks", use_reentrant=True) == [Rerun(range(4))]
    assert runs("selective") == [Rerun(range(4), frozenset({1, 3}))]
    assert runs("selective_every_other") == [Rerun(range(4), frozenset({1}), stopped=1)]
    assert runs("selective")[0].again == (0, 2)


def test_a_block_of_nothing_but_products_has_nothing_to_run_again():
    assert runs("selective", BLOCK[1:2]) == []
    assert runs("blocks", BLOCK[1:2], use_reentrant=True) == [Rerun(range(1))]


def test_a_block_stops_behind_the_last_tensor_that_backward_needs():
    """The last product needs what the activation made, and makes nothing that is needed."""
    assert runs("blocks") == [Rerun(range(4), stopped=1)]
    assert runs("blocks")[0].again == (0, 1, 2)
    assert runs("blocks", BLOCK[:3])[0].stopped == 0  # relu keeps its output
    assert runs("blocks", BLOCK[:1])[0].stopped == 0  # layer norm makes statistics
    assert runs("blocks", BLOCK[1:2]) == []  # a product alone keeps what enters the block


GPT2 = {"kind": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 8}


def test_a_transformers_block_leaves_out_its_last_product_and_addition():
    """torch 2.14: of a block without dropout the up projection runs twice, the down one once."""
    raw = {"model": {**GPT2, "resid_pdrop": 0.0, "attn_pdrop": 0.0}, "recompute": "blocks"}
    data = {"dataset": {"kind": "tokens", "num_samples": 4}, "microbatch": 2}
    workload = Workload.model_validate({**raw, **data}).settled(Path())
    names = [workload.graph.calls[n].layer.name for n in recomputed(workload)[0].again]
    left = [workload.graph.calls[n].layer.name for n in recomputed(workload)[0].calls]
    assert names[-1].endswith("mlp.act")
    assert [name.rpartition(".")[2] for name in left[len(names) :]] == ["c_proj", "add"]


def test_a_share_of_the_blocks_is_checkpointed():
    first = [run.calls.start // 4 for run in runs("blocks", num_blocks=4, recompute_share=0.5)]
    assert first == [1, 3]
    assert len(runs("blocks", num_blocks=3, recompute_share=1 / 3)) == 1
    assert len(runs("blocks", num_blocks=4, recompute_share=0.75)) == 3
    assert len(runs("blocks", num_blocks=4)) == 4


@pytest.mark.parametrize(("key", "value"), [("recompute_share", 0.5), ("use_reentrant", True)])
def test_keys_of_recomputation_need_one(key, value):
    line = f"{key}: recompute: none runs nothing again; leave this out, or set recompute: blocks"
    with pytest.raises(ValueError, match="recompute: none runs nothing again"):
        runs("none", **{key: value})
    assert line


def test_defaults_of_recomputation_are_those_of_the_workload():
    assert {key: Workload.model_fields[key].default for key in OF_RECOMPUTE} == OF_RECOMPUTE
