"""The bases of models: any model, models of images, models of text."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from simdp.spec import Float, Int, Spec, problem
from simdp.workload.layers import Parameter
from simdp.workload.layers.base import (
    Initial,
    ModelGraph,
    Shape,
    constant,
)


class FileNames(NamedTuple):
    """What transformers' ``from_pretrained`` does with names, for one kind of model.

    Attributes
    ----------
    prefix : str
        Of the model under its head, such as ``transformer``; a file of the model without a head
        has names without it.
    renames : tuple of (str, str)
        Patterns of names as older versions wrote them, and what takes their place.
    ignored : tuple of str
        Patterns of names that may be there although the model lacks them: weights that it shares
        with others, and masks that it makes anew.
    tied : tuple of (str, str)
        Names of tensors of which the first is the second where the model ties its embeddings; a
        file in which they differ is of a model that does not.
    """

    prefix: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()

    def pairs(self, stored: Collection[str], wanted: Collection[str]) -> list[tuple[str, str]]:
        """Name the tensors of a file as the model does.

        Parameters
        ----------
        stored : collection of str
            Names in the file.
        wanted : collection of str
            Names in the model.

        Returns
        -------
        list of (str, str)
            What the model calls each tensor, and what the file does; ignored ones are left out.
        """
        found = [(self._renamed(name), name) for name in stored]
        lead = f"{self.prefix}."
        inside = self.prefix and any(name.startswith(lead) for name, _ in found)
        if self.prefix and not inside and any(name.startswith(lead) for name in wanted):
            found = [(new if new in wanted else lead + new, name) for new, name in found]
        if inside and not any(name.startswith(lead) for name in wanted):
            found = [(new.removeprefix(lead), name) for new, name in found if new.startswith(lead)]
        return [(new, name) for new, name in found if new in wanted or not self._is_ignored(new)]

    def _renamed(self, name: str) -> str:
        for pattern, new in self.renames:
            name = re.sub(pattern, new, name)
        return name

    def _is_ignored(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignored)


PLAIN = FileNames()
"""Files call tensors as the model does."""


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
    def build(self) -> ModelGraph:
        """Make the graph, as a torch module's ``__init__`` and ``forward`` do."""

    @cached_property
    def graph(self) -> ModelGraph:
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


class TextModel(Model):
    """Weights start as transformers': normal, biases at 0, norms at 1.

    Attributes
    ----------
    vocab_size : int
        How many different tokens there are.
    initializer_range : float
        Standard deviation of the weights at the start.
    sequence_length : int or None
        Tokens of a sample; by default those of the data, or `usual_length` of them.
    """

    file_names: ClassVar[FileNames] = FileNames(
        ignored=(r"^lm_head\.weight$", r"rotary_emb\.inv_freq$", r"\.attention\.(masked_)?bias$")
    )

    trunk: ClassVar[str] = ""
    """Leads the names of parameters that transformers fills before it constructs the head."""

    vocab_size: Int = Field(ge=1, le=10**9)
    initializer_range: Float = Field(0.02, ge=0)
    sequence_length: Int | None = Field(None, ge=1, le=10**8)

    @property
    @abstractmethod
    def num_places(self) -> int:
        """Tokens of the longest sample that the position embedding knows."""

    @property
    @abstractmethod
    def usual_length(self) -> int:
        """Tokens of a sample where neither the model nor the data say."""

    @model_validator(mode="after")
    def _places_suffice(self) -> Self:
        if (self.sequence_length or 0) > self.num_places:
            raise problem(
                f"sequence_length: {self.sequence_length} tokens are more than the "
                f"{self.num_places} places that the model knows; shorten it or give more places."
            )
        return self

    def std_of(self, name: str) -> float:
        """Standard deviation of a weight at the start; by default the same for all."""
        return self.initializer_range

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 2:
            return replace(parameter.initial, kind="normal", size=self.std_of(parameter.name))
        return constant(0.0) if parameter.name.endswith("bias") else parameter.initial

    def in_trunk(self, name: str) -> bool:
        return name.startswith(self.trunk)

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.sequence_length or self.usual_length,)}

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        if self.sequence_length is not None or len(shapes.get("x", ())) != 1:
            return self
        return self.model_copy(update={"sequence_length": shapes["x"][0]})

    def num_tokens(self, name: str) -> int | None:
        return self.vocab_size
