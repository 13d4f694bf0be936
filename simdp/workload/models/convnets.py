"""Convolutional classifiers: ResNet, VGG, Inception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.activations.rectifiers import ReLU
from simdp.workload.layers.base import (
    GraphBuilder,
    Initial,
    Layer,
    ModelGraph,
    Parameter,
    Shape,
    Value,
    constant,
    kaiming_normal,
    normal,
    trunc_normal,
)
from simdp.workload.layers.batchnorm import BatchNorm2d
from simdp.workload.layers.conv import Conv2d
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from simdp.workload.layers.tensor_ops import Add, Concat, Dropout, Flatten, Pair
from simdp.workload.models.base import Model


class ImageModel(Model):
    """Base of models of square images, shape `(in_channels, image_size, image_size)`."""

    num_classes: Int = Field(1000, ge=1, le=10**7)
    """Number of classes."""
    in_channels: Int = Field(3, ge=1, le=10**6)
    """Channels of an image."""
    image_size: Int = Field(224, ge=1, le=10**5)
    """Height and width of an image [pixels]."""
    width_multiplier: Float = Field(1.0, gt=0, le=1000)
    """Factor of all numbers of channels; 1 is the model as published."""

    def scaled(self, channels: int) -> int:
        """A published number of channels, times the width multiplier; at least 1."""
        return max(1, round(channels * self.width_multiplier))

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.in_channels, self.image_size, self.image_size)}


def fan_out(parameter: Parameter) -> int:
    """Output channels of a convolution times its kernel's size."""
    out, _, tall, wide = parameter.shape
    return out * tall * wide


Conv = tuple[int, int, int, int]
"""Channels, kernel, stride and groups of a residual block's convolution."""


def basic_block(channels: int, stride: int) -> list[Conv]:
    """Two 3x3 convolutions."""
    return [(channels, 3, stride, 1), (channels, 3, 1, 1)]


class ImageGraph:
    """Builds a graph of feature maps and tracks the channels of each value.

    Attributes
    ----------
    graph : GraphBuilder
        For layers with other outputs than feature maps.
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
        """Append a layer that keeps the number of channels."""
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
        """Append a convolution; ``padding`` is half the kernel by default, which keeps the size."""
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
        """Concatenate the channels of several values."""
        return self._call(Concat(name=name), sum(self._channels[x] for x in inputs), *inputs)

    def residual(self, name: str, x: Value, convs: Sequence[Conv], stride: int) -> Value:
        """Append a residual block; the shortcut gets a convolution if its shape differs."""
        h = x
        for number, (channels, kernel, step, groups) in enumerate(convs, 1):
            h = self.conv(f"{name}.conv{number}", h, channels, kernel, step, groups=groups)
            h = self.batch_norm(f"{name}.bn{number}", h)
            if number < len(convs):
                h = self.call(ReLU(name=f"{name}.relu{number}"), h)
        if stride > 1 or self.channels(x) != self.channels(h):
            x = self.conv(f"{name}.downsample.0", x, self.channels(h), 1, stride)
            x = self.batch_norm(f"{name}.downsample.1", x)
        return self.call(ReLU(name=f"{name}.relu"), self.call(Add(name=f"{name}.add"), h, x))

    def _call(self, layer: Layer, channels: int, *inputs: Value) -> Value:
        y = self.graph.call(layer, *inputs)
        self._channels[y] = channels
        return y


class ResNet(ImageModel):
    """Residual blocks in stages; each stage halves the image and doubles the channels.

    Parameters are named as in torchvision: ``conv1.weight``, ..., ``layer1.0.conv1.weight``, ...

    References
    ----------
    He et al., "Deep residual learning for image recognition", CVPR 2016 (arXiv 1512.03385);
    Xie et al., "Aggregated residual transformations", CVPR 2017 (arXiv 1611.05431);
    torchvision/models/resnet.py.
    """

    kind: Literal["resnet"] = "resnet"
    block: Literal["basic", "bottleneck"] = "basic"
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1 with four times the channels at the end."""
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field([2, 2, 2, 2], min_length=1)
    """Blocks in each stage."""
    groups: Int = Field(1, ge=1, le=10**6)
    """Of the 3x3 convolutions of bottlenecks; ResNeXt-50 32x4d has 32 groups of width 4."""
    width_per_group: Int = Field(64, ge=1, le=10**6)
    """Of the 3x3 convolutions of bottlenecks; ResNeXt-50 32x4d has 32 groups of width 4."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """7x7 of stride 2 and a max pooling, or 3x3 of stride 1 for small images."""

    @model_validator(mode="after")
    def _basic_blocks_have_no_groups(self) -> Self:
        if self.block == "basic" and (self.groups, self.width_per_group) != (1, 64):
            raise problem(
                "basic blocks have no groups; leave groups and width_per_group out, "
                "or write block: bottleneck."
            )
        return self

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) != 4:
            return parameter.initial
        return kaiming_normal(fan_out(parameter))  # torchvision: mode="fan_out"

    def build(self) -> ModelGraph:
        net = ImageGraph(self.in_channels)
        h = self._stem(net)
        for stage, depth in enumerate(self.layers):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                name = f"layer{stage + 1}.{number}"
                convs = self._convs(self.scaled(64 * 2**stage), stride)
                h = net.residual(name, h, convs, stride)
        fan_in = net.channels(h)
        h = net.call(AdaptiveAvgPool2d(name="avgpool", output_size=1), h)
        h = net.graph.call(Flatten(name="flatten"), h)
        fc = Linear(name="fc", in_features=fan_in, out_features=self.num_classes)
        return net.graph.build(net.graph.call(fc, h))

    def _stem(self, net: ImageGraph) -> Value:
        kernel, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        h = net.conv("conv1", net.x, self.scaled(64), kernel, stride)
        h = net.call(ReLU(name="relu"), net.batch_norm("bn1", h))
        if self.stem == "cifar":
            return h
        return net.call(MaxPool2d(name="maxpool", kernel_size=3, stride=2, padding=1), h)

    def _convs(self, planes: int, stride: int) -> list[Conv]:
        if self.block == "basic":
            return basic_block(planes, stride)
        width = max(1, planes * self.width_per_group // 64) * self.groups
        return [(width, 1, 1, 1), (width, 3, stride, self.groups), (4 * planes, 1, 1, 1)]


POOLED = 7
"""Height and width of the classifier's feature maps."""


