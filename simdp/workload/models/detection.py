"""Models for detection and segmentation."""

from __future__ import annotations

from itertools import pairwise
from math import log, prod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.layers.activations.rectifiers import LeakyReLU, ReLU
from simdp.workload.layers.base import (
    GraphBuilder,
    Initial,
    ModelGraph,
    Parameter,
    Shape,
    Value,
    constant,
    kaiming_normal,
    kaiming_uniform,
    normal,
    xavier_uniform,
)
from simdp.workload.layers.batchnorm import FrozenBatchNorm2d, InstanceNorm3d
from simdp.workload.layers.conv import (
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
    FrozenConv2d,
)
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.pooling import MaxPool2d, RoIAlign, Upsample
from simdp.workload.layers.tensor_ops import Add, Concat, Flatten
from simdp.workload.models.base import Model
from simdp.workload.models.convnets import ImageGraph, ImageModel, basic_block, fan_out

NUM_STAGES = 4
COARSEST = 32
"""Factor by which a ResNet shrinks an image."""


def check_multiple(key: str, size: int, factor: int, reason: str) -> None:
    """Raise if a size is not a multiple of the factor by which ``reason``."""
    if size % factor:
        below = size // factor * factor
        near = f"{below} or {below + factor}" if below else f"{factor}"
        raise problem(
            f"{key}: {size} is not a multiple of {factor}, by which {reason}; write {near}."
        )


class PyramidModel(Model):
    """A ResNet of bottlenecks with frozen norms and possibly frozen first layers, and an FPN.

    References
    ----------
    Lin et al., "Feature pyramid networks for object detection", CVPR 2017 (arXiv 1612.03144);
    torchvision/models/detection/backbone_utils.py.
    """

    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field(
        [3, 4, 6, 3], min_length=NUM_STAGES, max_length=NUM_STAGES
    )
    """Blocks in each of the four stages."""
    groups: Int = Field(1, ge=1, le=10**6)
    """Of the 3x3 convolutions; ResNeXt-50 32x4d has 32 groups of width 4."""
    width_per_group: Int = Field(64, ge=1, le=10**6)
    """Of the 3x3 convolutions; ResNeXt-50 32x4d has 32 groups of width 4."""
    trainable_layers: Int = Field(3, ge=0, le=5)
    """Number of trainable stages, counted from the last; 5 includes the first convolution."""
    fpn_channels: Int = Field(256, ge=1, le=10**6)
    """Channels of the pyramid's maps."""
    base_channels: Int = Field(64, ge=1, le=10**6)
    """Channels of the first stage's 3x3 convolutions without groups; 64 as published."""
    in_channels: Int = Field(3, ge=1, le=10**6)
    """Of an image [pixels]."""
    image_height: Int = Field(800, ge=1, le=10**5)
    """Of an image [pixels]."""
    image_width: Int = Field(800, ge=1, le=10**5)
    """Of an image [pixels]."""

    @model_validator(mode="after")
    def _maps_fit_when_upsampled(self) -> Self:
        for key in ("image_height", "image_width"):
            check_multiple(key, getattr(self, key), COARSEST, "four stages shrink an image")
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
        """Append the ResNet; return the output of each stage."""
        width = self.base_channels
        h = self._unit(graph, "conv1", "bn1", graph.input("x"), (self.in_channels, width), 7, 2, 1)
        h = graph.call(ReLU(name="backbone.body.relu"), h)
        h = graph.call(
            MaxPool2d(name="backbone.body.maxpool", kernel_size=3, stride=2, padding=1), h
        )
        maps, channels = [], width
        for stage, depth in enumerate(self.layers, 1):
            for number in range(depth):
                name, out = f"layer{stage}.{number}", 4 * width * 2 ** (stage - 1)
                stride = 2 if stage > 1 and not number else 1
                h = self._block(graph, name, h, (channels, out), stride)
                channels = out
            maps.append(h)
        return maps

    @property
    def stage_channels(self) -> list[int]:
        """Output channels of each stage."""
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
        """Append a convolution, possibly frozen, and its frozen norm."""
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
        levels = [graph.call(outer[-1], h)]
        for n in reversed(range(len(maps) - 1)):
            up = graph.call(Upsample(name=f"{name}.upsample.{n}", scale_factor=(2, 2)), h)
            h = graph.call(Add(name=f"{name}.add.{n}"), graph.call(inner[n], maps[n]), up)
            levels.insert(0, graph.call(outer[n], h))
        return levels


