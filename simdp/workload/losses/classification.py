"""Losses of classes, signs and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.activations import log_softmax, logistic
from simdp.workload.losses import Elementwise, Loss

Weights = Annotated[tuple[Annotated[Float, Field(ge=0)], ...], Field(min_length=1)]


LEAST_LOG = -100.0
"""Logarithms of probabilities are at least this, as in torch, so that a loss is finite."""


class Binary(Elementwise):
    """Base: targets are shares from 0 to 1."""

    weight: Weights | None = None
    """w, one for each position of the last axis; the mean still divides by the number of
    elements."""

    def weighted(self, values: Array, slope: Array) -> tuple[Array, Array]:
        """Multiply both by the weight, in place."""
        if self.weight is not None:
            weight = np.asarray(self.weight, dtype=values.dtype)
            values *= weight
            slope *= weight
        return values, slope

    def drawn(self, y: Array) -> Array:
        return logistic(y)

    def problem_with_values(self, target: Array) -> str | None:
        width = target.shape[-1] if target.ndim > 1 else 1
        for key in ("weight", "pos_weight"):
            given = getattr(self, key, None)
            if given is not None and len(given) not in (1, width):
                return (
                    f"the loss has a {key} of {len(given)} values, but the last axis of y has "
                    f"{width}; give one for each."
                )
        if target.size and (target.min() < 0 or target.max() > 1):
            return (
                f"y holds {target.min()} ... {target.max()}, but {self.kind} needs shares; "
                "give values from 0 to 1."
            )
        return None


class BCE(Binary):
    """Mean over elements of ``-w (t log x + (1 - t) log(1 - x))``; predictions are probabilities.

    Predictions outside of [0, 1], which torch rejects, give nan.
    """

    kind: Literal["bce"] = "bce"

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        against = 1 - prediction
        with np.errstate(divide="ignore", invalid="ignore"):
            for_it, not_it = np.log(prediction), np.log1p(-prediction)
        values = -target * np.maximum(for_it, LEAST_LOG)
        values -= (1 - target) * np.maximum(not_it, LEAST_LOG)
        slope = (prediction - target) / np.maximum(against * prediction, 1e-12)
        return self.weighted(values, slope.astype(prediction.dtype))


class BCEWithLogits(Binary):
    """Mean over elements of binary cross-entropy of logits.

    ``-w (p t log s(x) + (1 - t) log(1 - s(x)))`` with the logistic function s.
    """

    kind: Literal["bce_with_logits"] = "bce_with_logits"
    pos_weight: Weights | None = None
    """p, weight of positive targets, one for each position of the last axis."""

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        more: Array = target
        if self.pos_weight is not None:
            more = target * np.asarray(self.pos_weight, dtype=prediction.dtype)
        # log(1 + exp(-x)) and its slope, -s(-x)
        soft, against = np.logaddexp(0, -prediction), logistic(-prediction)
        both = more + (1 - target)
        return self.weighted((1 - target) * prediction + both * soft, (1 - target) - both * against)


class KLDiv(Elementwise):
    """Mean over elements of ``t (log t - prediction)``; predictions are log-probabilities."""

    kind: Literal["kl_div"] = "kl_div"
    reduction: Literal["mean", "sum", "batchmean"] = "mean"  # type: ignore[assignment]
    """Reduction over the elements; the divergence itself is batchmean, the mean over samples."""
    log_target: Bool = False
    """Whether targets are logarithms too."""

    def divisor(self, prediction: Array) -> int:
        return len(prediction) if self.reduction == "batchmean" else super().divisor(prediction)

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        if self.log_target:
            known, log = np.exp(target), target
        else:
            known, log = target, np.log(np.where(target > 0, target, 1))
        return known * (log - prediction), -known

    def drawn(self, y: Array) -> Array:
        log = log_softmax(y)
        return log if self.log_target else np.exp(log)

    def problem_with_values(self, target: Array) -> str | None:
        if self.log_target or target.min(initial=0) >= 0:
            return None
        return (
            f"y holds {target.min()}, but kl_div needs probabilities; give none below 0, or write "
            "log_target: true."
        )


class OfClasses(Loss):
    """Mean or sum over the targets that count; the classes are the last axis of the prediction."""

    of_classes: ClassVar[bool] = True

    weight: tuple[Annotated[Float, Field(ge=0)], ...] | None = None
    """Weight of each class's targets; the mean divides by the sum of the weights."""
    ignore_index: Int = -100
    """Targets with this value do not count."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the targets."""

    @property
    def adds(self) -> bool:
        return self.reduction == "sum"

    def count(self, target: Array) -> float:
        counting = target != self.ignore_index
        if self.weight is None:
            return int(np.count_nonzero(counting))
        return float(np.asarray(self.weight)[target[counting]].sum())

    def ignored(self, target: Array) -> Array:
        ignored: Array = target == self.ignore_index
        return ignored

    def ignored_label(self) -> int | None:
        return self.ignore_index

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape[:-1]

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if not output_shape:
            return f"the model makes one number of each sample, but {self.kind} needs classes."
        if target.shape[1:] != self.target_shape(output_shape):
            wanted = (len(target), *self.target_shape(output_shape))
            return f"y has shape {target.shape}, but {self.kind} needs class indices {wanted}."
        if not np.issubdtype(target.dtype, np.integer):
            return f"y is {target.dtype}, but {self.kind} needs class indices: whole numbers."
        counting = target[target != self.ignore_index]
        classes = output_shape[-1]
        if wrong := problem_with_weight(self.weight, classes):
            return wrong
        if counting.size and (counting.min() < 0 or counting.max() >= classes):
            low, high = int(counting.min()), int(counting.max())
            return (
                f"y holds labels {low} ... {high}, but the model has {classes} classes; "
                f"labels must be 0 ... {classes - 1} or ignore_index {self.ignore_index}."
            )
        return None


