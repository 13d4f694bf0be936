"""Loss functions of torch.nn: the base classes and the table of kinds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.family import Family
from simdp.spec import Spec, one_of


class Loss(Spec):
    """Base of losses."""

    kind: str

    of_classes: ClassVar[bool] = False
    """Whether targets are class indices (whole numbers)."""

    num_kept: ClassVar[int] = 0
    """Tensors of the prediction's size that torch's loss keeps from forward for backward."""

    num_gradients: ClassVar[int] = 1
    """Tensors of the prediction's size that its backward holds at a time."""

    @property
    def is_fused(self) -> bool:
        """Whether one kernel each way reads outputs of low precision without a copy in 32 bits."""
        return False

    @property
    def copied_share(self) -> float:
        """Share of the prediction that is copied to 32 bits at a time."""
        return 1.0

    def backward_nbytes(self, width: float, made: float) -> float:
        """Bytes at the peak of its backward, besides the outputs.

        Parameters
        ----------
        width, made : float
            Bytes of the outputs in full precision, and as the model makes them.
        """
        return (self.num_kept + self.num_gradients) * width

    @property
    def adds(self) -> bool:
        """Whether the losses of parts sum to the whole's; else their mean by `count` equals it."""
        return False

    @abstractmethod
    def count(self, target: Array) -> float:
        """Divisor of the mean over these targets: samples, counted targets, or their weights."""

    def ignored(self, target: Array) -> Array:
        """Mask of the targets that do not count, in their shape; none by default."""
        return np.zeros(target.shape, dtype=bool)

    def ignored_label(self) -> int | None:
        """Target that a dataset writes for nothing to predict; None if all targets count."""
        return None

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a sample's target for the model's output; the same by default."""
        return output_shape

    def drawn(self, y: Array) -> Array:
        """Convert real numbers, which synthetic datasets draw, to targets of this loss."""
        return y

    @abstractmethod
    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        """Return the loss and its gradient with respect to the prediction; the count is above 0."""

    @abstractmethod
    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        """Reason why a dataset's targets do not fit a model's output, or None.

        ``target`` are all targets, `(num_samples, ...)`; ``output_shape`` is that of one sample.
        """


LOSSES: Family[Loss] = Family(
    "losses",
    Loss,
    __name__,
    {
        "bce": "classification:BCE",
        "bce_with_logits": "classification:BCEWithLogits",
        "cross_entropy": "classification:CrossEntropy",
        "hinge_embedding": "classification:HingeEmbedding",
        "huber": "regression:Huber",
        "kl_div": "classification:KLDiv",
        "l1": "regression:L1",
        "mse": "regression:MSE",
        "multi_margin": "classification:MultiMargin",
        "nll": "classification:NLL",
        "none": "NoLoss",
        "poisson_nll": "regression:PoissonNLL",
        "smooth_l1": "regression:SmoothL1",
        "soft_margin": "classification:SoftMargin",
    },
)


AnyLoss = Annotated[Loss, one_of("loss", LOSSES, default="mse")]


class Elementwise(Loss):
    """Mean or sum over all elements of prediction and target."""

    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the elements."""

    @property
    def adds(self) -> bool:
        return self.reduction == "sum"

    def count(self, target: Array) -> float:
        return len(target)

    @abstractmethod
    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        """Loss and gradient of every element, new arrays; the second is modified in place."""

    def divisor(self, prediction: Array) -> int:
        """Divisor of the sum over all elements."""
        return 1 if self.reduction == "sum" else prediction.size

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        values, slope = self.each(prediction, target)
        divisor = self.divisor(prediction)
        slope *= 1 / divisor
        return float(values.sum() / divisor), slope

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if target.shape[1:] != output_shape:
            return (
                f"y has shape {target.shape}, but the model makes {output_shape} of each sample; "
                f"give y the shape {(len(target), *output_shape)}."
            )
        if not np.issubdtype(target.dtype, np.floating) or not np.isfinite(target).all():
            return f"y is {target.dtype} or has values that are not finite; give finite floats."
        return self.problem_with_values(target)

    def problem_with_values(self, target: Array) -> str | None:
        """Reason why finite targets of the right shape are invalid, or None."""
        return None


class NoLoss(Loss):
    """For models that have times but no numbers; takes no time itself."""

    kind: Literal["none"] = "none"

    def count(self, target: Array) -> float:
        return 0

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        raise AssertionError("a model without numbers makes no prediction")

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        return None
