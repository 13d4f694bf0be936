"""U-Net of volumes: down to a bottleneck and up again beside what was there, as MLPerf's."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.graph import Graph, GraphBuilder, Value
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.base import Shape
from simdp.workload.layers.concat import Concat
from simdp.workload.layers.conv3d import Conv3d
from simdp.workload.layers.conv_transpose3d import ConvTranspose3d
from simdp.workload.layers.instance_norm3d import InstanceNorm3d
from simdp.workload.models.base import Model


class UNet(Model):
    """Convolutions with instance norms; the outputs are classes of every voxel.

    Attributes
    ----------
    filters : list of int
        Channels of each size, the largest first; the bottleneck has those of the last.
    num_classes : int
        Classes of a voxel.
    in_channels : int
        Channels of a volume.
    patch_size : int
        Depth, height and width of a volume [voxels].

    References
    ----------
    Cicek et al., "3D U-Net: learning dense volumetric segmentation from sparse annotation", MICCAI
    2016 (arXiv 1606.06650); github.com/mlcommons/training, image_segmentation/pytorch/model.
    """

    kind: Literal["unet"] = "unet"
    filters: list[Annotated[Int, Field(ge=1, le=10**6)]] = Field(
        [32, 64, 128, 256, 320], min_length=1, max_length=16
    )
    num_classes: Int = Field(3, ge=1, le=10**6)
    in_channels: Int = Field(1, ge=1, le=10**6)
    patch_size: Int = Field(128, ge=1, le=10**4)

    @model_validator(mode="after")
    def _volumes_can_be_halved(self) -> Self:
        least = 2 ** len(self.filters)
        if self.patch_size % least:
            below = self.patch_size // least * least
            near = f"{below} or {below + least}" if below else f"{least}"
            raise problem(
                f"patch_size: {self.patch_size} is not a multiple of {least}, by which "
                f"{len(self.filters)} sizes shrink a volume; write {near}."
            )
        return self

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.in_channels, self.patch_size, self.patch_size, self.patch_size)}

    def build(self) -> Graph:
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
