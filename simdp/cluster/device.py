"""Device: what one accelerator can do, from a catalogue name or from figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from simdp.cluster.power import ListPrice, Power
from simdp.files import Catalogue
from simdp.spec import (
    Bandwidth,
    Bool,
    Float,
    FlopRate,
    Flops,
    PositiveBytes,
    Seconds,
    Spec,
    form_of,
    from_catalogue,
    problem,
)

DEVICES = Catalogue(Path(__file__).parent / "devices")

DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16")

Fraction = Annotated[Float, Field(gt=0, le=1)]


class Device(Spec):
    """One accelerator.

    Attributes
    ----------
    name : str or None
        What to call it; a catalogue entry's own.
    peak : dict of str to float
        Dense peak rate by dtype [FLOP/s].
    memory : float
        Capacity [bytes].
    memory_bandwidth : float
        Of the device's own memory [bytes/s].
    efficiency : float or dict of str to float
        Fraction of the peak FLOP/s that real layers reach, in (0, 1]; one for all, or by dtype.
    flash_efficiency : float or None
        The same of fused attention (``workload.attention: flash``), over the work that a causal
        mask leaves; None is as for all others.
    memory_efficiency : float
        Fraction of the memory bandwidth that kernels reach, in (0, 1].
    half_work : float
        Work at which a product (of matrices, a convolution, attention) reaches half of that, since
        it fills the device for a part of its time only [FLOP]: Hockney's n_1/2. 0, unless it is
        given: products of any size reach all.
    launch : float
        Time to launch one kernel [s]; charged once per kernel.
    peer_to_peer : bool
        Whether such devices reach each other over PCIe. GeForce cards do not: what collectives get
        of PCIe where nobody measured is less (``python -m simdp list constants``).
    price : ListPrice or None
        What it costs by the hour, and when that was so; None where nobody says. A scenario's own
        ``cluster.price`` comes first.
    power : Power or None
        What it draws, and a node of such devices beside them; as far as anybody says.

    References
    ----------
    Hockney and Jesshope, "Parallel Computers", Adam Hilger, 1981: r_inf and n_1/2.
    """

    name: str | None = None
    peak: dict[str, FlopRate] = Field(
        json_schema_extra={"propertyNames": {"enum": list(DTYPES)}, "minProperties": 1}
    )
    memory: PositiveBytes
    memory_bandwidth: Bandwidth
    efficiency: Fraction | dict[str, Fraction] = 0.5
    flash_efficiency: Fraction | None = None
    memory_efficiency: Fraction = 1.0
    half_work: Flops = 0.0
    launch: Seconds = 5e-6
    peer_to_peer: Bool = True
    price: ListPrice | None = None
    power: Power | None = None

    @field_validator("peak")
    @classmethod
    def _known_dtypes(cls, peak: dict[str, float]) -> dict[str, float]:
        wrong = [dtype for dtype in peak if dtype not in DTYPES]
        if wrong or not peak:
            given = ", ".join(map(repr, wrong)) or "nothing"
            raise problem(f"{given} is no dtype with a peak; known: {', '.join(DTYPES)}.")
        return peak

    @field_validator("efficiency", mode="wrap")
    @classmethod
    def _one_or_by_dtype(cls, value: Any, handler: Any) -> Any:
        """Choose the form by the value, so that an error speaks of the form that was written."""
        by_dtype = isinstance(value, dict)
        return form_of(dict[str, Fraction] if by_dtype else Fraction).validate_python(value)

    @model_validator(mode="after")
    def _each_peak_has_an_efficiency(self) -> Device:
        if isinstance(self.efficiency, dict) and set(self.efficiency) != set(self.peak):
            raise problem(
                f"efficiency is given for {', '.join(self.efficiency) or 'nothing'}, but there are "
                f"peaks for {', '.join(self.peak)}; give one for each of these, or one for all."
            )
        return self

    def rate(self, dtype: str, fused: bool = False) -> float:
        """Arithmetic that real layers, or fused attention, reach in a dtype [FLOP/s]."""
        found = self.efficiency
        if fused and self.flash_efficiency is not None:
            found = self.flash_efficiency
        return self.peak[dtype] * (found[dtype] if isinstance(found, dict) else found)

    @property
    def memory_rate(self) -> float:
        """Memory traffic that kernels reach [bytes/s]."""
        return self.memory_bandwidth * self.memory_efficiency

    def slice(self, k: int) -> Device:
        """What one of k ranks has of a device that they use in turns: 1/k of its speed.

        Its memory and launches are whole: ranks have hosts of their own.
        """
        peak = {dtype: rate / k for dtype, rate in self.peak.items()}
        return self.model_copy(update={"peak": peak, "memory_bandwidth": self.memory_bandwidth / k})


AnyDevice = Annotated[Device, from_catalogue("device", DEVICES.names, DEVICES.figures)]


def describe(name: str) -> str:
    """One line about a catalogue device, for ``python -m simdp list``."""
    entry: dict[str, Any] = dict(DEVICES.read(name))
    peak = entry["peak"]["float32"]
    return f"{peak} float32, {entry['memory']} at {entry['memory_bandwidth']}"
