"""PyramidModel: base of detectors that look at the maps of a ResNet, coarse and fine ones."""

from __future__ import annotations

from math import prod
from typing import Annotated, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.add import Add
from simdp.workload.layers.base import Shape
from simdp.workload.layers.conv2d import Conv2d
from simdp.workload.layers.frozen_batch_norm2d import FrozenBatchNorm2d
from simdp.workload.layers.frozen_conv2d import FrozenConv2d
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.parameter import Initial, constant, kaiming_normal, kaiming_uniform
from simdp.workload.layers.upsample import Upsample
from simdp.workload.models.base import Model
from simdp.workload.models.image import fan_out

NUM_STAGES = 4
COARSEST = 32
"""By how much a ResNet shrinks an image."""


class PyramidModel(Model):
    """A ResNet of bottlenecks whose norms are frozen, as its first layers may be, and an FPN.

    Attributes
    ----------
    layers : list of int
        Blocks in each of the four stages.
    groups, width_per_group : int
        Of the 3x3 convolutions; ResNeXt-50 32x4d has 32 groups of width 4.
    trainable_layers : int
        Stages that learn, from the last one: of 5, the first is the convolution that begins.
    fpn_channels : int
        Channels of the pyramid's maps.
    base_channels : int
        Channels of the first stage's 3x3 convolutions without groups; 64 as published.
    in_channels, image_height, image_width : int
        Of an image [pixels].

    References
    ----------
    Lin et al., "Feature pyramid networks for object detection", CVPR 2017 (arXiv 1612.03144);
    torchvision/models/detection/backbone_utils.py.
    """

    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field(
        [3, 4, 6, 3], min_length=NUM_STAGES, max_length=NUM_STAGES
    )
    groups: Int = Field(1, ge=1, le=10**6)
    width_per_group: Int = Field(64, ge=1, le=10**6)
    trainable_layers: Int = Field(3, ge=0, le=5)
    fpn_channels: Int = Field(256, ge=1, le=10**6)
    base_channels: Int = Field(64, ge=1, le=10**6)
    in_channels: Int = Field(3, ge=1, le=10**6)
    image_height: Int = Field(800, ge=1, le=10**5)
    image_width: Int = Field(800, ge=1, le=10**5)

    @model_validator(mode="after")
    def _maps_fit_when_upsampled(self) -> Self:
        for key in ("image_height", "image_width"):
            size = getattr(self, key)
            if size % COARSEST:
                below = size // COARSEST * COARSEST
                near = f"{below} or {below + COARSEST}" if below else f"{COARSEST}"
                raise problem(
                    f"{key}: {size} is not a multiple of {COARSEST}, by which four stages shrink "
                    f"an image; write {near}."
                )
        return self

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.in_channels, self.image_height, self.image_width)}

    def initial(self, parameter: Parameter) -> Initial:
        if parameter.name.startswith("backbone.body."):
            return kaiming_normal(fan_out(parameter))  # torchvision: mode="fan_out"
        if parameter.name.startswith("backbone.fpn."):
            if parameter.name.endswith(".bias"):
                return constant(0.0)
            return kaiming_uniform(prod(parameter.shape[1:]), a=1)
        return parameter.initial

    # The graph ---------------------------------------------------------------------------------

    def body(self, graph: GraphBuilder) -> list[Value]:
        """Append the ResNet; return what comes out of each stage."""
        width = self.base_channels
        h = self._unit(graph, "conv1", "bn1", graph.input("x"), (self.in_channels, width), 7, 2, 1)
        h = graph.call(ReLU(name="backbone.body.relu"), h)
        h = graph.call(
            MaxPool2d(name="backbone.body.maxpool", kernel_size=3, stride=2, padding=1), h
        )
        found, channels = [], width
        for stage, depth in enumerate(self.layers, 1):
            for number in range(depth):
                name, out = f"layer{stage}.{number}", 4 * width * 2 ** (stage - 1)
                stride = 2 if stage > 1 and not number else 1
                h = self._block(graph, name, h, (channels, out), stride)
                channels = out
            found.append(h)
        return found

    @property
    def stage_channels(self) -> list[int]:
        """Channels that come out of each stage."""
        return [4 * self.base_channels * 2**stage for stage in range(NUM_STAGES)]

    def _block(
        self, graph: GraphBuilder, name: str, x: Value, channels: tuple[int, int], stride: int
    ) -> Value:
        given, out = channels
        wide = max(1, out // 4 * self.width_per_group // 64) * self.groups
        h = self._unit(graph, f"{name}.conv1", f"{name}.bn1", x, (given, wide), 1, 1, 1)
        h = graph.call(ReLU(name=f"backbone.body.{name}.relu1"), h)
        sizes = (wide, wide)
        h = self._unit(graph, f"{name}.conv2", f"{name}.bn2", h, sizes, 3, stride, self.groups)
        h = graph.call(ReLU(name=f"backbone.body.{name}.relu2"), h)
        h = self._unit(graph, f"{name}.conv3", f"{name}.bn3", h, (wide, out), 1, 1, 1)
        if stride > 1 or given != out:
            down = f"{name}.downsample"
            x = self._unit(graph, f"{down}.0", f"{down}.1", x, channels, 1, stride, 1)
        h = graph.call(Add(name=f"backbone.body.{name}.add"), h, x)
        return graph.call(ReLU(name=f"backbone.body.{name}.relu"), h)

    def _unit(
        self,
        graph: GraphBuilder,
        conv_name: str,
        norm_name: str,
        x: Value,
        channels: tuple[int, int],
        kernel: int,
        stride: int,
        groups: int,
    ) -> Value:
        """Append a convolution that may be frozen, and its frozen norm."""
        conv = Conv2d(
            name=f"backbone.body.{conv_name}",
            in_channels=channels[0],
            out_channels=channels[1],
            kernel_size=(kernel, kernel),
            stride=(stride, stride),
            padding=(kernel // 2, kernel // 2),
            groups=groups,
            bias=False,
        )
        first = conv_name.split(".")[0]
        stage = 0 if first == "conv1" else int(first.removeprefix("layer"))
        learns = stage > NUM_STAGES - self.trainable_layers
        h = graph.call(conv if learns else FrozenConv2d(name=conv.name, conv=conv), x)
        norm = FrozenBatchNorm2d(name=f"backbone.body.{norm_name}", num_features=channels[1])
        return graph.call(norm, h)

    def pyramid(self, graph: GraphBuilder, maps: list[Value], channels: list[int]) -> list[Value]:
        """Append the FPN on some stages; return its maps, the finest first."""
        name, wide = "backbone.fpn", self.fpn_channels
        inner = [
            graph.register(conv(f"{name}.inner_blocks.{n}.0", given, wide, 1))
            for n, given in enumerate(channels)
        ]
        outer = [
            graph.register(conv(f"{name}.layer_blocks.{n}.0", wide, wide, 3))
            for n in range(len(channels))
        ]
        h = graph.call(inner[-1], maps[-1])
        found = [graph.call(outer[-1], h)]
        for n in reversed(range(len(maps) - 1)):
            up = graph.call(Upsample(name=f"{name}.upsample.{n}", scale_factor=(2, 2)), h)
            h = graph.call(Add(name=f"{name}.add.{n}"), graph.call(inner[n], maps[n]), up)
            found.insert(0, graph.call(outer[n], h))
        return found


def conv(name: str, given: int, out: int, kernel: int, stride: int = 1) -> Conv2d:
    """A convolution with a bias, half the kernel of zeros around it."""
    return Conv2d(
        name=name,
        in_channels=given,
        out_channels=out,
        kernel_size=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
    )
