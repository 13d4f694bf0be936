"""SSD with a ResNet of basic blocks, one-stage detection at six scales, as MLPerf's SSD300."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.graph import Graph, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.add import Add
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.parameter import Initial, constant, kaiming_normal, xavier_uniform
from simdp.workload.models.image import ImageGraph, ImageModel, fan_out

DEFAULTS = (4, 6, 6, 6, 4, 4)
"""Boxes per cell of each map."""

EXTRA = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
"""Of each further block: channels in between and at the end; stride and zeros around the 3x3."""


class SSD(ImageModel):
    """The first three stages of a ResNet, the third at full size, and five further blocks.

    Each of six maps has ``4`` and ``num_classes`` numbers for each of its boxes; the loss sees all
    of them, flattened. SSD's loss, which matches boxes to objects, is not modelled: any loss on
    these outputs leads the same gradients through the model.

    Attributes
    ----------
    layers : list of int
        Residual blocks in each of the three stages.
    num_classes : int
        Classes to tell apart, the background among them.

    References
    ----------
    Liu et al., "SSD: single shot multibox detector", ECCV 2016 (arXiv 1512.02325);
    github.com/mlcommons/training, single_stage_detector/ssd/ssd300.py.
    """

    kind: Literal["ssd_resnet"] = "ssd_resnet"
    num_classes: Int = Field(81, ge=1, le=10**6)
    image_size: Int = Field(300, ge=1, le=10**5)
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field(
        [3, 4, 6], min_length=3, max_length=3
    )

    def initial(self, parameter: Parameter) -> Initial:
        if parameter.name.startswith("model."):
            four = len(parameter.shape) == 4
            return kaiming_normal(fan_out(parameter)) if four else parameter.initial
        if len(parameter.shape) < 4:
            return constant(0.0)
        out, given, tall, wide = parameter.shape
        return xavier_uniform(given * tall * wide, out * tall * wide)

    def build(self) -> Graph:
        net = ImageGraph(self.in_channels)
        h = self._body(net)
        maps = [h]
        for number, (narrow, wide, stride, padding) in enumerate(EXTRA):
            name = f"additional_blocks.{number}"
            h = net.conv(f"{name}.0", h, self.scaled(narrow), 1, bias=True)
            h = net.call(ReLU(name=f"{name}.1"), h)
            h = net.conv(
                f"{name}.2", h, self.scaled(wide), 3, stride, (padding, padding), bias=True
            )
            h = net.call(ReLU(name=f"{name}.3"), h)
            maps.append(h)
        found = []
        for head, each in (("loc", 4), ("conf", self.num_classes)):
            for number, (h, boxes) in enumerate(zip(maps, DEFAULTS, strict=True)):
                y = net.conv(f"{head}.{number}", h, boxes * each, 3, bias=True)
                found.append(net.graph.call(Flatten(name=f"{head}.{number}.flatten"), y))
        return net.graph.build(net.graph.call(Concat(name="concat"), *found))

    def _body(self, net: ImageGraph) -> Value:
        h = net.conv("model.conv1", net.x, self.scaled(64), 7, 2)
        h = net.call(ReLU(name="model.relu"), net.batch_norm("model.bn1", h))
        h = net.call(MaxPool2d(name="model.maxpool", kernel_size=3, stride=2, padding=1), h)
        for stage, depth in enumerate(self.layers):
            for number in range(depth):
                stride = 2 if stage == 1 and not number else 1  # the third stage keeps its size
                name = f"model.layer{stage + 1}.{number}"
                h = self._block(net, name, h, self.scaled(64 * 2**stage), stride)
        return h

    def _block(self, net: ImageGraph, name: str, x: Value, channels: int, stride: int) -> Value:
        h = net.batch_norm(f"{name}.bn1", net.conv(f"{name}.conv1", x, channels, 3, stride))
        h = net.call(ReLU(name=f"{name}.relu1"), h)
        h = net.batch_norm(f"{name}.bn2", net.conv(f"{name}.conv2", h, channels, 3))
        if stride > 1 or net.channels(x) != channels:
            x = net.conv(f"{name}.downsample.0", x, channels, 1, stride)
            x = net.batch_norm(f"{name}.downsample.1", x)
        return net.call(ReLU(name=f"{name}.relu"), net.call(Add(name=f"{name}.add"), h, x))
