"""ResNet and ResNeXt, layer by layer as torchvision's."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.graph import Graph, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.adaptive_avg_pool2d import AdaptiveAvgPool2d
from simdp.workload.layers.add import Add
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.parameter import Initial, kaiming_normal
from simdp.workload.models.image import ImageGraph, ImageModel, fan_out


class ResNet(ImageModel):
    """Residual blocks in stages; each stage halves the image and doubles the channels.

    Parameters are named ``conv1.weight``, ``bn1.weight``, ..., ``layer1.0.conv1.weight``, ...,
    ``fc.bias``, as in torchvision.

    Attributes
    ----------
    block : {"basic", "bottleneck"}
        Two 3x3 convolutions, or 1x1, 3x3 and 1x1 with four times the channels at the end.
    layers : list of int
        Blocks in each stage.
    groups, width_per_group : int
        Of the 3x3 convolutions of bottlenecks; ResNeXt-50 32x4d has 32 groups of width 4.
    stem : {"imagenet", "cifar"}
        7x7 of stride 2 and a max pooling, or 3x3 of stride 1 for small images.

    References
    ----------
    He et al., "Deep residual learning for image recognition", CVPR 2016 (arXiv 1512.03385);
    Xie et al., "Aggregated residual transformations", CVPR 2017 (arXiv 1611.05431);
    torchvision/models/resnet.py.
    """

    kind: Literal["resnet"] = "resnet"
    block: Literal["basic", "bottleneck"] = "basic"
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field([2, 2, 2, 2], min_length=1)
    groups: Int = Field(1, ge=1, le=10**6)
    width_per_group: Int = Field(64, ge=1, le=10**6)
    stem: Literal["imagenet", "cifar"] = "imagenet"

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

    def build(self) -> Graph:
        net = ImageGraph(self.in_channels)
        h = self._stem(net)
        for stage, depth in enumerate(self.layers):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                name = f"layer{stage + 1}.{number}"
                h = self._block(net, name, h, self.scaled(64 * 2**stage), stride)
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

    def _block(self, net: ImageGraph, name: str, x: Value, planes: int, stride: int) -> Value:
        convs = self._convs(planes, stride)
        h = x
        for number, (channels, kernel, step, groups) in enumerate(convs, 1):
            h = net.conv(f"{name}.conv{number}", h, channels, kernel, step, groups=groups)
            h = net.batch_norm(f"{name}.bn{number}", h)
            if number < len(convs):
                h = net.call(ReLU(name=f"{name}.relu{number}"), h)
        if stride > 1 or net.channels(x) != net.channels(h):
            x = net.conv(f"{name}.downsample.0", x, net.channels(h), 1, stride)
            x = net.batch_norm(f"{name}.downsample.1", x)
        return net.call(ReLU(name=f"{name}.relu"), net.call(Add(name=f"{name}.add"), h, x))

    def _convs(self, planes: int, stride: int) -> list[tuple[int, int, int, int]]:
        """Channels, kernel, stride and groups of a block's convolutions."""
        if self.block == "basic":
            return [(planes, 3, stride, 1), (planes, 3, 1, 1)]
        width = max(1, planes * self.width_per_group // 64) * self.groups
        return [(width, 1, 1, 1), (width, 3, stride, self.groups), (4 * planes, 1, 1, 1)]