class VGG(ImageModel):
    """Stages of 3x3 convolutions, each with a max pooling at its end; three linear layers.

    Parameters are named as in torchvision: ``features.0.weight``, ..., ``classifier.6.bias``.

    References
    ----------
    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015 (arXiv 1409.1556); torchvision/models/vgg.py.
    """

    kind: Literal["vgg"] = "vgg"
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field([2, 2, 3, 3, 3], min_length=1)
    """Convolutions in each stage."""
    batch_norm: Bool = False
    """Whether a batch norm follows each convolution."""
    dropout: Float = Field(0.5, ge=0, le=1)
    """Share of the classifier's hidden values that is dropped."""

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 4:
            return kaiming_normal(fan_out(parameter))  # torchvision: mode="fan_out"
        if len(parameter.shape) == 2:
            return normal(0.01)
        return constant(0.0) if parameter.name.endswith(".bias") else parameter.initial

    def build(self) -> ModelGraph:
        net = ImageGraph(self.in_channels)
        h = self._features(net)
        fan_in = net.channels(h) * POOLED**2
        h = net.call(AdaptiveAvgPool2d(name="avgpool", output_size=POOLED), h)
        h = net.graph.call(Flatten(name="flatten"), h)
        return net.graph.build(self._classifier(net.graph, h, fan_in))

    def _features(self, net: ImageGraph) -> Value:
        h, index = net.x, 0
        for stage, depth in enumerate(self.layers):
            channels = self.scaled(min(64 * 2**stage, 512))
            for _ in range(depth):
                h = net.conv(f"features.{index}", h, channels, 3, bias=True)
                if self.batch_norm:
                    index += 1
                    h = net.batch_norm(f"features.{index}", h)
                h = net.call(ReLU(name=f"features.{index + 1}"), h)
                index += 2
            h = net.call(MaxPool2d(name=f"features.{index}", kernel_size=2, stride=2), h)
            index += 1
        return h

    def _classifier(self, graph: GraphBuilder, h: Value, fan_in: int) -> Value:
        hidden = self.scaled(4096)
        before = fan_in
        for number, after in enumerate((hidden, hidden, self.num_classes)):
            if number:
                h = graph.call(ReLU(name=f"classifier.{3 * number - 2}"), h)
                h = graph.call(Dropout(name=f"classifier.{3 * number - 1}", p=self.dropout), h)
            name = f"classifier.{3 * number}"
            h = graph.call(Linear(name=name, in_features=before, out_features=after), h)
            before = after
        return h


