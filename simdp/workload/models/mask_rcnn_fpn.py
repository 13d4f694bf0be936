"""Mask R-CNN, two-stage detection with masks, as torchvision's and MLPerf's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.graph import Graph, GraphBuilder, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.conv_transpose2d import ConvTranspose2d
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.parameter import Initial, constant, kaiming_normal, normal
from simdp.workload.layers.roi_align import RoIAlign
from simdp.workload.models.image import fan_out
from simdp.workload.models.pyramid import PyramidModel, conv

BOX_CELLS, MASK_CELLS = 7, 14
MASK_CONVS = 4


class MaskRCNN(PyramidModel):
    """A head proposes regions on five maps; two others look at a fixed number of them.

    The loss sees all that the heads find, flattened. How many regions there are depends on the
    data in part: here their number is that of training, which samples as many, and their places
    are fixed (see `RoIAlign`). Choosing proposals, which learns nothing, takes no time here.

    Attributes
    ----------
    num_classes : int
        Classes to tell apart, the background among them.
    num_anchors : int
        Boxes per cell of a map.
    box_rois : int
        Regions of an image that the head for boxes looks at in training.
    mask_rois : int
        Regions that the head for masks looks at: those that hold an object, a quarter at most.
    representation : int
        Width of the head for boxes.

    References
    ----------
    He et al., "Mask R-CNN", ICCV 2017 (arXiv 1703.06870); torchvision/models/detection;
    github.com/mlcommons/training, object_detection/pytorch.
    """

    kind: Literal["mask_rcnn_fpn"] = "mask_rcnn_fpn"
    num_classes: Int = Field(91, ge=1, le=10**6)
    num_anchors: Int = Field(3, ge=1, le=1000)
    box_rois: Int = Field(512, ge=1, le=10**6)
    mask_rois: Int = Field(128, ge=1, le=10**6)
    representation: Int = Field(1024, ge=1, le=10**7)

    def initial(self, parameter: Parameter) -> Initial:
        if parameter.name.startswith("rpn."):
            return normal(0.01) if len(parameter.shape) > 1 else constant(0.0)
        if parameter.name.startswith("roi_heads.mask") and len(parameter.shape) > 1:
            return kaiming_normal(fan_out(parameter))
        return super().initial(parameter)

    def build(self) -> Graph:
        graph = GraphBuilder("x")
        maps = self.pyramid(graph, self.body(graph), self.stage_channels)
        pool = MaxPool2d(name="backbone.fpn.pool", kernel_size=1, stride=2)
        found = self._proposals(graph, [*maps, graph.call(pool, maps[-1])])
        found += self._boxes(graph, maps)
        found.append(self._masks(graph, maps))
        return graph.build(graph.call(Concat(name="concat"), *found))

    def _proposals(self, graph: GraphBuilder, maps: list[Value]) -> list[Value]:
        """Append the head that says of each anchor whether something is there, and where."""
        lead, wide = "rpn.head", self.fpn_channels
        first = graph.register(conv(f"{lead}.conv.0.0", wide, wide, 3))
        ends = [
            graph.register(conv(f"{lead}.{part}", wide, each * self.num_anchors, 1))
            for part, each in (("cls_logits", 1), ("bbox_pred", 4))
        ]
        found = []
        for level, h in enumerate(maps):
            h = graph.call(ReLU(name=f"{lead}.relu.{level}"), graph.call(first, h))
            found += [self._flat(graph, f"{end.name}.{level}", graph.call(end, h)) for end in ends]
        return found

    def _boxes(self, graph: GraphBuilder, maps: list[Value]) -> list[Value]:
        """Append the head that names the object of each region and corrects its box."""
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
        found = []
        for name, each in (("cls_score", 1), ("bbox_pred", 4)):
            name = f"roi_heads.box_predictor.{name}"
            out = each * self.num_classes
            linear = Linear(name=name, in_features=wide, out_features=out)
            found.append(self._flat(graph, name, graph.call(linear, h)))
        return found

    def _masks(self, graph: GraphBuilder, maps: list[Value]) -> Value:
        """Append the head that draws each region's object."""
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
