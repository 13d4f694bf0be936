"""First weights: drawn by name, or from a checkpoint that must be the model's."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from simdp.workload import weights
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
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


def test_a_parameters_draw_depends_on_seed_rank_and_name_alone():
    assert not np.array_equal(draw()["l.weight"], draw(seed=1)["l.weight"])
    assert not np.array_equal(draw()["l.weight"], draw(rank=1)["l.weight"])
    wider = BATCH_NORM_NET.model_copy(update={"layers": BATCH_NORM_NET.layers[:1]})
    alone = weights.drawn(wider, wider.build(), "float64", 0, 0)
    np.testing.assert_array_equal(alone["l.weight"], draw()["l.weight"])


# Loaded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
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


@pytest.mark.parametrize(
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
