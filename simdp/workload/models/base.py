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
from simdp.workload.layers.base import (
    Initial,
    ModelGraph,
    Parameter,
    Shape,
    constant,
)


class FileNames(NamedTuple):
    """Mapping of tensor names by transformers' ``from_pretrained``, for one kind of model."""

    prefix: str = ""
    """Of the model inside its head's model, such as ``transformer``; a file of the model without a
    head has names without it."""
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns of older names, and their replacements."""
    ignored: tuple[str, ...] = ()
    """Patterns of names allowed in a file though the model lacks them: shared weights, and masks
    that are computed."""
    tied: tuple[tuple[str, str], ...] = ()
    """Pairs of names with equal tensors if the model ties its embeddings; a file in which they
    differ is of a model without ties."""

    def pairs(self, stored: Collection[str], wanted: Collection[str]) -> list[tuple[str, str]]:
        """Match the tensors of a file to the model's: pairs of model name and file name.

        Ignored names are left out.
        """
        names = [(self._renamed(name), name) for name in stored]
        lead = f"{self.prefix}."
        inside = self.prefix and any(name.startswith(lead) for name, _ in names)
        if self.prefix and not inside and any(name.startswith(lead) for name in wanted):
            names = [(new if new in wanted else lead + new, name) for new, name in names]
        if inside and not any(name.startswith(lead) for name in wanted):
            names = [(new.removeprefix(lead), name) for new, name in names if new.startswith(lead)]
        return [(new, name) for new, name in names if new in wanted or not self._is_ignored(new)]

    def _renamed(self, name: str) -> str:
        for pattern, new in self.renames:
            name = re.sub(pattern, new, name)
        return name

    def _is_ignored(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignored)


PLAIN = FileNames()
"""For files with the model's own names."""


class Model(Spec):
    """Base of models: a graph, and the shapes of a sample and of its output."""

    kind: str

    timed: ClassVar[bool] = False
    """Whether layers have given times and no numbers."""

    recorded: ClassVar[bool] = False
    """Whether only kernels and sizes of its layers, including the loss, are known."""

    depth_key: ClassVar[str | None] = None
    """The key of the number of blocks, if the model is a stack of equal ones."""

    moved_to_sdpa: ClassVar[bool] = False
    """Whether its library ran eager attention when `Workload.attention` got its default, and runs
    scaled_dot_product_attention today."""

    trained_with_fused_loss: ClassVar[bool] = False
    """Whether its library trains it with a fused cross entropy."""

    padding_is_unseen: ClassVar[bool] = False
    """Whether no token attends to later ones, so that any token can pad short samples."""

    file_names: ClassVar[FileNames] = PLAIN
    """Names of its tensors in files of weights."""

    @property
    def unread(self) -> bool:
        """Whether nothing is known of the model before its file is read."""
        return self.timed

    def read(self, base: Path, itemsize: int) -> Model:
        """Return the model described by its files; by default the model itself.

        ``base`` is the folder of relative paths, ``itemsize`` that of a gradient [bytes]. Raises
        ScenarioError if a file cannot be read.
        """
        return self

    @abstractmethod
    def build(self) -> ModelGraph:
        """Build the graph, like a torch module's ``__init__`` and ``forward``."""

    @cached_property
    def graph(self) -> ModelGraph:
        """The model's layers and their connections."""
        return self.build()

    @abstractmethod
    def input_shapes(self) -> dict[str, Shape | None]:
        """Shape of one sample of each input; None if it depends on the data."""

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        """The same model for samples of these shapes, where its own keys leave them open."""
        return self

    def how_to_give_shapes(self) -> str:
        """Advice in errors where `input_shapes` is unknown."""
        return "give it in the model."

    def output_shape(self) -> Shape:
        """Shape of the output for one sample; every input's shape must be known."""
        return self.shapes(self.known_shapes())[self.graph.outputs[0][0]]

    def known_shapes(self) -> tuple[Shape, ...]:
        """Shapes of the inputs, which must be known."""
        shapes_by_input = self.input_shapes()
        shapes = tuple(shapes_by_input[name] for name in self.graph.inputs)
        assert all(shape is not None for shape in shapes), "the scenario's checks refuse this"
        return tuple(shape for shape in shapes if shape is not None)

    def shapes(self, inputs: tuple[Shape, ...]) -> list[Shape]:
        """Shape of every value of the graph; see `ModelGraph.shapes`."""
        return self.graph.shapes(inputs)

    def num_tokens(self, name: str) -> int | None:
        """Vocabulary size of an input; None if it takes real numbers."""
        return None

    @property
    def padding(self) -> int | None:
        """Token that pads short samples, if any."""
        return None

    @property
    def target_follows(self) -> str | None:
        """Input with the length of the targets, if there is one target per token."""
        return None

    def initial(self, parameter: Parameter) -> Initial:
        """Initial values of a parameter; by default those of its layer."""
        return parameter.initial

    def draws(self) -> Sequence[Parameter]:
        """Parameters in the order in which torch fills them; the last value of each counts.

        Layers' constructors come first, then `filled_again`; first for the parameters `in_trunk`,
        then for the others.
        """
        draws = [self.constructed(), self.filled_again()]
        trunk = [p for part in draws for p in part if self.in_trunk(p.name)]
        return [*trunk, *(p for part in draws for p in part if not self.in_trunk(p.name))]

    def in_trunk(self, name: str) -> bool:
        """Whether a parameter is filled before the head is constructed."""
        return True

    def constructed(self) -> Sequence[Parameter]:
        """Parameters in the order in which torch's constructors fill them."""
        return self.graph.draws

    def filled_again(self) -> Sequence[Parameter]:
        """Parameters that the model fills after the constructors, in registration order."""
        own = [(p, self.initial(p)) for p in self.graph.parameters]
        return [p._replace(initial=start) for p, start in own if start is not p.initial]

    def parameters(self) -> list[Parameter]:
        """Trainable tensors, in torch's order of registration."""
        return list(self.graph.parameters)

    def ready_order(self) -> list[str]:
        """Names of the parameters in the order in which backward finishes their gradients."""
        return list(self.graph.ready_order)

    def num_parameters(self) -> int:
        """Number of trainable elements."""
        return sum(parameter.num_elements for parameter in self.graph.parameters)