def problem_with_weight(weight: Sequence[float] | None, classes: int) -> str | None:
    """Error if the number of weights is not the number of classes, or None."""
    if weight is None or len(weight) == classes:
        return None
    return (
        f"the loss has a weight of {len(weight)} values, but the model has "
        f"{classes} classes; give one for each."
    )


class CrossEntropy(OfClasses):
    """Mean over the targets that count; the classes are the last axis of the prediction.

    ``-(1 - s) w[label] log p[label] - s / C sum_c w[c] log p[c]`` with ``p = softmax(prediction)``,
    C classes, their weights w and s the label smoothing.

    Float targets of the prediction's shape are class probabilities q: ``-sum_c w[c] ((1 - s) q[c] +
    s / C) log p[c]``, averaged over all targets. The memory of targets is counted as of indices.
    """

    kind: Literal["cross_entropy"] = "cross_entropy"

    # torch: log_softmax keeps its output; nll_loss's gradient coexists with log_softmax's.
    num_kept: ClassVar[int] = 1
    num_gradients: ClassVar[int] = 2

    label_smoothing: Float = Field(0.0, ge=0, le=1)
    """Share of a target that is spread over all classes."""
    implementation: Literal["torch", "fused"] = "torch"
    """Memory on a device: of torch's log_softmax and nll_loss in 32 bits; or of one kernel each
    way, which keeps the logits as they are and makes their gradient in their dtype, as in
    flash-attn, Apex, Liger and a compiled loss. The numbers are the same, and the times: those of
    torch's kernels."""
    num_chunks: Int = Field(1, ge=1, le=10**4)
    """Chunks of tokens that torch's kernels work on one after the other (torchtune, litgpt), with a
    copy of one chunk in 32 bits at a time."""

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        if self.implementation == "fused" and self.num_chunks > 1:
            raise problem(
                "num_chunks: a fused loss has no copies to cut into chunks; leave it out."
            )
        return self

    @property
    def is_fused(self) -> bool:
        return self.implementation == "fused"

    @property
    def copied_share(self) -> float:
        return 1 / self.num_chunks

    def backward_nbytes(self, width: float, made: float) -> float:
        if self.is_fused:
            return made
        n = self.num_chunks  # of which the last has no gradient in the outputs' dtype yet
        return max(width * (1 + 2 / n), made * (1 - 1 / n) + 3 * width / n)

    def count(self, target: Array) -> float:
        return target.size / target.shape[-1] if _is_soft(target) else super().count(target)

    def ignored(self, target: Array) -> Array:
        if _is_soft(target):
            return np.zeros(target.shape[:-1], dtype=bool)
        return super().ignored(target)

    def drawn(self, y: Array) -> Array:
        return np.exp(log_softmax(y))

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if not _is_soft(target) or target.shape[1:] != output_shape or not output_shape:
            return super().problem_with(target, output_shape)
        if target.size and not (target.min() >= 0 and target.max() <= 1):
            return (
                f"y holds {target.min()} ... {target.max()}, but cross_entropy needs probabilities "
                "of classes; give values from 0 to 1, or class indices."
            )
        return problem_with_weight(self.weight, output_shape[-1])

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        if _is_soft(target):
            return self._soft(prediction, target)
        mean = self._mean if self.weight is None else self._weighted_mean
        value, slope = mean(prediction, target)
        if self.reduction == "sum":
            whole = self.count(target)
            value *= whole
            slope *= slope.dtype.type(whole)
        return value, slope

    def _soft(self, prediction: Array, target: Array) -> tuple[float, Array]:
        classes, kind = prediction.shape[-1], prediction.dtype
        pull = target.astype(kind) * (1 - self.label_smoothing) + self.label_smoothing / classes
        if self.weight is not None:
            pull *= np.asarray(self.weight, dtype=kind)
        if self.reduction == "mean":
            pull *= kind.type(1 / self.count(target))
        log = log_softmax(prediction)
        return float(-(pull * log).sum()), np.exp(log) * pull.sum(axis=-1, keepdims=True) - pull

    def _mean(self, prediction: Array, target: Array) -> tuple[float, Array]:
        classes = prediction.shape[-1]
        logits, labels = prediction.reshape(-1, classes), target.reshape(-1)
        rows = np.flatnonzero(labels != self.ignore_index)
        at, smooth = (rows, labels[rows]), self.label_smoothing
        # One array holds the shifted logits, then their exponentials, then the gradient.
        work = logits - logits.max(axis=1, keepdims=True)
        chosen = work[at]
        if smooth:
            chosen = (1 - smooth) * chosen + smooth * work.mean(axis=1)[rows]
        np.exp(work, out=work)
        total = work.sum(axis=1)
        value = (np.log(total[rows]) - chosen).mean()
        work *= (1 / (total * total.dtype.type(len(rows))))[:, None]
        if smooth:
            work -= smooth / (classes * len(rows))
        work[at] -= (1 - smooth) / len(rows)
        if len(rows) < len(labels):
            work[labels == self.ignore_index] = 0
        return float(value), work.reshape(prediction.shape)

    def _weighted_mean(self, prediction: Array, target: Array) -> tuple[float, Array]:
        """Mean of targets weighted by class; the smoothed part by the weights of all classes."""
        labels, smooth = target.reshape(-1), self.label_smoothing
        rows = np.flatnonzero(labels != self.ignore_index)
        at = (np.arange(len(rows)), labels[rows])
        weight = np.asarray(self.weight, dtype=prediction.dtype)
        log = log_softmax(prediction.reshape(len(labels), -1)[rows])
        # Weight of each class in each row.
        pull = np.broadcast_to(weight * (smooth / len(weight)), log.shape).copy()
        pull[at] += (1 - smooth) * weight[at[1]]
        pull /= weight[at[1]].sum()
        slope = np.zeros((len(labels), len(weight)), dtype=prediction.dtype)
        slope[rows] = np.exp(log) * pull.sum(axis=1, keepdims=True) - pull
        return float(-(pull * log).sum()), slope.reshape(prediction.shape)


