"""A torch module as its operators ran: kernels, sizes, and the order of its gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError

from simdp.errors import ScenarioError
from simdp.files import read_json
from simdp.phrases import problems
from simdp.spec import Bool, Int, Spec
from simdp.workload.graph import Graph, GraphBuilder, Value
from simdp.workload.layers.base import Shape
from simdp.workload.layers.operator import (
    POLICIES,
    Count,
    Held,
    KeptSizes,
    KernelSizes,
    Learned,
    Operator,
    Size,
)
from simdp.workload.models.base import Model

FORMAT = 1
"""Number of the format below; a file of another one is refused."""


class GraphInput(Spec):
    """What a module is given.

    Attributes
    ----------
    name : str
        Of the argument.
    elements : int
        Numbers per sample.
    integers : bool
        Whether these are whole numbers, such as tokens.
    """

    name: str
    elements: Count
    integers: Bool = False


class RecordedCall(Spec):
    """An operator, and what it takes; see `simdp.workload.layers.operator.Operator`.

    Attributes
    ----------
    name : str
        Path of its module, and the operator's name.
    policy : str
        A key of ``POLICIES``.
    takes : tuple of int
        Numbers of values: the inputs' first, then what each operator made.
    elements, learned, products, forward, backward, keeps
        As the operator's attributes; parameters by their numbers in the file.
    """

    name: str
    policy: Literal["fused_attention", "product", "promote", "wide"] = "promote"
    takes: tuple[Count, ...] = ()
    elements: Count = 0
    learned: tuple[Count, ...] = ()
    products: Size = 0.0
    forward: tuple[KernelSizes, ...] = ()
    backward: tuple[KernelSizes, ...] = ()
    keeps: KeptSizes = KeptSizes()


class Recording(Spec):
    """What the file holds.

    Attributes
    ----------
    format : int
        Of the file.
    module, torch : str
        What was recorded, and by which release.
    inputs : tuple of GraphInput
        In the order of the module's arguments.
    parameters : tuple of Learned
        In torch's order of registration.
    frozen : tuple of int
        Which of them get no gradient.
    buffers : tuple of Held
        In torch's order of registration.
    operators : tuple of RecordedCall
        In the order of forward.
    output : int
        The value that backward begins at.
    """

    format: Annotated[Int, Field(ge=FORMAT, le=FORMAT)]
    module: str
    torch: str
    inputs: tuple[GraphInput, ...]
    parameters: tuple[Learned, ...]
    frozen: tuple[Count, ...] = ()
    buffers: tuple[Held, ...] = ()
    operators: Annotated[tuple[RecordedCall, ...], Field(min_length=1)]
    output: Count

    def problem(self) -> str | None:
        """Say which number of a value or of a parameter is none, or None."""
        first, parameters = len(self.inputs), len(self.parameters)
        for number, call in enumerate(self.operators):
            where = f"operators.{number}"
            if any(value >= first + number for value in call.takes):
                return f"{where}.takes: a value that is not made before it; record the file anew."
            if any(learned >= parameters for learned in call.learned):
                return f"{where}.learned: there are {parameters} parameters; record the file anew."
            if any(taken >= len(call.takes) for taken in call.keeps.inputs):
                return f"{where}.keeps: there are {len(call.takes)} inputs; record the file anew."
        if any(number >= parameters for number in self.frozen):
            return f"frozen: there are {parameters} parameters; record the file anew."
        if not first <= self.output < first + len(self.operators):
            return "output: is no operator's; record the file anew."
        return None


class Operators(Model):
    """``{kind: operators, path: gpt2.json}``: what `simdp.torch.workload` recorded of a module.

    Times and memory on any device follow from the kernels; there are no numbers. The loss is among
    the operators, if there was one.

    Attributes
    ----------
    path : str
        The file, relative to the scenario's.
    """

    kind: Literal["operators"] = "operators"
    path: str

    recorded: ClassVar[bool] = True

    _recording: Recording | None = PrivateAttr(default=None)

    @property
    def unread(self) -> bool:
        return True

    def read(self, base: Path, itemsize: int) -> Self:
        path = base / self.path
        raw = read_json(path)
        try:
            recording = Recording.model_validate(raw)
        except ValidationError as error:
            raise ScenarioError([f"{path}: {one.line}" for one in problems(error, raw)]) from None
        wrong = recording.problem()
        if wrong:
            raise ScenarioError([f"{path}: {wrong}"])
        return self.of(recording, self.path)

    @classmethod
    def of(cls, recording: Recording, path: str = "") -> Self:
        """The model of a recording that is read already."""
        found = cls(path=path)
        found._recording = recording
        return found

    @property
    def recording(self) -> Recording:
        """What the file holds; it is read when a workload is settled."""
        assert self._recording is not None, "the file is read when a workload is settled"
        return self._recording

    def build(self) -> Graph:
        found = self.recording
        graph = GraphBuilder(*(one.name for one in found.inputs))
        graph.register(Operator(name="", elements=0, learned=found.parameters, held=found.buffers))
        values = [graph.input(one.name) for one in found.inputs]
        for call in found.operators:
            layer = POLICIES[call.policy](
                name=call.name,
                elements=call.elements,
                learned=tuple(found.parameters[number] for number in call.learned),
                products=call.products,
                forward_kernels=call.forward,
                backward_kernels=call.backward,
                keeps=call.keeps,
            )
            values.append(graph.call(layer, *(values[number] for number in call.takes)))
        made = graph.build(Value(found.output))
        frozen = frozenset(found.parameters[number].name for number in found.frozen)
        return Graph(made.inputs, made.registered, made.calls, made.outputs, frozen)

    def input_shapes(self) -> dict[str, Shape | None]:
        return {one.name: (one.elements,) for one in self.recording.inputs}

    def num_tokens(self, name: str) -> int | None:
        integers = {one.name for one in self.recording.inputs if one.integers}
        return 2**31 if name in integers else None