def conv(name: str, given: int, out: int, kernel: int, stride: int = 1) -> Conv2d:
    """A convolution with a bias, padded by half its kernel."""
    return Conv2d(
        name=name,
        in_channels=given,
        out_channels=out,
        kernel_size=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
    )


HEAD_CONVS = 4

PRIOR = 0.01
"""Initial probability of an object."""


class RetinaNet(PyramidModel):
    """Two heads on five maps; the loss takes all their outputs, flattened.

    A map has ``num_anchors num_classes`` channels of classes and ``4 num_anchors`` of boxes. The
    focal loss, which matches boxes to objects, is not modelled: any loss on these outputs leads to
    gradients of the same sizes.

    References
    ----------
    Lin et al., "Focal loss for dense object detection", ICCV 2017 (arXiv 1708.02002);
    torchvision/models/detection/retinanet.py;
    github.com/mlcommons/training, single_stage_detector/ssd/model/retinanet.py.
    """

    kind: Literal["retinanet_fpn"] = "retinanet_fpn"
    num_classes: Int = Field(91, ge=1, le=10**6)
    """Number of classes."""
    num_anchors: Int = Field(9, ge=1, le=1000)
    """Boxes per cell of a map."""

    def initial(self, parameter: Parameter) -> Initial:
        """Heads start with small weights and a bias towards no object, as in section 4.1."""
        if not parameter.name.startswith("head."):
            return super().initial(parameter)
        if len(parameter.shape) == 4:
            return normal(0.01)
        classes = parameter.name.endswith("cls_logits.bias")
        return constant(-log((1 - PRIOR) / PRIOR) if classes else 0.0)

    def build(self) -> ModelGraph:
        graph, wide = GraphBuilder("x"), self.fpn_channels
        stages = self.body(graph)
        maps = self.pyramid(graph, stages[1:], self.stage_channels[1:])
        name = "backbone.fpn.extra_blocks"
        sixth = graph.call(conv(f"{name}.p6", wide, wide, 3, stride=2), maps[-1])
        h = graph.call(ReLU(name=f"{name}.relu"), sixth)
        maps += [sixth, graph.call(conv(f"{name}.p7", wide, wide, 3, stride=2), h)]
        outputs = self._head(graph, "classification_head", "cls_logits", self.num_classes, maps)
        outputs += self._head(graph, "regression_head", "bbox_reg", 4, maps)
        return graph.build(graph.call(Concat(name="head.concat"), *outputs))

    def _head(
        self, graph: GraphBuilder, name: str, last: str, per_anchor: int, maps: list[Value]
    ) -> list[Value]:
        """Append a head, shared by all maps."""
        lead, wide = f"head.{name}", self.fpn_channels
        convs = [
            graph.register(conv(f"{lead}.conv.{n}.0", wide, wide, 3)) for n in range(HEAD_CONVS)
        ]
        end = graph.register(conv(f"{lead}.{last}", wide, self.num_anchors * per_anchor, 3))
        outputs = []
        for level, h in enumerate(maps):
            for number, layer in enumerate(convs):
                h = graph.call(ReLU(name=f"{lead}.relu.{level}.{number}"), graph.call(layer, h))
            flat = Flatten(name=f"{lead}.flatten.{level}")
            outputs.append(graph.call(flat, graph.call(end, h)))
        return outputs


BOX_CELLS, MASK_CELLS = 7, 14
MASK_CONVS = 4