class SequenceModel(Model):
    """Base of models of sequences ``x`` and possibly ``tgt``, of lengths given or the data's."""

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        keys = {"x": "sequence_length", "tgt": "tgt_sequence_length"}
        known = {
            keys[name]: shapes[name][0]
            for name, shape in self.input_shapes().items()
            if shape is None and len(shapes.get(name, ())) == 1
        }
        return self.model_copy(update=known)


class TextModel(Model):
    """Base of transformers' models: weights start normal, biases at 0, norms at 1."""

    file_names: ClassVar[FileNames] = FileNames(
        ignored=(r"^lm_head\.weight$", r"rotary_emb\.inv_freq$", r"\.attention\.(masked_)?bias$")
    )

    trunk: ClassVar[str] = ""
    """Prefix of the parameters that transformers fills before it constructs the head."""

    vocab_size: Int = Field(ge=1, le=10**9)
    """Size of the vocabulary."""
    initializer_range: Float = Field(0.02, ge=0)
    """Standard deviation of the initial weights."""
    sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Tokens of a sample; by default those of the data, or `usual_length`."""

    @property
    @abstractmethod
    def num_places(self) -> int:
        """Maximum length that the position embedding allows [tokens]."""

    @property
    @abstractmethod
    def usual_length(self) -> int:
        """Length of a sample where neither the model nor the data define it [tokens]."""

    @model_validator(mode="after")
    def _places_suffice(self) -> Self:
        if (self.sequence_length or 0) > self.num_places:
            raise problem(
                f"sequence_length: {self.sequence_length} tokens are more than the "
                f"{self.num_places} positions of the model; shorten it, or enlarge the model."
            )
        return self

    def std_of(self, name: str) -> float:
        """Standard deviation of an initial weight; by default the same for all."""
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


class CausalModel(TextModel):
    """Base of language models, in which no token attends to later ones."""

    padding_is_unseen: ClassVar[bool] = True

    @property
    def usual_length(self) -> int:
        return self.num_places

    @property
    def target_follows(self) -> str | None:
        return "x"
