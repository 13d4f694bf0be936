"""RetinaNet, one-stage detection on a pyramid of maps, as torchvision's and MLPerf's."""

from __future__ import annotations

from math import log
from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.graph import Graph, GraphBuilder, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.parameter import Initial, constant, normal
from simdp.workload.models.pyramid import PyramidModel, conv

HEAD_CONVS = 4

PRIOR = 0.01
"""How likely an object is at first."""


class RetinaNet(PyramidModel):
    """Two heads go over five maps; the loss sees all that they find, flattened.

    A map has ``num_anchors num_classes`` channels of classes and ``4 num_anchors`` of boxes. The
    focal loss, which matches boxes to objects, is not modelled: any loss on these outputs leads
    the same gradients through the model.

    Attributes
    ----------
    num_classes : int
        Classes to tell apart.
    num_anchors : int
        Boxes per cell of a map.

    References
    ----------
    Lin et al., "Focal loss for dense object detection", ICCV 2017 (arXiv 1708.02002);
    torchvision/models/detection/retinanet.py;
    github.com/mlcommons/training, single_stage_detector/ssd/model/retinanet.py.
    """

    kind: Literal["retinanet_fpn"] = "retinanet_fpn"
    num_classes: Int = Field(91, ge=1, le=10**6)
    num_anchors: Int = Field(9, ge=1, le=1000)

    def initial(self, parameter: Parameter) -> Initial:
        """The heads begin small, and sure that there is nothing, as section 4.1 has it."""
        if not parameter.name.startswith("head."):
            return super().initial(parameter)
        if len(parameter.shape) == 4:
            return normal(0.01)
        classes = parameter.name.endswith("cls_logits.bias")
        return constant(-log((1 - PRIOR) / PRIOR) if classes else 0.0)

    def build(self) -> Graph:
        graph, wide = GraphBuilder("x"), self.fpn_channels
        stages = self.body(graph)
        maps = self.pyramid(graph, stages[1:], self.stage_channels[1:])
        name = "backbone.fpn.extra_blocks"
        sixth = graph.call(conv(f"{name}.p6", wide, wide, 3, stride=2), maps[-1])
        h = graph.call(ReLU(name=f"{name}.relu"), sixth)
        maps += [sixth, graph.call(conv(f"{name}.p7", wide, wide, 3, stride=2), h)]
        found = self._head(graph, "classification_head", "cls_logits", self.num_classes, maps)
        found += self._head(graph, "regression_head", "bbox_reg", 4, maps)
        return graph.build(graph.call(Concat(name="head.concat"), *found))

    def _head(
        self, graph: GraphBuilder, name: str, last: str, each: int, maps: list[Value]
    ) -> list[Value]:
        """Append a head, which is one on all maps."""
        lead, wide = f"head.{name}", self.fpn_channels
        convs = [
            graph.register(conv(f"{lead}.conv.{n}.0", wide, wide, 3)) for n in range(HEAD_CONVS)
        ]
        end = graph.register(conv(f"{lead}.{last}", wide, self.num_anchors * each, 3))
        found = []
        for level, h in enumerate(maps):
            for number, layer in enumerate(convs):
                act = ReLU(name=f"{lead}.relu.{level}.{number}")
                h = graph.call(act, graph.call(layer, h))
            flat = Flatten(name=f"{lead}.flatten.{level}")
            found.append(graph.call(flat, graph.call(end, h)))
        return found