class MaskRCNN(PyramidModel):
    """A head proposes regions on five maps; two others process a fixed number of them.

    The loss takes all outputs of the heads, flattened. The numbers of regions are those sampled in
    training, and their places are fixed (see `RoIAlign`). Choosing proposals, which has no weights,
    takes no time here.

    References
    ----------
    He et al., "Mask R-CNN", ICCV 2017 (arXiv 1703.06870); torchvision/models/detection;
    github.com/mlcommons/training, object_detection/pytorch.
    """

    kind: Literal["mask_rcnn_fpn"] = "mask_rcnn_fpn"
    num_classes: Int = Field(91, ge=1, le=10**6)
    """Number of classes, including the background."""
    num_anchors: Int = Field(3, ge=1, le=1000)
    """Boxes per cell of a map."""
    box_rois: Int = Field(512, ge=1, le=10**6)
    """Regions per image of the box head in training."""
    mask_rois: Int = Field(128, ge=1, le=10**6)
    """Regions of the mask head: those with an object, at most a quarter."""
    representation: Int = Field(1024, ge=1, le=10**7)
    """Width of the box head."""

    def initial(self, parameter: Parameter) -> Initial:
        if parameter.name.startswith("rpn."):
            return normal(0.01) if len(parameter.shape) > 1 else constant(0.0)
        if parameter.name.startswith("roi_heads.mask") and len(parameter.shape) > 1:
            return kaiming_normal(fan_out(parameter))
        return super().initial(parameter)

    def build(self) -> ModelGraph:
        graph = GraphBuilder("x")
        maps = self.pyramid(graph, self.body(graph), self.stage_channels)
        pool = MaxPool2d(name="backbone.fpn.pool", kernel_size=1, stride=2)
        outputs = self._proposals(graph, [*maps, graph.call(pool, maps[-1])])
        outputs += self._boxes(graph, maps)
        outputs.append(self._masks(graph, maps))
        return graph.build(graph.call(Concat(name="concat"), *outputs))

    def _proposals(self, graph: GraphBuilder, maps: list[Value]) -> list[Value]:
        """Append the head that finds for each anchor whether there is an object, and its box."""
        lead, wide = "rpn.head", self.fpn_channels
        first = graph.register(conv(f"{lead}.conv.0.0", wide, wide, 3))
        ends = [
            graph.register(conv(f"{lead}.{part}", wide, per_anchor * self.num_anchors, 1))
            for part, per_anchor in (("cls_logits", 1), ("bbox_pred", 4))
        ]
        outputs = []
        for level, h in enumerate(maps):
            h = graph.call(ReLU(name=f"{lead}.relu.{level}"), graph.call(first, h))
            outputs += [
                self._flat(graph, f"{end.name}.{level}", graph.call(end, h)) for end in ends
            ]
        return outputs

    def _boxes(self, graph: GraphBuilder, maps: list[Value]) -> list[Value]:
        """Append the head that classifies each region and corrects its box."""
        lead, wide = "roi_heads.box_head", self.representation
        align = RoIAlign(
            name="roi_heads.box_roi_pool",
            num_rois=self.box_rois,
            output_size=BOX_CELLS,
            flat=True,
        )
        h = graph.call(align, *maps)
        fan_in = self.fpn_channels * BOX_CELLS**2
        for name in ("fc6", "fc7"):
            linear = Linear(name=f"{lead}.{name}", in_features=fan_in, out_features=wide)
            h = graph.call(ReLU(name=f"{lead}.{name}.relu"), graph.call(linear, h))
            fan_in = wide
        outputs = []
        for name, per_class in (("cls_score", 1), ("bbox_pred", 4)):
            name = f"roi_heads.box_predictor.{name}"
            out = per_class * self.num_classes
            linear = Linear(name=name, in_features=wide, out_features=out)
            outputs.append(self._flat(graph, name, graph.call(linear, h)))
        return outputs

    def _masks(self, graph: GraphBuilder, maps: list[Value]) -> Value:
        """Append the head that segments each region's object."""
        lead, wide = "roi_heads.mask_head", self.fpn_channels
        align = RoIAlign(
            name="roi_heads.mask_roi_pool", num_rois=self.mask_rois, output_size=MASK_CELLS
        )
        h = graph.call(align, *maps)
        for number in range(MASK_CONVS):
            layer = conv(f"{lead}.{number}.0", wide, wide, 3)
            h = graph.call(ReLU(name=f"{lead}.{number}.1"), graph.call(layer, h))
        lead = "roi_heads.mask_predictor"
        up = ConvTranspose2d(
            name=f"{lead}.conv5_mask",
            in_channels=wide,
            out_channels=wide,
            kernel_size=(2, 2),
            stride=(2, 2),
        )
        h = graph.call(ReLU(name=f"{lead}.relu"), graph.call(up, h))
        last = conv(f"{lead}.mask_fcn_logits", wide, self.num_classes, 1)
        return self._flat(graph, last.name, graph.call(last, h))

    def _flat(self, graph: GraphBuilder, name: str, h: Value) -> Value:
        return graph.call(Flatten(name=f"{name}.flatten"), h)


