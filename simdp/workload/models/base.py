"""Model: a graph of layers, with torch's parameter names, shapes and orders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from simdp.spec import Spec
from simdp.workload.graph import Graph
from simdp.workload.layers import Parameter
from simdp.workload.layers.base import Shape
from simdp.workload.layers.parameter import Initial
from simdp.workload.models.file_names import PLAIN, FileNames


class Model(Spec):
    """What is trained: a graph, and the shapes of a sample and of its output."""

    kind: str

    timed: ClassVar[bool] = False
    """Whether layers bring their times, so that there are no numbers to compute."""

    recorded: ClassVar[bool] = False
    """Whether of its layers, and of the loss among them, only kernels and sizes are known."""

    depth_key: ClassVar[str | None] = None
    """The key that says how many equal blocks the model has, where it is a stack of them."""

    padding_is_unseen: ClassVar[bool] = False
    """Whether nothing that is made of a token depends on later ones: what fills a short sample up
    is then seen by nobody, whatever token it is."""

    file_names: ClassVar[FileNames] = PLAIN
    """How its tensors may be called in files of weights."""

    @property
    def unread(self) -> bool:
        """Whether nothing is known of it before its file has been read."""
        return self.timed

    def read(self, base: Path, itemsize: int) -> Model:
        """The model that its files tell of; by default it has none, and is the same.

        Parameters
        ----------
        base : Path
            Folder that relative paths start from.
        itemsize : int
            Bytes per element of a gradient.

        Raises
        ------
        ScenarioError
            If a file cannot be read.
        """
        return self

    @abstractmethod
    def build(self) -> Graph:
        """Make the graph, as a torch module's ``__init__`` and ``forward`` do."""

    @cached_property
    def graph(self) -> Graph:
        """The model's layers and how they are joined."""
        return self.build()

    @abstractmethod
    def input_shapes(self) -> dict[str, Shape | None]:
        """Shape of one sample of each input; None where only the data can tell."""

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        """The same model for samples of these shapes, where its own keys leave them open."""
        return self

    def how_to_give_shapes(self) -> str:
        """What to write where `input_shapes` is not known."""
        return "give it in the model."

    def output_shape(self) -> Shape:
        """Shape of what the model makes of one sample; every input's shape must be known."""
        return self.shapes(self.known_shapes())[self.graph.outputs[0][0]]

    def known_shapes(self) -> tuple[Shape, ...]:
        """Shapes of the inputs, which must be known."""
        found = self.input_shapes()
        shapes = tuple(found[name] for name in self.graph.inputs)
        assert all(shape is not None for shape in shapes), "the scenario's checks refuse this"
        return tuple(shape for shape in shapes if shape is not None)

    def shapes(self, inputs: tuple[Shape, ...]) -> list[Shape]:
        """Shape of every value of the graph; see `Graph.shapes`."""
        return self.graph.shapes(inputs)

    def num_tokens(self, name: str) -> int | None:
        """How many different tokens an input may hold; None where it takes real numbers."""
        return None

    @property
    def padding(self) -> int | None:
        """The token that fills short samples up to the length of long ones, if there is one."""
        return None

    @property
    def target_follows(self) -> str | None:
        """The input whose length the targets share, where they have one target per token."""
        return None

    def initial(self, parameter: Parameter) -> Initial:
        """How a parameter starts; by default as its layer does alone."""
        return parameter.initial

    def draws(self) -> Sequence[Parameter]:
        """Parameters in the order in which torch fills them; the last value of each stays.

        The constructors of the layers come first, then `filled_again`; first for the parameters
        `in_trunk`, then for the others.
        """
        draws = [self.constructed(), self.filled_again()]
        trunk = [p for part in draws for p in part if self.in_trunk(p.name)]
        return [*trunk, *(p for part in draws for p in part if not self.in_trunk(p.name))]

    def in_trunk(self, name: str) -> bool:
        """Whether a parameter's module is complete and filled before the head is constructed."""
        return True

    def constructed(self) -> Sequence[Parameter]:
        """Parameters in the order in which the constructors of torch's layers fill them."""
        return self.graph.draws

    def filled_again(self) -> Sequence[Parameter]:
        """What the model fills otherwise than constructors, by default in order of registration."""
        own = [(p, self.initial(p)) for p in self.graph.parameters]
        return [p._replace(initial=start) for p, start in own if start is not p.initial]

    def parameters(self) -> list[Parameter]:
        """Learned tensors, in torch's order of registration."""
        return list(self.graph.parameters)

    def ready_order(self) -> list[str]:
        """Names of the parameters in the order in which backward finishes their gradients."""
        return list(self.graph.ready_order)

    def num_parameters(self) -> int:
        """Number of learned elements."""
        return sum(parameter.num_elements for parameter in self.graph.parameters)
