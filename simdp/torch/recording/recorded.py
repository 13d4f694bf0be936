"""RecordedWorkload: what a module asks of a device, and the scenarios that can be made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simdp.files import format_yaml, whole_files
from simdp.workload.flops import forward_flops
from simdp.workload.graph import Graph
from simdp.workload.models.operators import Operators, Recording


@dataclass(frozen=True)
class RecordedWorkload:
    """What `simdp.torch.workload` found.

    Attributes
    ----------
    recording : Recording
        Operators, parameters and inputs, as a scenario's model of kind ``operators`` reads them.
    microbatch : int
        Samples of the batch that was given; 1 where the whole of it is a sample.
    keys : dict
        What else is known of the scenario's workload, such as its optimizer.
    ready : tuple of str
        Parameters in the order in which autograd completed their gradients.
    outputs : tuple of int
        Values that the module returned, in their order.
    """

    recording: Recording
    microbatch: int
    keys: dict[str, Any] = field(default_factory=dict)
    ready: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()

    @cached_property
    def graph(self) -> Graph:
        """Simdp's graph of the module."""
        return Operators.of(self.recording).graph

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return self.graph.num_parameters

    @property
    def flops(self) -> float:
        """Of forward's products on one sample, as publications count them [FLOP]."""
        shapes = [(one.elements,) for one in self.recording.inputs]
        return forward_flops(self.graph, shapes).products

    def workload(self, path: str, **keys: Any) -> dict[str, Any]:
        """The section ``workload`` of a scenario, for a file of this name beside it."""
        model = {"kind": "operators", "path": path}
        return {"model": model, "microbatch": self.microbatch, **self.keys, **keys}

    def save(
        self,
        path: str | Path,
        cluster: Mapping[str, Any],
        *,
        strategy: str | Mapping[str, Any] = "ddp",
        workload: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> Path:
        """Write a scenario, and the operators as a JSON file beside it.

        Parameters
        ----------
        path : str or Path
            Of the scenario, ending in .yaml; the other file has its stem and ``.operators.json``.
        cluster, strategy, workload, **sections
            Of the scenario, as plain data; ``workload`` adds to what is known.

        Returns
        -------
        Path
            Of the scenario.

        Raises
        ------
        ScenarioError
            If the folder cannot be written to.
        """
        target = Path(path)
        beside = f"{target.stem}.operators.json"
        scenario = {
            "cluster": dict(cluster),
            "workload": self.workload(beside, **(workload or {})),
            "strategy": strategy,
            **sections,
        }
        recorded = json.dumps(self.recording.model_dump(mode="json", exclude_defaults=True))
        with whole_files(target.parent) as add:
            add(beside, lambda stream: _put(stream, recorded + "\n"))
            add(target.name, lambda stream: _put(stream, format_yaml(scenario)))
        return target


def _put(stream: Any, text: str) -> None:
    stream.write(text.encode())
