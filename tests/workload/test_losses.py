"""Every loss: gradients equal differences, the mean is over what counts, targets are checked."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.workload.losses import LOSSES, AnyLoss
from simdp.workload.losses.classification import (
    BCE,
    NLL,
    BCEWithLogits,
    CrossEntropy,
    HingeEmbedding,
    KLDiv,
    MultiMargin,
    SoftMargin,
)
from simdp.workload.losses.regression import L1, MSE, Huber, PoissonNLL, SmoothL1

GOLDEN = [Path(__file__).parents[1] / "golden" / f"{name}_losses.npz" for name in ("g15", "g15b")]
RANDOM = np.random.default_rng(0)
CASES = {
    "mse": (MSE(), (5, 3), RANDOM.standard_normal((5, 3))),
    "mse of grids": (MSE(), (5, 2, 3), RANDOM.standard_normal((5, 2, 3))),
    "mse of numbers": (MSE(), (5,), RANDOM.standard_normal(5)),
    "cross entropy": (CrossEntropy(), (5, 3), np.array([0, 2, 1, 1, 0])),
    "cross entropy of positions": (CrossEntropy(), (2, 4, 3), RANDOM.integers(3, size=(2, 4))),
    "cross entropy with gaps": (CrossEntropy(), (5, 3), np.array([0, -100, 1, -100, 2])),
    "cross entropy that ignores a class": (
        CrossEntropy(ignore_index=1),
        (5, 3),
        np.array([0, 1, 2, 1, 0]),
    ),
    "smoothed cross entropy": (
        CrossEntropy(label_smoothing=0.2),
        (2, 4, 3),
        np.array([[0, -100, 1, 2], [2, 2, -100, 0]]),
    ),
    "weighted cross entropy": (
        CrossEntropy(weight=[0.5, 2, 1]),
        (5, 3),
        np.array([0, -100, 1, 1, 2]),
    ),
    "weighted, smoothed cross entropy": (
        CrossEntropy(weight=[0.5, 2, 0], label_smoothing=0.3),
        (2, 4, 3),
        np.array([[0, -100, 1, 1], [0, 2, -100, 0]]),
    ),
    "summed cross entropy": (CrossEntropy(reduction="sum"), (5, 3), np.array([0, -100, 1, 1, 2])),
    "nll": (NLL(weight=[0.5, 2, 1]), (5, 3), np.array([0, -100, 1, 1, 2])),
    "summed nll": (NLL(reduction="sum"), (2, 2, 3), np.array([[0, -100], [1, 2]])),
    "bce with logits": (
        BCEWithLogits(weight=[1, 2, 3], pos_weight=[0.5, 1, 4]),
        (5, 3),
        RANDOM.uniform(size=(5, 3)),
    ),
    "summed bce with logits": (
        BCEWithLogits(reduction="sum"),
        (5,),
        RANDOM.integers(2, size=5).astype(float),
    ),
    "bce of shares": (BCE(weight=[1, 2, 3]), (5, 3), RANDOM.uniform(size=(5, 3))),
    "soft targets": (
        CrossEntropy(weight=[0.5, 2, 1], label_smoothing=0.2),
        (2, 4, 3),
        RANDOM.dirichlet([1, 1, 1], size=(2, 4)),
    ),
    "summed soft targets": (
        CrossEntropy(reduction="sum"),
        (5, 3),
        RANDOM.dirichlet([1, 1, 1], size=5),
    ),
    "poisson nll": (PoissonNLL(full=True), (5, 3), RANDOM.poisson(2, size=(5, 3)).astype(float)),
    "hinge embedding": (HingeEmbedding(margin=0.4), (5, 3), RANDOM.choice([-1.0, 1.0], (5, 3))),
    "soft margin": (SoftMargin(), (5, 3), RANDOM.choice([-1.0, 1.0], (5, 3))),
    "multi margin": (MultiMargin(p=2, weight=[0.5, 2, 1]), (5, 3), np.array([0, 2, -100, 1, 0])),
    "summed multi margin": (MultiMargin(reduction="sum"), (5, 3), np.array([0, 2, 1, 1, 0])),
    "l1": (L1(), (5, 3), RANDOM.standard_normal((5, 3))),
    "smooth l1": (SmoothL1(beta=0.7), (5, 3), RANDOM.standard_normal((5, 3))),
    "smooth l1 that is l1": (SmoothL1(beta=0), (5, 3), RANDOM.standard_normal((5, 3))),
    "huber": (Huber(delta=0.7), (5, 3), RANDOM.standard_normal((5, 3))),
    "kl div": (KLDiv(), (5, 3), RANDOM.uniform(size=(5, 3))),
    "kl div of samples": (
        KLDiv(reduction="batchmean", log_target=True),
        (5, 2, 3),
        -RANDOM.uniform(size=(5, 2, 3)),
    ),
    "summed squares": (MSE(reduction="sum"), (5, 3), RANDOM.standard_normal((5, 3))),
}

every_case = for_each(("loss", "shape", "target"), CASES.values(), ids=CASES)


def test_every_kind_of_loss_has_a_case_here():
    assert {loss.kind for loss, _, _ in CASES.values()} | {"none"} == set(LOSSES)


@for_each("kind", LOSSES)
def test_a_loss_is_written_by_its_kind(kind):
    assert type(TypeAdapter(AnyLoss).validate_python(kind)) is LOSSES[kind]


def predicted(loss, shape):
    random = np.random.default_rng(1)
    return random.uniform(0.1, 0.9, shape) if loss.kind == "bce" else random.standard_normal(shape)


@every_case
def test_the_gradient_equals_differences(loss, shape, target):
    prediction = predicted(loss, shape)
    _, gradient = loss.value_and_grad(prediction, target)
    step = 1e-6
    for index in np.ndindex(shape):
        moved = [prediction.copy(), prediction.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        high, low = (loss.value_and_grad(p, target)[0] for p in moved)
        assert abs(gradient[index] - (high - low) / (2 * step)) < 1e-8


@every_case
def test_the_inputs_are_left_as_they_are(loss, shape, target):
    prediction = predicted(loss, shape)
    kept = prediction.copy(), target.copy()
    loss.value_and_grad(prediction, target)
    np.testing.assert_array_equal(prediction, kept[0])
    np.testing.assert_array_equal(target, kept[1])


@every_case
@for_each("dtype", [np.float32, np.float64])
def test_the_gradient_keeps_the_dtype_of_the_prediction(loss, shape, target, dtype):
    prediction = predicted(loss, shape).astype(dtype)
    if target.dtype == np.float64:
        target = target.astype(dtype)
    value, gradient = loss.value_and_grad(prediction, target)
    assert isinstance(value, float)
    assert gradient.dtype == dtype
    assert gradient.shape == shape


@every_case
def test_shards_weighted_by_their_counts_give_the_whole(loss, shape, target):
    prediction = predicted(loss, shape)
    whole, _ = loss.value_and_grad(prediction, target)
    parts = [slice(0, 1), slice(1, None)]
    counts = [loss.count(target[part]) for part in parts]
    assert sum(counts) == pytest.approx(loss.count(target), rel=1e-14)
    values = [loss.value_and_grad(prediction[part], target[part])[0] for part in parts]
    joined = sum(values) if loss.adds else np.average(values, weights=counts)
    assert joined == pytest.approx(whole, rel=1e-12)


def test_the_squared_error_is_the_mean_over_every_element():
    value, gradient = MSE().value_and_grad(np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros((2, 2)))
    assert value == 30 / 4
    assert gradient.tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert MSE().count(np.zeros((7, 3))) == 7


def test_cross_entropy_of_equal_logits_is_the_log_of_the_classes():
    value, _ = CrossEntropy().value_and_grad(np.zeros((2, 5)), np.array([0, 4]))
    assert value == pytest.approx(np.log(5), rel=1e-15)


def test_cross_entropy_survives_large_logits():
    value, gradient = CrossEntropy().value_and_grad(np.array([[1e4, 0.0]]), np.array([1]))
    assert value == 1e4
    assert np.isfinite(gradient).all()


def test_ignored_targets_neither_count_nor_pull():
    loss, target = CrossEntropy(ignore_index=-1), np.array([0, -1, 2])
    prediction = np.random.default_rng(1).standard_normal((3, 4))
    value, gradient = loss.value_and_grad(prediction, target)
    kept, _ = loss.value_and_grad(prediction[[0, 2]], target[[0, 2]])
    assert loss.count(target) == 2
    assert value == pytest.approx(kept, rel=1e-15)
    assert not gradient[1].any()


@for_each(
    ("loss", "target", "output_shape", "message"),
    [
        (MSE(), np.zeros((4, 3)), (3,), None),
        (
            MSE(),
            np.zeros((4, 2)),
            (3,),
            "y has shape (4, 2), but the model makes (3,) of each sample; give y the shape (4, 3).",
        ),
        (
            MSE(),
            np.zeros((4, 3), int),
            (3,),
            "y is int64 or has values that are not finite; give finite floats.",
        ),
        (
            MSE(),
            np.full((4, 3), np.nan),
            (3,),
            "y is float64 or has values that are not finite; give finite floats.",
        ),
        (CrossEntropy(), np.array([0, 2]), (3,), None),
        (CrossEntropy(), np.array([0, -100]), (3,), None),
        (CrossEntropy(), np.array([-100, -100]), (3,), None),
        (CrossEntropy(), np.array([[0, 2]]), (2, 3), None),
        (
            CrossEntropy(),
            np.array([[0], [2]]),
            (3,),
            "y has shape (2, 1), but cross_entropy needs class indices (2,).",
        ),
        (
            CrossEntropy(),
            np.array([0.0, 2.0]),
            (3,),
            "y is float64, but cross_entropy needs class indices: whole numbers.",
        ),
        (
            CrossEntropy(ignore_index=-1),
            np.array([-100, 3]),
            (3,),
            "y holds labels -100 ... 3, but the model has 3 classes; "
            "labels must be 0 ... 2 or ignore_index -1.",
        ),
    ],
)
def test_targets_that_do_not_fit_are_explained(loss, target, output_shape, message):
    assert loss.problem_with(target, output_shape) == message


# torch 2.13.0: nn.CrossEntropyLoss(label_smoothing)(LOGITS, target), and the gradient of LOGITS.
LOGITS = np.array([[0.5, -1.25, 2.0, 0.25], [1.5, 0.0, -0.5, 1.0], [-2.0, 0.75, 0.125, 3.0]])
TORCH = [
    (
        0.0,
        [2, 0, 1],
        1.1476313960146711,
        [
            [0.05180597871912067, 0.009002529216331438, -0.1011550447296838, 0.04034653679423171],
            [-0.163697712780266, 0.037850823180884174, 0.022957684754567918, 0.10288920484481386],
            [0.0019220195704910223, -0.3032678887179368, 0.016092872833895724, 0.28525299631355006],
        ],
    ),
    (
        0.1,
        [2, -100, 1],
        1.479014462940577,
        [
            [
                0.06520896807868101,
                0.0010037938244971574,
                -0.11423256709452573,
                0.048019805191347575,
            ],
            [0.0, 0.0, 0.0, 0.0],
            [-0.009616970644263468, -0.41740183307690526, 0.01163930925084359, 0.41537949447032513],
        ],
    ),
    (
        1.0,
        [2, 0, 1],
        2.116381396014671,
        [
            [-0.03152735461421266, -0.0743308041170019, 0.1488449552703162, -0.04298679653910162],
            [
                0.08630228721973399,
                -0.045482510152449154,
                -0.060375648578765415,
                0.019555871511480527,
            ],
            [-0.0814113137628423, -0.05326788871793681, -0.0672404604994376, 0.20191966298021674],
        ],
    ),
]


@for_each(("smoothing", "target", "value", "gradient"), TORCH)
def test_cross_entropy_equals_torchs(smoothing, target, value, gradient):
    loss = CrossEntropy(label_smoothing=smoothing)
    found, slope = loss.value_and_grad(LOGITS, np.array(target))
    assert found == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(slope, gradient, rtol=1e-12, atol=1e-16)


def test_the_gradient_of_each_sample_sums_to_nothing():
    """Adding a constant to all logits changes no probability."""
    logits = np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32)
    for smoothing in (0.0, 0.3):
        loss = CrossEntropy(label_smoothing=smoothing)
        _, slope = loss.value_and_grad(logits, np.arange(6))
        np.testing.assert_allclose(slope.sum(axis=1), 0, atol=1e-7)


def test_ignored_samples_may_have_predictions_that_are_not_finite():
    logits = np.array([[1.0, 2.0], [np.nan, 0.0]])
    value, slope = CrossEntropy().value_and_grad(logits, np.array([0, -100]))
    assert value == pytest.approx(np.log1p(np.exp(1)), rel=1e-14)
    assert slope[1].tolist() == [0, 0]


@for_each("smoothing", [-0.1, 1.1])
def test_label_smoothing_is_a_share(smoothing):
    with pytest.raises(ValueError, match="label_smoothing"):
        TypeAdapter(AnyLoss).validate_python(
            {"kind": "cross_entropy", "label_smoothing": smoothing}
        )


def test_losses_say_what_shape_a_target_has():
    assert MSE().target_shape((4, 3)) == (4, 3)
    assert CrossEntropy().target_shape((4, 3)) == (4,)


def test_losses_say_what_is_written_where_nothing_counts():
    assert MSE().ignored_label() is None
    assert not MSE().ignored(np.zeros((2, 3))).any()
    loss = CrossEntropy(ignore_index=0)
    assert loss.ignored_label() == 0
    assert loss.ignored(np.array([[0, 1], [2, 0]])).tolist() == [[True, False], [False, True]]


def test_cross_entropy_explains_that_one_number_is_no_class():
    assert CrossEntropy().problem_with(np.array([0, 1]), ()) is not None


def test_targets_are_drawn_to_suit_the_loss():
    y = np.random.default_rng(1).standard_normal((4, 3))
    assert MSE().drawn(y) is y
    assert BCEWithLogits().problem_with(BCEWithLogits().drawn(y), (3,)) is None
    np.testing.assert_allclose(KLDiv().drawn(y).sum(axis=1), 1)
    for loss in (BCE(), CrossEntropy(), HingeEmbedding(), SoftMargin(), PoissonNLL()):
        assert loss.problem_with(y * 2, (3,)) is not None
        assert loss.problem_with(loss.drawn(y), (3,)) is None
    log = KLDiv(log_target=True).drawn(y)
    np.testing.assert_allclose(np.exp(log).sum(axis=1), 1)


def test_probabilities_of_nothing_add_nothing_to_a_divergence():
    value, slope = KLDiv(reduction="sum").value_and_grad(
        np.log(np.array([[0.5, 0.5]])), np.array([[0.0, 1.0]])
    )
    assert value == pytest.approx(np.log(2))
    assert slope.tolist() == [[0, -1]]


def test_a_loss_of_logits_survives_large_ones():
    value, slope = BCEWithLogits(reduction="sum").value_and_grad(
        np.array([1e4, -1e4]), np.array([0.0, 1.0])
    )
    assert value == 2e4
    assert slope.tolist() == [1, -1]


@for_each(
    ("loss", "target", "output_shape", "message"),
    [
        (
            CrossEntropy(weight=[1, 2]),
            np.array([0, 1]),
            (3,),
            "the loss has a weight of 2 values, but the model has 3 classes; give one for each.",
        ),
        (
            CrossEntropy(),
            np.full((2, 3), 1.5),
            (3,),
            "y holds 1.5 ... 1.5, but cross_entropy needs probabilities of classes; give values "
            "from 0 to 1, or class indices.",
        ),
        (
            BCE(),
            np.full((2, 3), -1.0),
            (3,),
            "y holds -1.0 ... -1.0, but bce needs shares; give values from 0 to 1.",
        ),
        (
            PoissonNLL(),
            np.full((2, 3), -1.0),
            (3,),
            "y holds -1.0, but poisson_nll needs counts; give none below 0.",
        ),
        (
            SoftMargin(),
            np.array([0.0, 1.0]),
            (),
            "y holds 0.0 ... 1.0, but soft_margin needs signs; give 1 or -1.",
        ),
        (
            MultiMargin(),
            np.array([[0, 1]]),
            (2, 3),
            "the model makes (2, 3) of each sample, but multi_margin needs one row of classes.",
        ),
        (NLL(), np.array([0.5]), (3,), "y is float64, but nll needs class indices: whole numbers."),
        (
            BCEWithLogits(pos_weight=[1, 2]),
            np.zeros((4, 3)),
            (3,),
            "the loss has a pos_weight of 2 values, but the last axis of y has 3; "
            "give one for each.",
        ),
        (
            BCEWithLogits(),
            np.array([[0.5], [2.0]]),
            (1,),
            "y holds 0.5 ... 2.0, but bce_with_logits needs shares; give values from 0 to 1.",
        ),
        (BCEWithLogits(pos_weight=[2]), np.zeros(4), (), None),
        (
            KLDiv(),
            np.array([[0.5], [-2.0]]),
            (1,),
            "y holds -2.0, but kl_div needs probabilities; give none below 0, or write "
            "log_target: true.",
        ),
        (KLDiv(log_target=True), np.array([[0.5], [-2.0]]), (1,), None),
    ],
)
def test_targets_that_do_not_fit_the_weights_are_explained(loss, target, output_shape, message):
    assert loss.problem_with(target, output_shape) == message


@for_each(
    ("raw", "where"),
    [
        ({"kind": "mse", "reduction": "none"}, "reduction"),
        ({"kind": "l1", "reduction": "batchmean"}, "reduction"),
        ({"kind": "huber", "delta": 0}, "delta"),
        ({"kind": "smooth_l1", "beta": -1}, "beta"),
        ({"kind": "cross_entropy", "weight": [-1, 1]}, "weight"),
        ({"kind": "bce_with_logits", "pos_weight": []}, "pos_weight"),
        ({"kind": "multi_margin", "p": 3}, "p"),
        ({"kind": "poisson_nll", "eps": 0}, "eps"),
    ],
)
def test_options_out_of_range_are_refused(raw, where):
    with pytest.raises(ValidationError, match=where):
        TypeAdapter(AnyLoss).validate_python(raw)


OF_TORCH = {
    "binary_cross_entropy_with_logits(x, u)": (BCEWithLogits, "x", "u", {}),
    "l1_loss(x, t)": (L1, "x", "t", {}),
    "smooth_l1_loss(x, t)": (SmoothL1, "x", "t", {}),
    "huber_loss(x, t)": (Huber, "x", "t", {}),
    "kl_div(lp, q)": (KLDiv, "lp", "q", {}),
    "nll_loss(lp, cls, weight=w)": (NLL, "lp", "cls", {"weight": "w"}),
    "cross_entropy(x, cls, weight=w)": (CrossEntropy, "x", "cls", {"weight": "w"}),
    "cross_entropy(x, cls, label_smoothing=0.1)": (
        CrossEntropy,
        "x",
        "cls",
        {"label_smoothing": 0.1},
    ),
    "cross_entropy(x3, c3)": (CrossEntropy, "x3", "c3", {}),
    "mse_loss(x, t)": (MSE, "x", "t", {}),
    "cross_entropy(x, q)": (CrossEntropy, "x", "q", {}),
    "cross_entropy(x, q, weight=w, label_smoothing=0.1)": (
        CrossEntropy,
        "x",
        "q",
        {"weight": "w", "label_smoothing": 0.1},
    ),
    "binary_cross_entropy(u, q, weight=w)": (BCE, "u", "q", {"weight": "w"}),
    "poisson_nll_loss(x, u)": (PoissonNLL, "x", "u", {}),
    "poisson_nll_loss(u, counts, log_input=False, full=True)": (
        PoissonNLL,
        "u",
        "counts",
        {"log_input": False, "full": True},
    ),
    "hinge_embedding_loss(x, sign, margin=0.5)": (HingeEmbedding, "x", "sign", {"margin": 0.5}),
    "multi_margin_loss(x, cls, margin=0.8)": (MultiMargin, "x", "cls", {"margin": 0.8}),
    "multi_margin_loss(x, cls, p=2, weight=w)": (
        MultiMargin,
        "x",
        "cls",
        {"p": 2, "weight": "w"},
    ),
    "soft_margin_loss(x, sign)": (SoftMargin, "x", "sign", {}),
}


@for_each("case", OF_TORCH)
def test_losses_equal_torchs(case):
    """golden/g15_losses and g15b_losses: torch 2.13.0 and 2.14.1 in float64, each reduction."""
    with np.load(GOLDEN[f"{case}|mean.loss" not in np.load(GOLDEN[0])]) as stored:
        golden = dict(stored)
    kind, x, y, options = OF_TORCH[case]
    given = {k: golden[v].tolist() if isinstance(v, str) else v for k, v in options.items()}
    prediction = np.moveaxis(golden[x], 1, -1)  # classes are the last axis here
    target = (
        golden[y] if kind in (CrossEntropy, NLL, MultiMargin) else np.moveaxis(golden[y], 1, -1)
    )
    reductions = [r for r in ("mean", "sum", "batchmean") if f"{case}|{r}.loss" in golden]
    assert len(reductions) == (3 if kind is KLDiv else 2)
    for reduction in reductions:
        loss = kind(reduction=reduction, **given)
        value, slope = loss.value_and_grad(prediction, target)
        assert value == pytest.approx(float(golden[f"{case}|{reduction}.loss"]), rel=1e-12)
        wanted = np.moveaxis(golden[f"{case}|{reduction}.grad"], 1, -1)
        np.testing.assert_allclose(slope, wanted, rtol=1e-12, atol=1e-14)


def test_a_fused_loss_has_no_chunks(refuse):
    loss = {"kind": "cross_entropy", "implementation": "fused", "num_chunks": 8}
    (line,) = refuse({"workload.loss": loss})
    assert line.endswith("num_chunks: a fused loss has no copies to cut into chunks; leave it out.")


def test_inference_keeps_no_outputs_for_backward(refuse):
    lines = refuse({"workload.mode": "inference", "workload.keeps_outputs": False})
    assert "workload.keeps_outputs: mode: inference trains nothing; leave this out." in lines