EPS = 1e-3
"""eps of every batch norm."""

AUX_WEIGHT = 0.4
"""Weight of the auxiliary loss, as in torchvision's training reference."""


class Inception(ImageModel):
    """Blocks of parallel convolutions with concatenated outputs.

    Parameters are named as in torchvision: ``Conv2d_1a_3x3.conv.weight``, ..., ``fc.bias``.

    References
    ----------
    Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016 (arXiv
    1512.00567); torchvision/models/inception.py.
    """

    kind: Literal["inception"] = "inception"
    image_size: Int = Field(299, ge=1, le=10**5)
    aux_logits: Bool = True
    """Whether there is a second classifier in the middle of the model, with a loss of weight
    0.4."""
    dropout: Float = Field(0.5, ge=0, le=1)
    """Share of the values before the last layer that is dropped."""

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) < 2:
            return parameter.initial
        return trunc_normal(0.001 if parameter.name == "AuxLogits.fc.weight" else 0.1)

    def build(self) -> ModelGraph:
        net = _Net(self)
        h = net.stem()
        for name, pool_channels in (("5b", 32), ("5c", 64), ("5d", 64)):
            h = net.mixed_5(f"Mixed_{name}", h, pool_channels)
        h = net.mixed_6a("Mixed_6a", h)
        for name, channels in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
            h = net.mixed_6(f"Mixed_{name}", h, channels)
        aux = [(net.aux("AuxLogits", h), AUX_WEIGHT)] if self.aux_logits else []
        h = net.mixed_7a("Mixed_7a", h)
        for name in ("7b", "7c"):
            h = net.mixed_7(f"Mixed_{name}", h)
        h = net.call(AdaptiveAvgPool2d(name="avgpool", output_size=1), h)
        h = net.call(Dropout(name="dropout", p=self.dropout), h)
        return net.graph.build(net.classifier("", h), *aux)


