"""ImageModel: base of the models that take images; ImageGraph: a graph of feature maps."""

from __future__ import annotations

from pydantic import Field

from simdp.spec import Float, Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.base import Layer, Shape
from simdp.workload.layers.batch_norm2d import BatchNorm2d
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.conv2d import Conv2d
from simdp.workload.layers.pairs import Pair
from simdp.workload.layers.parameter import Parameter
from simdp.workload.models.base import Model


class ImageModel(Model):
    """Takes square images of shape `(in_channels, image_size, image_size)`.

    Attributes
    ----------
    num_classes : int
        Classes to tell apart.
    in_channels : int
        Channels of an image.
    image_size : int
        Height and width of an image [pixels].
    width_multiplier : float
        What every number of channels is multiplied by; 1 is the model as published.
    """

    num_classes: Int = Field(1000, ge=1, le=10**7)
    in_channels: Int = Field(3, ge=1, le=10**6)
    image_size: Int = Field(224, ge=1, le=10**5)
    width_multiplier: Float = Field(1.0, gt=0, le=1000)

    def scaled(self, channels: int) -> int:
        """A published number of channels, times the width multiplier; 1 at least."""
        return max(1, round(channels * self.width_multiplier))

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.in_channels, self.image_size, self.image_size)}


def fan_out(parameter: Parameter) -> int:
    """Outputs that an input of a convolution goes to: output channels times the kernel's places."""
    out, _, tall, wide = parameter.shape
    return out * tall * wide


class ImageGraph:
    """Builds a graph whose values are feature maps, and remembers the channels of each.

    Parameters
    ----------
    in_channels : int
        Of the images.
    eps, momentum : float
        Of every batch norm.

    Attributes
    ----------
    graph : GraphBuilder
        For layers whose values are no feature maps.
    x : Value
        The images.
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.graph = GraphBuilder("x")
        self.x = self.graph.input("x")
        self._eps, self._momentum = eps, momentum
        self._channels = {self.x: in_channels}

    def channels(self, x: Value) -> int:
        """Channels of a value."""
        return self._channels[x]

    def call(self, layer: Layer, *inputs: Value) -> Value:
        """Append a layer that keeps the channels of what it is given."""
        return self._call(layer, self._channels[inputs[0]], *inputs)

    def conv(
        self,
        name: str,
        x: Value,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int = 1,
        padding: int | Pair | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> Value:
        """Append a convolution; without ``padding`` half the kernel, which keeps the size."""
        tall, wide = kernel_size if isinstance(kernel_size, tuple) else (kernel_size, kernel_size)
        conv = Conv2d(
            name=name,
            in_channels=self._channels[x],
            out_channels=out_channels,
            kernel_size=(tall, wide),
            stride=stride,
            padding=(tall // 2, wide // 2) if padding is None else padding,
            groups=groups,
            bias=bias,
        )
        return self._call(conv, out_channels, x)

    def batch_norm(self, name: str, x: Value) -> Value:
        """Append a batch norm."""
        norm = BatchNorm2d(
            name=name, num_features=self._channels[x], eps=self._eps, momentum=self._momentum
        )
        return self.call(norm, x)

    def concat(self, name: str, *inputs: Value) -> Value:
        """Put the channels of several values behind each other."""
        return self._call(Concat(name=name), sum(self._channels[x] for x in inputs), *inputs)

    def _call(self, layer: Layer, channels: int, *inputs: Value) -> Value:
        y = self.graph.call(layer, *inputs)
        self._channels[y] = channels
        return y