def _is_soft(target: Array) -> bool:
    return bool(np.issubdtype(target.dtype, np.floating))


# Margins ------------------------------------------------------------------------------------------


class Sided(Elementwise):
    """Base: targets are 1 or -1."""

    def drawn(self, y: Array) -> Array:
        return np.where(y < 0, -1.0, 1.0).astype(y.dtype)

    def problem_with_values(self, target: Array) -> str | None:
        if np.isin(target, (-1, 1)).all():
            return None
        return (
            f"y holds {target.min()} ... {target.max()}, but {self.kind} needs signs; give 1 or -1."
        )


class HingeEmbedding(Sided):
    """Mean over elements of ``x`` where the target is 1, and of ``max(0, margin - x)`` where -1.

    As torch.nn.HingeEmbeddingLoss.
    """

    kind: Literal["hinge_embedding"] = "hinge_embedding"
    margin: Float = 1.0
    """Distance from which unlike pairs cost nothing."""

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        same, short = target == 1, self.margin - prediction
        slope = np.where(same, 1, np.where(short >= 0, -1, 0)).astype(prediction.dtype)
        return np.where(same, prediction, np.maximum(short, 0)), slope


class SoftMargin(Sided):
    """Mean over elements of ``log(1 + exp(-t x))``, as torch.nn.SoftMarginLoss."""

    kind: Literal["soft_margin"] = "soft_margin"

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        signed = target * prediction
        return np.logaddexp(0, -signed), -target * logistic(-signed)


