"""Which calls run a second time in backward."""

from pathlib import Path

from simdp.workload import Workload
from simdp.workload.lifetimes import Rerun, recomputed

BLOCK = [
    {"name": "ln", "kind": "layer_norm", "normalized_shape": 4},
    {"name": "wide", "kind": "linear", "in_features": 4, "out_features": 8},
    {"name": "act", "kind": "relu"},
    {"name": "narrow", "kind": "linear", "in_features": 8, "out_features": 4},
]


def runs(recompute, layers=BLOCK):
    named = [{**layer, "name": f"blocks.0.{layer['name']}"} for layer in layers]
    model = {"kind": "sequential", "input_shape": [4], "layers": named}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 2, "recompute": recompute}
    return recomputed(Workload.model_validate(raw).settled(Path()))


def test_products_of_a_block_are_stored_all_of_them_or_every_other():
    assert runs("none") == []
    assert runs("blocks") == [Rerun(range(4))]
    assert runs("selective") == [Rerun(range(4), frozenset({1, 3}))]
    assert runs("selective_every_other") == [Rerun(range(4), frozenset({1}))]
    assert runs("selective")[0].again == (0, 2)


def test_a_block_of_nothing_but_products_has_nothing_to_run_again():
    assert runs("selective", BLOCK[1:2]) == []
    assert runs("blocks", BLOCK[1:2]) == [Rerun(range(1))]
