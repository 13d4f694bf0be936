"""Inception v3, layer by layer as torchvision's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.graph import Graph, Value
from simdp.workload.layers import Parameter
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.adaptive_avg_pool2d import AdaptiveAvgPool2d
from simdp.workload.layers.avg_pool2d import AvgPool2d
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.pairs import Pair
from simdp.workload.layers.parameter import Initial, trunc_normal
from simdp.workload.models.image import ImageGraph, ImageModel

EPS = 1e-3
"""Of every batch norm."""

AUX_WEIGHT = 0.4
"""Of the auxiliary loss, as in torchvision's training reference."""


class Inception(ImageModel):
    """Blocks of parallel convolutions whose outputs are concatenated.

    Parameters are named ``Conv2d_1a_3x3.conv.weight``, ..., ``fc.bias``, as in torchvision.

    Attributes
    ----------
    aux_logits : bool
        Whether a second classifier looks at the middle of the model; its loss counts for 0.4.
    dropout : float
        Share of the values before the last layer that is dropped.

    References
    ----------
    Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016 (arXiv
    1512.00567); torchvision/models/inception.py.
    """

    kind: Literal["inception"] = "inception"
    image_size: Int = Field(299, ge=1, le=10**5)
    aux_logits: Bool = True
    dropout: Float = Field(0.5, ge=0, le=1)

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) < 2:
            return parameter.initial
        return trunc_normal(0.001 if parameter.name == "AuxLogits.fc.weight" else 0.1)

    def build(self) -> Graph:
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
    """The blocks, named as torchvision's; numbers of channels are the published ones."""

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
        """Convolution, batch norm and relu; without ``padding`` the size is kept."""
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
        """As torchvision's InceptionA."""
        one = self.unit(f"{name}.branch1x1", x, 64, 1)
        five = self.unit(f"{name}.branch5x5_1", x, 48, 1)
        five = self.unit(f"{name}.branch5x5_2", five, 64, 5)
        three = self.unit(f"{name}.branch3x3dbl_1", x, 64, 1)
        three = self.unit(f"{name}.branch3x3dbl_2", three, 96, 3)
        three = self.unit(f"{name}.branch3x3dbl_3", three, 96, 3)
        return self.concat(f"{name}.concat", one, five, three, self.pooled(name, x, pool_channels))

    def mixed_6a(self, name: str, x: Value) -> Value:
        """As torchvision's InceptionB."""
        once = self.unit(f"{name}.branch3x3", x, 384, 3, stride=2, padding=0)
        twice = self.unit(f"{name}.branch3x3dbl_1", x, 64, 1)
        twice = self.unit(f"{name}.branch3x3dbl_2", twice, 96, 3)
        twice = self.unit(f"{name}.branch3x3dbl_3", twice, 96, 3, stride=2, padding=0)
        return self.concat(f"{name}.concat", once, twice, self.halved(f"{name}.pool", x))

    def mixed_6(self, name: str, x: Value, channels: int) -> Value:
        """As torchvision's InceptionC."""
        one = self.unit(f"{name}.branch1x1", x, 192, 1)
        seven = self.unit(f"{name}.branch7x7_1", x, channels, 1)
        seven = self.unit(f"{name}.branch7x7_2", seven, channels, (1, 7))
        seven = self.unit(f"{name}.branch7x7_3", seven, 192, (7, 1))
        twice = self.unit(f"{name}.branch7x7dbl_1", x, channels, 1)
        twice = self.unit(f"{name}.branch7x7dbl_2", twice, channels, (7, 1))
        twice = self.unit(f"{name}.branch7x7dbl_3", twice, channels, (1, 7))
        twice = self.unit(f"{name}.branch7x7dbl_4", twice, channels, (7, 1))
        twice = self.unit(f"{name}.branch7x7dbl_5", twice, 192, (1, 7))
        return self.concat(f"{name}.concat", one, seven, twice, self.pooled(name, x, 192))

    def mixed_7a(self, name: str, x: Value) -> Value:
        """As torchvision's InceptionD."""
        three = self.unit(f"{name}.branch3x3_1", x, 192, 1)
        three = self.unit(f"{name}.branch3x3_2", three, 320, 3, stride=2, padding=0)
        seven = self.unit(f"{name}.branch7x7x3_1", x, 192, 1)
        seven = self.unit(f"{name}.branch7x7x3_2", seven, 192, (1, 7))
        seven = self.unit(f"{name}.branch7x7x3_3", seven, 192, (7, 1))
        seven = self.unit(f"{name}.branch7x7x3_4", seven, 192, 3, stride=2, padding=0)
        return self.concat(f"{name}.concat", three, seven, self.halved(f"{name}.pool", x))

    def mixed_7(self, name: str, x: Value) -> Value:
        """As torchvision's InceptionE."""
        one = self.unit(f"{name}.branch1x1", x, 320, 1)
        three = self.unit(f"{name}.branch3x3_1", x, 384, 1)
        three = self.forked(f"{name}.branch3x3_2", three)
        twice = self.unit(f"{name}.branch3x3dbl_1", x, 448, 1)
        twice = self.unit(f"{name}.branch3x3dbl_2", twice, 384, 3)
        twice = self.forked(f"{name}.branch3x3dbl_3", twice)
        return self.concat(f"{name}.concat", one, three, twice, self.pooled(name, x, 192))

    def aux(self, name: str, x: Value) -> Value:
        """As torchvision's InceptionAux."""
        h = self.call(AvgPool2d(name=f"{name}.pool", kernel_size=5, stride=3), x)
        h = self.unit(f"{name}.conv0", h, 128, 1)
        h = self.unit(f"{name}.conv1", h, 768, 5, padding=0)
        h = self.call(AdaptiveAvgPool2d(name=f"{name}.avgpool", output_size=1), h)
        return self.classifier(f"{name}.", h)

    def forked(self, name: str, x: Value) -> Value:
        """A 1x3 beside a 3x1 convolution."""
        wide = self.unit(f"{name}a", x, 384, (1, 3))
        tall = self.unit(f"{name}b", x, 384, (3, 1))
        return self.concat(f"{name}.concat", wide, tall)

    def pooled(self, name: str, x: Value, channels: int) -> Value:
        """The branch that averages over neighbours first."""
        pool = AvgPool2d(name=f"{name}.pool", kernel_size=3, stride=1, padding=1)
        return self.unit(f"{name}.branch_pool", self.call(pool, x), channels, 1)

    def halved(self, name: str, x: Value) -> Value:
        """A max pooling that halves the image."""
        return self.call(MaxPool2d(name=name, kernel_size=3, stride=2), x)

    def classifier(self, prefix: str, x: Value) -> Value:
        """The last layer of the model or of its auxiliary part."""
        features, classes = self.channels(x), self.model.num_classes
        h = self.graph.call(Flatten(name=f"{prefix}flatten"), x)
        fc = Linear(name=f"{prefix}fc", in_features=features, out_features=classes)
        return self.graph.call(fc, h)
