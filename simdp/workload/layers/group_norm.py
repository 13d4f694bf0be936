"""GroupNorm, as torch.nn.GroupNorm: statistics of groups of channels of one sample."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.layers.base import Shape, ShapeError
from simdp.workload.layers.channel_groups import ChannelGroups


class GroupNorm(ChannelGroups):
    """Norm over groups of channels; the batch does not matter (Wu and He, arXiv 1803.08494).

    Attributes
    ----------
    num_groups : int
        Groups; a divisor of the channels.
    num_channels : int
        Channels.
    """

    kind: Literal["group_norm"] = "group_norm"
    num_groups: Int = Field(ge=1)
    num_channels: Int = Field(ge=1, le=10**8)

    autocast: ClassVar[Literal["float32"]] = "float32"

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.num_channels % self.num_groups:
            raise problem(
                f"num_groups: {self.num_groups} groups do not share num_channels "
                f"{self.num_channels} evenly; choose a divisor of it."
            )
        return self

    @property
    def channels(self) -> int:
        return self.num_channels

    @property
    def groups(self) -> int:
        return self.num_groups

    def output_shape(self, *inputs: Shape) -> Shape:
        if not inputs[0] or inputs[0][0] != self.num_channels:
            raise ShapeError(
                f"takes {self.num_channels} channels, but gets samples of shape {inputs[0]}"
            )
        return inputs[0]