class _Net(ImageGraph):
    """Blocks with torchvision's names and the published numbers of channels."""

    def __init__(self, model: Inception) -> None:
        super().__init__(model.in_channels, eps=EPS)
        self.model = model

    def unit(
        self,
        name: str,
        x: Value,
        channels: int,
        kernel: int | Pair,
        stride: int = 1,
        padding: int | None = None,
    ) -> Value:
        """Convolution, batch norm and relu; by default ``padding`` keeps the size."""
        h = self.conv(f"{name}.conv", x, self.model.scaled(channels), kernel, stride, padding)
        return self.call(ReLU(name=f"{name}.relu"), self.batch_norm(f"{name}.bn", h))

    def stem(self) -> Value:
        """Five convolutions and two poolings."""
        h = self.unit("Conv2d_1a_3x3", self.x, 32, 3, stride=2, padding=0)
        h = self.unit("Conv2d_2a_3x3", h, 32, 3, padding=0)
        h = self.unit("Conv2d_2b_3x3", h, 64, 3)
        h = self.halved("maxpool1", h)
        h = self.unit("Conv2d_3b_1x1", h, 80, 1)
        h = self.unit("Conv2d_4a_3x3", h, 192, 3, padding=0)
        return self.halved("maxpool2", h)

    def mixed_5(self, name: str, x: Value, pool_channels: int) -> Value:
        """InceptionA."""
        single = self.unit(f"{name}.branch1x1", x, 64, 1)
        five = self.unit(f"{name}.branch5x5_1", x, 48, 1)
        five = self.unit(f"{name}.branch5x5_2", five, 64, 5)
        three = self.unit(f"{name}.branch3x3dbl_1", x, 64, 1)
        three = self.unit(f"{name}.branch3x3dbl_2", three, 96, 3)
        three = self.unit(f"{name}.branch3x3dbl_3", three, 96, 3)
        return self.concat(
            f"{name}.concat", single, five, three, self.pooled(name, x, pool_channels)
        )

    def mixed_6a(self, name: str, x: Value) -> Value:
        """InceptionB."""
        once = self.unit(f"{name}.branch3x3", x, 384, 3, stride=2, padding=0)
        twice = self.unit(f"{name}.branch3x3dbl_1", x, 64, 1)
        twice = self.unit(f"{name}.branch3x3dbl_2", twice, 96, 3)
        twice = self.unit(f"{name}.branch3x3dbl_3", twice, 96, 3, stride=2, padding=0)
        return self.concat(f"{name}.concat", once, twice, self.halved(f"{name}.pool", x))

    def mixed_6(self, name: str, x: Value, channels: int) -> Value:
        """InceptionC."""
        single = self.unit(f"{name}.branch1x1", x, 192, 1)
        seven = self.unit(f"{name}.branch7x7_1", x, channels, 1)
        seven = self.unit(f"{name}.branch7x7_2", seven, channels, (1, 7))
        seven = self.unit(f"{name}.branch7x7_3", seven, 192, (7, 1))
        twice = self.unit(f"{name}.branch7x7dbl_1", x, channels, 1)
        twice = self.unit(f"{name}.branch7x7dbl_2", twice, channels, (7, 1))
        twice = self.unit(f"{name}.branch7x7dbl_3", twice, channels, (1, 7))
        twice = self.unit(f"{name}.branch7x7dbl_4", twice, channels, (7, 1))
        twice = self.unit(f"{name}.branch7x7dbl_5", twice, 192, (1, 7))
        return self.concat(f"{name}.concat", single, seven, twice, self.pooled(name, x, 192))

    def mixed_7a(self, name: str, x: Value) -> Value:
        """InceptionD."""
        three = self.unit(f"{name}.branch3x3_1", x, 192, 1)
        three = self.unit(f"{name}.branch3x3_2", three, 320, 3, stride=2, padding=0)
        seven = self.unit(f"{name}.branch7x7x3_1", x, 192, 1)
        seven = self.unit(f"{name}.branch7x7x3_2", seven, 192, (1, 7))
        seven = self.unit(f"{name}.branch7x7x3_3", seven, 192, (7, 1))
        seven = self.unit(f"{name}.branch7x7x3_4", seven, 192, 3, stride=2, padding=0)
        return self.concat(f"{name}.concat", three, seven, self.halved(f"{name}.pool", x))

    def mixed_7(self, name: str, x: Value) -> Value:
        """InceptionE."""
        single = self.unit(f"{name}.branch1x1", x, 320, 1)
        three = self.unit(f"{name}.branch3x3_1", x, 384, 1)
        three = self.forked(f"{name}.branch3x3_2", three)
        twice = self.unit(f"{name}.branch3x3dbl_1", x, 448, 1)
        twice = self.unit(f"{name}.branch3x3dbl_2", twice, 384, 3)
        twice = self.forked(f"{name}.branch3x3dbl_3", twice)
        return self.concat(f"{name}.concat", single, three, twice, self.pooled(name, x, 192))

    def aux(self, name: str, x: Value) -> Value:
        """InceptionAux."""
        h = self.call(AvgPool2d(name=f"{name}.pool", kernel_size=5, stride=3), x)
        h = self.unit(f"{name}.conv0", h, 128, 1)
        h = self.unit(f"{name}.conv1", h, 768, 5, padding=0)
        h = self.call(AdaptiveAvgPool2d(name=f"{name}.avgpool", output_size=1), h)
        return self.classifier(f"{name}.", h)

    def forked(self, name: str, x: Value) -> Value:
        """Parallel 1x3 and 3x1 convolutions."""
        wide = self.unit(f"{name}a", x, 384, (1, 3))
        tall = self.unit(f"{name}b", x, 384, (3, 1))
        return self.concat(f"{name}.concat", wide, tall)

    def pooled(self, name: str, x: Value, channels: int) -> Value:
        """Average pooling, then a convolution."""
        pool = AvgPool2d(name=f"{name}.pool", kernel_size=3, stride=1, padding=1)
        return self.unit(f"{name}.branch_pool", self.call(pool, x), channels, 1)

    def halved(self, name: str, x: Value) -> Value:
        """Max pooling that halves the image."""
        return self.call(MaxPool2d(name=name, kernel_size=3, stride=2), x)

    def classifier(self, prefix: str, x: Value) -> Value:
        """Last layer of the model or of its auxiliary part."""
        features, classes = self.channels(x), self.model.num_classes
        h = self.graph.call(Flatten(name=f"{prefix}flatten"), x)
        fc = Linear(name=f"{prefix}fc", in_features=features, out_features=classes)
        return self.graph.call(fc, h)
