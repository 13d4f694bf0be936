"""torch's ``eval()`` on whole models."""

import pytest
from for_each import for_each

from simdp.workload import Workload
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.batchnorm import (
    BatchNorm,
    BatchNorm1d,
    EvaluatedBatchNorm,
    SyncBatchNorm,
)
from simdp.workload.layers.tensor_ops import Dropout
from simdp.workload.transforms import evaluated

MODELS = [
    {"kind": "resnet18"},
    {"kind": "inception_v3"},
    {"kind": "bert-base", "sequence_length": 8},
    {"kind": "gpt2", "sequence_length": 8},
    {"kind": "transformer", "task": "classifier", "vocab_size": 7, "d_model": 8, "nhead": 2}
    | {"num_layers": 1, "dim_feedforward": 8, "num_labels": 3, "dropout": 0.5}
    | {"sequence_length": 8},
]


def graph_of(model):
    found = Workload.model_validate(
        {
            "model": model,
            "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "1 s"}]},
            "optimizer": "none",
            "microbatch": 1,
        }
    )
    return found.model.graph


@for_each("model", MODELS, ids=lambda model: model["kind"])
def test_tensors_stay_and_what_is_random_or_learned_from_the_batch_goes(model):
    trained = graph_of(model)
    graph = evaluated(trained)
    assert graph.parameters == trained.parameters
    assert graph.buffers == trained.buffers
    assert len(graph.outputs) == 1
    for call in graph.calls:
        assert not isinstance(call.layer, BatchNorm)
        assert not (isinstance(call.layer, Dropout) and call.layer.p)
        assert not (isinstance(call.layer, Attention) and call.layer.dropout)
    changed = [c.layer for c in trained.calls if c.layer.evaluated() != c.layer]
    assert changed  # these models have dropout or batch norm
    assert evaluated(graph).calls == graph.calls


@for_each("kind", [BatchNorm1d, SyncBatchNorm])
def test_a_batch_norm_after_training_is_one_kernel_and_keeps_nothing(kind):
    norm = kind(name="bn", num_features=4)
    after = norm.evaluated()
    assert isinstance(after, EvaluatedBatchNorm)
    assert len(after.forward_cost([(4,)], 8)) == len(norm.forward_cost([(4,)], 8)) - 1
    assert norm.kept([(4,)], 8).inputs
    assert not after.kept([(4,)], 8).inputs
    own = kind(name="bn", num_features=4, track_running_stats=False)
    assert len(own.evaluated().forward_cost([(4,)], 8)) == len(own.forward_cost([(4,)], 8))


def test_dropout_after_training_takes_no_time():
    assert Dropout(name="drop", p=0.5).forward_cost([(4,)], 8)
    assert Dropout(name="drop", p=0.5).evaluated().forward_cost([(4,)], 8) == []


def test_nothing_is_learned_after_training():
    norm = BatchNorm1d(name="bn", num_features=4).evaluated()
    with pytest.raises(AssertionError, match="bn is not learned from any more"):
        norm.backward(None, None, None, [True])
