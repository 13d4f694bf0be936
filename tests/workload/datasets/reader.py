"""A model of tokens that only has a face: what data sets ask a model, without its layers."""

from collections.abc import Mapping
from typing import Literal, Self

from simdp.workload.layers.base import GraphBuilder, ModelGraph, Shape
from simdp.workload.models.base import Model


class Reader(Model):
    """Tells what a transformer of the same task would."""

    kind: Literal["reader"] = "reader"
    task: str = "language_model"
    vocab: int = 20
    tgt_vocab: int = 20
    classes: int = 3
    pad: int | None = 0
    length: int | None = None
    tgt_length: int | None = None

    def build(self) -> ModelGraph:
        names = ("x", "tgt") if self.task == "seq2seq" else ("x",)
        graph = GraphBuilder(*names)
        return graph.build(graph.input("x"))

    def input_shapes(self) -> dict[str, Shape | None]:
        known = {"x": self.length, "tgt": self.tgt_length}
        names = ("x", "tgt") if self.task == "seq2seq" else ("x",)
        return {name: None if known[name] is None else (known[name],) for name in names}

    def with_input_shapes(self, shapes: Mapping[str, Shape]) -> Self:
        told = {name: shape[0] for name, shape in shapes.items()}
        return self.model_copy(
            update={
                "length": self.length or told.get("x"),
                "tgt_length": self.tgt_length or told.get("tgt"),
            }
        )

    def output_shape(self) -> Shape:
        if self.task == "classifier":
            return (self.classes,)
        if self.task == "seq2seq":
            return (self.tgt_length, self.tgt_vocab)
        return (self.length, self.vocab)

    def num_tokens(self, name: str) -> int | None:
        return {"x": self.vocab, "tgt": self.tgt_vocab}[name]

    @property
    def padding(self) -> int | None:
        return self.pad

    @property
    def target_follows(self) -> str | None:
        return {"classifier": None, "seq2seq": "tgt"}.get(self.task, "x")


def settled(dataset, model, base=None):
    """The model as a workload settles it: with the lengths that the data give."""
    return model.with_input_shapes(dataset.input_shapes(model, base))
