"""YOLOv3: Darknet-53, and heads that look for objects at three scales."""

from __future__ import annotations

from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.graph import Graph, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.leaky_relu import LeakyReLU
from simdp.workload.layers.add import Add
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.parameter import Initial, constant, kaiming_normal
from simdp.workload.layers.upsample import Upsample
from simdp.workload.models.image import ImageGraph, ImageModel

NUM_SCALES = 3
MOMENTUM = 0.01
"""Of the running statistics, as in Darknet."""


class YOLO(ImageModel):
    """One pass finds boxes and classes; the loss sees all maps, flattened, the coarsest first.

    A map has ``num_anchors (5 + num_classes)`` channels: a box, its confidence and the classes for
    each anchor. Darknet's loss, which matches boxes to objects, is not modelled: any loss on these
    outputs leads the same gradients through the model.

    Attributes
    ----------
    layers : list of int
        Residual blocks in each stage of the backbone; the last three stages lead to heads.
    num_anchors : int
        Boxes per cell of a map.

    References
    ----------
    Redmon and Farhadi, "YOLOv3: an incremental improvement" (arXiv 1804.02767);
    github.com/pjreddie/darknet, cfg/yolov3.cfg.
    """

    kind: Literal["yolo"] = "yolo"
    num_classes: Int = Field(80, ge=1, le=10**6)
    image_size: Int = Field(416, ge=1, le=10**5)
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field(
        [1, 2, 8, 8, 4], min_length=NUM_SCALES
    )
    num_anchors: Int = Field(3, ge=1, le=1000)

    @model_validator(mode="after")
    def _maps_fit_when_upsampled(self) -> Self:
        stride = 2 ** len(self.layers)
        if self.image_size % stride:
            below = self.image_size // stride * stride
            near = f"{below} or {below + stride}" if below else f"{stride}"
            raise problem(
                f"image_size: {self.image_size} is not a multiple of {stride}, by which "
                f"{len(self.layers)} stages shrink an image; write {near}."
            )
        return self

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 4:
            return kaiming_normal(prod(parameter.shape[1:]))
        return constant(0.0) if parameter.name.endswith(".bias") else parameter.initial

    def build(self) -> Graph:
        net = ImageGraph(self.in_channels, momentum=MOMENTUM)
        stages = self._backbone(net)
        h, maps = stages[-1], []
        for scale in range(1, NUM_SCALES + 1):
            name, width = f"heads.{scale - 1}", 32 * 2 ** (len(stages) + 1 - scale)
            if scale > 1:
                h = self._unit(net, f"{name}.reduce", h, width // 2, 1)
                h = net.call(Upsample(name=f"{name}.upsample", scale_factor=2), h)
                h = net.concat(f"{name}.concat", h, stages[-scale])
            for number in (1, 2, 3, 4, 5):
                h = self._alternate(net, name, number, h, width)
            found = self._alternate(net, name, 6, h, width)
            depth = self.num_anchors * (5 + self.num_classes)
            found = net.conv(f"{name}.detect", found, depth, 1, bias=True)
            maps.append(net.graph.call(Flatten(name=f"{name}.flatten"), found))
        return net.graph.build(net.graph.call(Concat(name="concat"), *maps))

    def _backbone(self, net: ImageGraph) -> list[Value]:
        """Darknet-53; returns what comes out of each stage."""
        h = self._unit(net, "backbone.stem", net.x, 32, 3)
        stages = []
        for stage, depth in enumerate(self.layers, 1):
            name, width = f"backbone.stage{stage}", 32 * 2**stage
            h = self._unit(net, f"{name}.down", h, width, 3, stride=2)
            for number in range(depth):
                inner = self._unit(net, f"{name}.{number}.conv1", h, width // 2, 1)
                inner = self._unit(net, f"{name}.{number}.conv2", inner, width, 3)
                h = net.call(Add(name=f"{name}.{number}.add"), h, inner)
            stages.append(h)
        return stages

    def _alternate(self, net: ImageGraph, head: str, number: int, h: Value, width: int) -> Value:
        """A head's convolutions: 1x1 to half the width and 3x3 to all of it, in turn."""
        channels, kernel = (width // 2, 1) if number % 2 else (width, 3)
        return self._unit(net, f"{head}.conv{number}", h, channels, kernel)

    def _unit(
        self, net: ImageGraph, name: str, x: Value, channels: int, kernel: int, stride: int = 1
    ) -> Value:
        h = net.conv(f"{name}.conv", x, self.scaled(channels), kernel, stride)
        h = net.batch_norm(f"{name}.bn", h)
        return net.call(LeakyReLU(name=f"{name}.leaky_relu", negative_slope=0.1), h)
