"""Loss functions of torch.nn: the base classes and the table of kinds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.family import Family
from simdp.spec import Spec, one_of


class Loss(Spec):
    """What is made small."""

    kind: str

    of_classes: ClassVar[bool] = False
    """Whether targets are class indices, which are whole numbers."""

    num_kept: ClassVar[int] = 0
    """Tensors like the prediction that torch's loss keeps from forward for backward."""

    num_gradients: ClassVar[int] = 1
    """Tensors like the prediction that there are at a time in its backward."""

    @property
    def adds(self) -> bool:
        """Whether losses of parts add up to that of the whole; else its mean by `count` is."""
        return False

    @abstractmethod
    def count(self, target: Array) -> float:
        """What the loss of these targets averages: samples, targets that count, their weights."""

    def ignored(self, target: Array) -> Array:
        """Which elements of these targets do not count, shaped like them; by default none."""
        return np.zeros(target.shape, dtype=bool)

    def ignored_label(self) -> int | None:
        """What a data set writes where nothing is to be told; None where all targets count."""
        return None

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a sample's target where the model makes this of it; by default the same."""
        return output_shape

    def drawn(self, y: Array) -> Array:
        """Make of real numbers, such as synthetic data sets draw, targets of the loss."""
        return y

    @abstractmethod
    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        """Return the loss and its gradient by the prediction; the count is above 0."""

    @abstractmethod
    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        """Say why targets do not fit a model's output, or None; the targets are all of a data set.

        Parameters
        ----------
        target : ndarray, shape `(num_samples, ...)`
            The data set's ``y``.
        output_shape : tuple of int
            What the model makes of one sample.
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
    """Mean or sum over every element of what prediction and target have between them.

    Attributes
    ----------
    reduction : {"mean", "sum"}
        What is made of the elements.
    """

    reduction: Literal["mean", "sum"] = "mean"

    @property
    def adds(self) -> bool:
        return self.reduction == "sum"

    def count(self, target: Array) -> float:
        return len(target)

    @abstractmethod
    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        """Loss and gradient of every element, new arrays; the second is changed in place."""

    def divisor(self, prediction: Array) -> int:
        """What the sum of all elements is divided by."""
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
        """Say what else is wrong with finite targets of the right shape; by default nothing."""
        return None


class NoLoss(Loss):
    """For a model that has times but no numbers; takes no time itself."""

    kind: Literal["none"] = "none"

    def count(self, target: Array) -> float:
        return 0

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        raise AssertionError("a model without numbers makes no prediction")

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        return None