DEFAULTS = (4, 6, 6, 6, 4, 4)
"""Boxes per cell of each map."""

EXTRA = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
"""Each further block's inner and output channels; stride and padding of its 3x3."""


class SSD(ImageModel):
    """The first three stages of a ResNet, the third at full size, and five further blocks.

    Each of six maps has ``4`` and ``num_classes`` numbers per box; the loss takes all of them,
    flattened. SSD's loss, which matches boxes to objects, is not modelled: any loss on these
    outputs leads to gradients of the same sizes.

    References
    ----------
    Liu et al., "SSD: single shot multibox detector", ECCV 2016 (arXiv 1512.02325);
    github.com/mlcommons/training, single_stage_detector/ssd/ssd300.py.
    """

    kind: Literal["ssd_resnet"] = "ssd_resnet"
    num_classes: Int = Field(81, ge=1, le=10**6)
    """Number of classes, including the background."""
    image_size: Int = Field(300, ge=1, le=10**5)
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field(
        [3, 4, 6], min_length=3, max_length=3
    )
    """Residual blocks in each of the three stages."""

    def initial(self, parameter: Parameter) -> Initial:
        if parameter.name.startswith("model."):
            four = len(parameter.shape) == 4
            return kaiming_normal(fan_out(parameter)) if four else parameter.initial
        if len(parameter.shape) < 4:
            return constant(0.0)
        out, given, tall, wide = parameter.shape
        return xavier_uniform(given * tall * wide, out * tall * wide)

    def build(self) -> ModelGraph:
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
        outputs = []
        for head, per_box in (("loc", 4), ("conf", self.num_classes)):
            for number, (h, boxes) in enumerate(zip(maps, DEFAULTS, strict=True)):
                y = net.conv(f"{head}.{number}", h, boxes * per_box, 3, bias=True)
                outputs.append(net.graph.call(Flatten(name=f"{head}.{number}.flatten"), y))
        return net.graph.build(net.graph.call(Concat(name="concat"), *outputs))

    def _body(self, net: ImageGraph) -> Value:
        h = net.conv("model.conv1", net.x, self.scaled(64), 7, 2)
        h = net.call(ReLU(name="model.relu"), net.batch_norm("model.bn1", h))
        h = net.call(MaxPool2d(name="model.maxpool", kernel_size=3, stride=2, padding=1), h)
        for stage, depth in enumerate(self.layers):
            for number in range(depth):
                stride = 2 if stage == 1 and not number else 1  # the third stage keeps its size
                name = f"model.layer{stage + 1}.{number}"
                convs = basic_block(self.scaled(64 * 2**stage), stride)
                h = net.residual(name, h, convs, stride)
        return h


NUM_SCALES = 3
MOMENTUM = 0.01
"""Momentum of the running statistics, as in Darknet."""


