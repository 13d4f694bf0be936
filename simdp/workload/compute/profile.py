"""Times that the model brings along."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from simdp.errors import unknown_name
from simdp.files import Catalogue
from simdp.spec import Int, Seconds, problem
from simdp.workload.compute.base import Compute

DEVICES = Catalogue(Path(__file__).parents[2] / "cluster" / "devices")
"""The catalogue of devices as names: a workload knows nothing of clusters."""


class FromProfile(Compute):
    """The times of each layer that stand in the file of a model of kind profile.

    Attributes
    ----------
    device : str or None
        What they were measured on, a name of the catalogue. Another device of the catalogue takes
        as much longer as its arithmetic (for the part of a layer that is ``products``) and its
        memory (for the rest) are slower; without it times are those of every device.
    dtype : {"float64", "float32", "tfloat32", "float16", "bfloat16"} or None
        What products were computed in, where ``device`` is given; None is the workload's dtype.
    microbatch : int or None
        Samples of the micro-step that was measured: the device's times grow in proportion to the
        samples, the host's stay. None: a micro-step takes as long, whatever its samples.
    update : float or None
        What one device takes to update all parameters [s]; a part of them takes as large a part
        of it. None: the bytes that the optimizer moves, over the memory's bandwidth.
    """

    kind: Literal["profile"] = "profile"
    device: str | None = None
    dtype: Literal["float64", "float32", "tfloat32", "float16", "bfloat16"] | None = None
    microbatch: Int | None = Field(None, ge=1, le=10**9)
    update: Seconds | None = None

    @field_validator("device")
    @classmethod
    def _in_the_catalogue(cls, name: str | None) -> str | None:
        if name is not None and name not in DEVICES.names():
            raise problem(unknown_name("device", name, DEVICES.names()))
        return name

    @model_validator(mode="after")
    def _dtype_is_of_a_device(self) -> FromProfile:
        if self.dtype is not None and self.device is None:
            raise problem(
                "dtype tells how products scale between devices; add device, or leave it out."
            )
        return self
