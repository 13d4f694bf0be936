"""What a scenario may get wrong about models, weights, data and the recipe: one line each."""

import numpy as np
from for_each import for_each

LINEAR = {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 6}
DATA = {"kind": "regression", "num_samples": 64}


def sequential(*layers, **more):
    return {"kind": "sequential", "layers": list(layers), **more}


def workload(model, **more):
    return {"model": model, "dataset": DATA, "microbatch": 8, **more}


LANGUAGE_MODEL = {
    "kind": "transformer",
    "task": "language_model",
    "vocab_size": 9,
    "d_model": 8,
    "nhead": 2,
    "num_layers": 1,
    "dim_feedforward": 8,
}


@for_each(
    ("model", "line"),
    [
        (
            sequential(
                LINEAR, {"name": "l2", "kind": "linear", "in_features": 5} | {"out_features": 2}
            ),
            "workload.model: the layers do not chain: l2: takes 5 features, but gets samples of "
            "shape (6,).",
        ),
        (
            sequential(
                {"name": "c", "kind": "conv2d", "in_channels": 3, "out_channels": 4}
                | {"kernel_size": 3}
            ),
            "workload.model: the shape of x is not known; add input_shape, for example "
            "input_shape: [3, 32, 32].",
        ),
        (
            sequential(LINEAR, {"name": "l1", "kind": "relu"}),
            "workload.model.layers: 2 layers are called 'l1'; give each a name of its own.",
        ),
        (
            sequential(LINEAR, unused=["l7"]),
            "workload.model: unused: no layer is called 'l7'; known: l1.",
        ),
        (
            sequential(LINEAR, unused=["l1"]),
            "workload.model: unused: every layer is unused; leave one out.",
        ),
        (
            sequential(
                {"name": "a", "kind": "multihead_attention", "embed_dim": 4}
                | {"num_heads": 2, "mask": "diagonal"},
                input_shape=[3, 4],
            ),
            "workload.model.layers.0.mask: 'diagonal' is not allowed; known: 'none' or 'causal'.",
        ),
    ],
)
def test_models_that_cannot_be(refuse, model, line):
    assert refuse(workload=workload(model)) == [line]


@for_each(
    ("stored", "line"),
    [
        (
            {"l1.weight": np.zeros((6, 4))},
            "has no 'l1.bias' of shape (6,).",
        ),
        (
            {"l1.weight": np.zeros((4, 6)), "l1.bias": np.zeros(6), "l9.bias": np.zeros(6)},
            "has 'l1.weight' of shape (4, 6), the model needs (6, 4); has 'l9.bias', which the "
            "model lacks.",
        ),
        (
            {f"l{i}.bias": np.zeros(6) for i in range(5)},
            "has 'l0.bias', which the model lacks; has 'l2.bias', which the model lacks; has "
            "'l3.bias', which the model lacks (and 2 more).",
        ),
    ],
)
def test_checkpoints_that_do_not_match(refuse, tmp_path, stored, line):
    path = tmp_path / "weights.npz"
    np.savez(path, **stored)
    given = workload(sequential(LINEAR), weights="weights.npz")
    assert refuse(workload=given) == [f"workload.weights: {path}: {line}"]


@for_each(
    ("x", "y", "line"),
    [
        (
            [[1, 2, 9]],
            [[2, 3, 4]],
            "x holds tokens 1 ... 9, but the model has 9; tokens must be 0 ... 8.",
        ),
        (
            [[1, 2, 3]],
            [[2, 3, 9]],
            "y holds labels 2 ... 9, but the model has 9 classes; labels must be 0 ... 8 "
            "or ignore_index -100.",
        ),
        (
            [[1.0, 2.0, 3.0]],
            [[2, 3, 4]],
            "x is float64, but the model takes tokens: whole numbers.",
        ),
    ],
)
def test_tokens_and_labels_out_of_range(refuse, tmp_path, x, y, line):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.array(x * 8), y=np.array(y * 8))
    given = {
        "model": LANGUAGE_MODEL,
        "dataset": {"kind": "npz", "path": "data.npz"},
        "loss": "cross_entropy",
        "microbatch": 2,
    }
    assert refuse(workload=given) == [f"workload.dataset: {path}: {line}"]


ONE_CYCLE = {"kind": "one_cycle_lr", "max_lr": 1.0, "total_steps": 10}


