"""VGG, layer by layer as torchvision's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.graph import Graph, GraphBuilder, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.adaptive_avg_pool2d import AdaptiveAvgPool2d
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.parameter import Initial, constant, kaiming_normal, normal
from simdp.workload.models.image import ImageGraph, ImageModel, fan_out

POOLED = 7
"""Height and width of the feature maps that the classifier sees."""


class VGG(ImageModel):
    """Stages of 3x3 convolutions, each with a max pooling at its end; three linear layers.

    Parameters are named ``features.0.weight``, ..., ``classifier.6.bias``, as in torchvision.

    Attributes
    ----------
    layers : list of int
        Convolutions in each stage.
    batch_norm : bool
        Whether a batch norm follows each convolution.
    dropout : float
        Share of the classifier's hidden values that is dropped.

    References
    ----------
    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015 (arXiv 1409.1556); torchvision/models/vgg.py.
    """

    kind: Literal["vgg"] = "vgg"
    layers: list[Annotated[Int, Field(ge=1, le=1000)]] = Field([2, 2, 3, 3, 3], min_length=1)
    batch_norm: Bool = False
    dropout: Float = Field(0.5, ge=0, le=1)

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 4:
            return kaiming_normal(fan_out(parameter))  # torchvision: mode="fan_out"
        if len(parameter.shape) == 2:
            return normal(0.01)
        return constant(0.0) if parameter.name.endswith(".bias") else parameter.initial

    def build(self) -> Graph:
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