class YOLO(ImageModel):
    """One pass predicts boxes and classes; the loss takes all maps, flattened, the coarsest first.

    A map has ``num_anchors (5 + num_classes)`` channels: a box, its confidence and the classes for
    each anchor. Darknet's loss, which matches boxes to objects, is not modelled: any loss on these
    outputs leads to gradients of the same sizes.

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
    """Residual blocks in each stage of the backbone; the last three stages lead to heads."""
    num_anchors: Int = Field(3, ge=1, le=1000)
    """Boxes per cell of a map."""

    @model_validator(mode="after")
    def _maps_fit_when_upsampled(self) -> Self:
        stages = len(self.layers)
        check_multiple("image_size", self.image_size, 2**stages, f"{stages} stages shrink an image")
        return self

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 4:
            return kaiming_normal(prod(parameter.shape[1:]))
        return constant(0.0) if parameter.name.endswith(".bias") else parameter.initial

    def build(self) -> ModelGraph:
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
            features = self._alternate(net, name, 6, h, width)
            depth = self.num_anchors * (5 + self.num_classes)
            features = net.conv(f"{name}.detect", features, depth, 1, bias=True)
            maps.append(net.graph.call(Flatten(name=f"{name}.flatten"), features))
        return net.graph.build(net.graph.call(Concat(name="concat"), *maps))

    def _backbone(self, net: ImageGraph) -> list[Value]:
        """Darknet-53; returns the output of each stage."""
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
        """A head's convolutions in turn: 1x1 to half the width, 3x3 to all of it."""
        channels, kernel = (width // 2, 1) if number % 2 else (width, 3)
        return self._unit(net, f"{head}.conv{number}", h, channels, kernel)

    def _unit(
        self, net: ImageGraph, name: str, x: Value, channels: int, kernel: int, stride: int = 1
    ) -> Value:
        h = net.conv(f"{name}.conv", x, self.scaled(channels), kernel, stride)
        h = net.batch_norm(f"{name}.bn", h)
        return net.call(LeakyReLU(name=f"{name}.leaky_relu", negative_slope=0.1), h)


class UNet(Model):
    """Convolutions with instance norms; the output is a class of every voxel.

    References
    ----------
    Cicek et al., "3D U-Net: learning dense volumetric segmentation from sparse annotation", MICCAI
    2016 (arXiv 1606.06650); github.com/mlcommons/training, image_segmentation/pytorch/model.
    """

    kind: Literal["unet"] = "unet"
    filters: list[Annotated[Int, Field(ge=1, le=10**6)]] = Field(
        [32, 64, 128, 256, 320], min_length=1, max_length=16
    )
    """Channels of each size, the largest first; the bottleneck has those of the last."""
    num_classes: Int = Field(3, ge=1, le=10**6)
    """Classes of a voxel."""
    in_channels: Int = Field(1, ge=1, le=10**6)
    """Channels of a volume."""
    patch_size: Int = Field(128, ge=1, le=10**4)
    """Depth, height and width of a volume [voxels]."""

    @model_validator(mode="after")
    def _volumes_can_be_halved(self) -> Self:
        sizes = len(self.filters)
        check_multiple("patch_size", self.patch_size, 2**sizes, f"{sizes} sizes shrink a volume")
        return self

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.in_channels, self.patch_size, self.patch_size, self.patch_size)}

    def build(self) -> ModelGraph:
        graph, sizes = GraphBuilder("x"), self.filters
        h = self._pair(graph, "input_block", graph.input("x"), self.in_channels, sizes[0], 1)
        skips = [h]
        for number, (given, out) in enumerate(pairwise(sizes)):
            h = self._pair(graph, f"downsample.{number}", h, given, out, 2)
            skips.append(h)
        h = self._pair(graph, "bottleneck", h, sizes[-1], sizes[-1], 2)
        given = sizes[-1]
        for number, out in enumerate(reversed(sizes)):
            name = f"upsample.{number}"
            up = ConvTranspose3d(
                name=f"{name}.upsample_conv.0",
                in_channels=given,
                out_channels=out,
                kernel_size=(2, 2, 2),
                stride=(2, 2, 2),
            )
            joined = graph.call(Concat(name=f"{name}.concat"), graph.call(up, h), skips.pop())
            h = self._pair(graph, name, joined, 2 * out, out, 1)
            given = out
        last = Conv3d(
            name="output.conv.0",
            in_channels=given,
            out_channels=self.num_classes,
            kernel_size=(1, 1, 1),
        )
        return graph.build(graph.call(last, h))

    def _pair(
        self, graph: GraphBuilder, name: str, x: Value, given: int, out: int, stride: int
    ) -> Value:
        """Append two convolutions, each with its norm and relu."""
        for number, (channels, step) in enumerate(((given, stride), (out, 1)), 1):
            lead = f"{name}.conv{number}"
            conv = Conv3d(
                name=f"{lead}.0",
                in_channels=channels,
                out_channels=out,
                kernel_size=(3, 3, 3),
                stride=(step, step, step),
                padding=(1, 1, 1),
                bias=False,
            )
            norm = InstanceNorm3d(name=f"{lead}.1", num_features=out, affine=True)
            x = graph.call(ReLU(name=f"{lead}.2"), graph.call(norm, graph.call(conv, x)))
        return x
