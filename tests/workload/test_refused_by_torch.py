"""Models and data that torch refuses in its forward: here they are refused before anything runs."""

import numpy as np
from for_each import for_each

LINEAR = {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 6}
EMBEDDING = {"name": "e", "kind": "embedding", "num_embeddings": 9, "embedding_dim": 6}
DATA = {"kind": "regression", "num_samples": 64}


def sequential(*layers, **more):
    return {"kind": "sequential", "layers": list(layers), **more}


def workload(model, **more):
    return {"model": model, "dataset": DATA, "microbatch": 8, **more}


@for_each(
    ("model", "line"),
    [
        (
            sequential(LINEAR, {"name": "b", "kind": "BatchNorm2d", "num_features": 6}),
            "workload.model: the layers do not chain: b: takes samples of shape (channels, height, "
            "width), but gets (6,).",
        ),
        (
            sequential(
                {"name": "b", "kind": "BatchNorm1d", "num_features": 3}, input_shape=[3, 8, 8]
            ),
            "workload.model: the layers do not chain: b: takes samples of shape (channels,) or "
            "(channels, length), but gets (3, 8, 8).",
        ),
        (
            sequential(LINEAR, EMBEDDING),
            "workload.model: layers: e looks up tokens, but the layers before it make other "
            "numbers; put it first.",
        ),
        (
            sequential({"kind": "residual", "layers": [LINEAR, EMBEDDING]}),
            "workload.model: layers: 0.e looks up tokens, but the layers before it make other "
            "numbers; put it first.",
        ),
        (
            sequential(LINEAR, unused="l1"),
            "workload.model.unused: 'l1' is not a list.",
        ),
    ],
)
def test_layers_that_torch_refuses(refuse, model, line):
    assert refuse(workload=workload(model)) == [line]


def test_samples_without_tokens_are_refused(refuse, tmp_path):
    path = tmp_path / "data.npz"
    empty = np.zeros((16, 0), dtype=int)
    np.savez(path, x=empty, y=empty)
    model = {
        "kind": "transformer",
        "task": "language_model",
        "vocab_size": 9,
        "d_model": 8,
        "nhead": 2,
    }
    given = workload(model, dataset={"kind": "npz", "path": "data.npz"}, loss="cross_entropy")
    assert refuse(workload=given) == [
        f"workload.dataset: {path}: x has shape (16, 0): its samples are empty; give them a length."
    ]


def test_one_value_in_place_of_a_list_is_named(refuse):
    optimizer = {"kind": "adam", "betas": 0.9}
    assert refuse(workload=workload(sequential(LINEAR), optimizer=optimizer)) == [
        "workload.optimizer.betas: 0.9 is not a list."
    ]
    assert refuse(workload=workload(sequential(LINEAR), inject={"kind": "inf"})) == [
        "workload.inject: {'kind': 'inf'} is not a list."
    ]


@for_each(
    ("more", "line"),
    [
        ({"optimizer": {"kind": "sgd", "lr": True}}, "workload.optimizer.lr"),
        ({"clip_grad_norm": True}, "workload.clip_grad_norm"),
        (
            {"model": sequential({"kind": "dropout", "p": True}, LINEAR)},
            "workload.model.layers.0.p",
        ),
    ],
)
def test_true_is_no_number(refuse, more, line):
    given = {**workload(sequential(LINEAR)), **more}
    assert refuse(workload=given) == [f"{line}: True is not a number."]


@for_each("given", [True, "0.1"])
def test_only_numbers_are_numbers_also_inside_lists(refuse, given):
    def told(optimizer):
        return refuse(workload=workload(sequential(LINEAR), optimizer=optimizer))

    wrong = f"{given!r} is not a number."
    assert told({"kind": "sgd", "lr": given}) == [f"workload.optimizer.lr: {wrong}"]
    assert told({"kind": "adam", "betas": [given, 0.9]}) == [f"workload.optimizer.betas.0: {wrong}"]