class MultiMargin(OfClasses):
    """Mean over samples of ``w[t] sum_c max(0, margin - x[t] + x[c])^p / C``, c not t.

    As torch.nn.MultiMarginLoss, with C classes; the mean's divisor does not depend on the weights.

    Attributes
    ----------
    weight : list of float or None
        w, one for each class.
    """

    kind: Literal["multi_margin"] = "multi_margin"

    p: Int = Field(1, ge=1, le=2)
    """Exponent."""
    margin: Float = 1.0
    """Margin by which the label's score must exceed the others."""

    def count(self, target: Array) -> float:
        return int(np.count_nonzero(target != self.ignore_index))

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        rows = np.flatnonzero(target != self.ignore_index)
        at, kind = (np.arange(len(rows)), target[rows]), prediction.dtype.type
        given = prediction[rows]
        short = kind(self.margin) - given[at][:, None] + given
        short[at] = 0
        short = np.maximum(short, 0)
        share = np.full(len(rows), kind(1 / prediction.shape[1]))
        if self.weight is not None:
            share *= np.asarray(self.weight, dtype=kind)[at[1]]
        if self.reduction == "mean":
            share /= kind(len(rows))
        gradient = (short > 0).astype(kind) if self.p == 1 else 2 * short
        gradient *= share[:, None]
        gradient[at] = -gradient.sum(axis=1)
        slope = np.zeros_like(prediction)
        slope[rows] = gradient
        return float((share[:, None] * short**self.p).sum()), slope

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if len(output_shape) > 1:
            return (
                f"the model makes {output_shape} of each sample, but multi_margin needs one row of "
                "classes."
            )
        return super().problem_with(target, output_shape)


class NLL(OfClasses):
    """Mean over the targets that count of ``-prediction``, a log-probability."""

    kind: Literal["nll"] = "nll"

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        labels = target.reshape(-1)
        rows = np.flatnonzero(labels != self.ignore_index)
        at = (rows, labels[rows])
        share = np.full(len(rows), 1.0, dtype=prediction.dtype)
        if self.weight is not None:
            share = np.asarray(self.weight, dtype=prediction.dtype)[labels[rows]]
        if self.reduction == "mean":
            share = share / share.sum()
        slope = np.zeros_like(prediction).reshape(len(labels), prediction.shape[-1])
        slope[at] = -share
        value = -(share * prediction.reshape(slope.shape)[at]).sum()
        return float(value), slope.reshape(prediction.shape)