@for_each(
    ("recipe", "line"),
    [
        (
            {"lr_schedule": {"kind": "noam", "d_model": 32}},
            "workload.lr_schedule.warmup_steps: is required but was not given; add it.",
        ),
        (
            {"lr_schedule": {**ONE_CYCLE, "cycle_momentum": False}, "steps": 11},
            "workload.lr_schedule: one_cycle_lr ends with step 10, but there is a step 11; raise "
            "total_steps.",
        ),
        (
            {"lr_schedule": {"kind": "lambda_lr", "table": [1, 0.5], "per": "epoch"}, "epochs": 3},
            "workload.lr_schedule: lambda_lr has a table of 2, but 3 are needed; make it longer.",
        ),
        (
            {"lr_schedule": {"kind": "lambda_lr", "table": [1, 0.5], "per": "epoch"}, "steps": 5},
            "workload.lr_schedule: lambda_lr has a table of 2, but 3 are needed; make it longer.",
        ),
        (
            {"optimizer": "muon"},
            "workload.optimizer: muon updates matrices, but 'l1.bias' has the shape (6,); add its "
            "name, or a pattern of names such as '*.bias', to rest.",
        ),
        (
            {"optimizer": {"kind": "muon", "rest": ["*.bias", "head.*"]}},
            "workload.optimizer.param_groups: no parameter matches 'head.*'; --save-weights "
            "shows the names.",
        ),
        (
            {"clip_grad_norm": 1.0, "clip_grad_value": 1.0},
            "workload: clip_grad_norm and clip_grad_value are both given; keep one of them.",
        ),
        (
            {"lr_schedule": ONE_CYCLE},
            "workload.lr_schedule: one_cycle_lr changes the momentum, but the optimizer sgd has "
            "none; write cycle_momentum: false, or momentum: 0.95 for an optimizer that has it.",
        ),
        (
            {"lr_schedule": {**ONE_CYCLE, "cycle_momentum": False}, "lr_scaling": "linear"},
            "workload.lr_scaling: the schedule one_cycle_lr has rates of its own, independent of "
            "the optimizer's; scale those instead, and leave this out.",
        ),
        (
            {"optimizer": {"kind": "sgd", "param_groups": [{"params": ["*.wieght"], "lr": 1.0}]}},
            "workload.optimizer.param_groups: no parameter matches '*.wieght'; --save-weights "
            "shows the names.",
        ),
        (
            {"inject": [{"kind": "inf", "rank": 4, "step": 1}]},
            "workload.inject.0.rank: rank 4 does not exist; the largest world_size is 4, so "
            "ranks are 0 ... 3.",
        ),
        (
            {"sync_batchnorm": True},
            "workload.sync_batchnorm: the model has no batch norm; leave this out.",
        ),
        (
            {"group_by_length": True},
            "workload.group_by_length: all samples are of one length; give the dataset lengths, "
            "or the model a pad_id, or leave this out.",
        ),
        (
            {"samples_per_rank": [8, 8]},
            "workload.samples_per_rank: has 2 entries for 4 ranks; give one each.",
        ),
        (
            {"samples_per_rank": [32, 32, 32, 32]},
            "workload.samples_per_rank: [32, 32, 32, 32] needs 128 samples, but the dataset "
            "has 64.",
        ),
        (
            {"samples_per_rank": [8, 8, 8, 8], "global_batch": 16, "microbatch": None},
            "workload: samples_per_rank deals samples to ranks, and so does global_batch; use "
            "microbatch instead.",
        ),
        (
            {"precision": "amp", "dtype": "float64"},
            "workload: dtype is float64, but precision amp joins float16 with float32; write "
            "dtype: float32, or precision: full.",
        ),
    ],
)
def test_recipes_that_cannot_be(refuse, recipe, line):
    assert refuse(workload=workload(sequential(LINEAR), **recipe)) == [line]


def test_a_plateau_is_found_only_where_there_are_losses(refuse):
    given = workload(sequential(LINEAR), lr_schedule="reduce_lr_on_plateau")
    assert refuse(workload=given, numerics=False) == [
        "workload.lr_schedule: reduce_lr_on_plateau follows the loss, which numerics: false "
        "leaves out; set numerics: true, or use another schedule."
    ]


def test_the_updates_of_a_server_belong_to_no_epoch(refuse):
    schedule = {"kind": "step_lr", "step_size": 1, "per": "epoch"}
    given = workload(sequential(LINEAR), lr_schedule=schedule)
    assert refuse(workload=given, strategy="parameter_server") == [
        "workload.lr_schedule: step_lr follows the epoch, but the updates of a parameter_server "
        "belong to no common epoch; use one that counts steps."
    ]


def test_a_device_must_say_how_fast_it_computes_in_16_bit(refuse):
    device = {"peak": {"float32": "1 TFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 TB/s"}
    given = workload(sequential(LINEAR), precision="amp")
    assert refuse({"cluster.device": device}, workload=given) == [
        "cluster.device.peak: has no float16, which the workload computes in; known: float32."
    ]


def test_without_data_there_are_no_epochs_to_count(refuse):
    point = {"microbatch": 8, "step_time": "1 ms"}
    given = workload(sequential(LINEAR), compute={"kind": "measured", "points": [point]})
    del given["dataset"]
    given["lr_schedule"] = {"kind": "step_lr", "step_size": 1, "per": "epoch"}
    assert refuse(workload=given, numerics=False) == [
        "workload.lr_schedule: per epoch: there is no dataset to iterate over; count steps."
    ]
