"""A model by its config.json, as the library transformers stores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from simdp.errors import ScenarioError, shown
from simdp.files import read_json
from simdp.phrases import problems
from simdp.spec import Int
from simdp.workload.graph import Graph
from simdp.workload.layers.base import Shape
from simdp.workload.models.base import Model
from simdp.workload.models.from_config import (
    ALWAYS_FIXED,
    ALWAYS_IGNORED,
    FROM_CONFIG,
    FromConfig,
)

OWN = ("sequence_length", "tgt_sequence_length")
"""Keys that are handed on to the model."""


class Transformers(Model):
    """``{kind: transformers, path: config.json}``: the model that such a file describes.

    It takes the model's place when the scenario is read. A key of the file that changes what is
    computed, and that the model does not have, is refused.

    Attributes
    ----------
    path : str
        The file, relative to the scenario's.
    architecture : str or None
        Class of transformers, such as BertForSequenceClassification; by default the first one of
        the file's ``architectures``.
    sequence_length, tgt_sequence_length : int or None
        Tokens of a sample, where the model takes text.
    """

    kind: Literal["transformers"] = "transformers"
    path: str
    architecture: str | None = None
    sequence_length: Int | None = Field(None, ge=1, le=10**8)
    tgt_sequence_length: Int | None = Field(None, ge=1, le=10**8)

    @property
    def unread(self) -> bool:
        return True

    def read(self, base: Path, itemsize: int) -> Model:
        path = base / self.path
        config = read_json(path)
        if not isinstance(config, dict):
            raise _refusal(path, "is not a config.json; it holds no keys.")
        entry, architecture = self._entry(path, config)
        from simdp.workload.models import MODELS  # which knows this model as well

        member = MODELS[entry.kind]
        keys = _keys(path, config, entry, member) | dict(entry.architectures[architecture])
        keys = entry.adjusted(config, keys)
        labels = config.get("id2label")
        classifies = keys.get("head", "classification") == "classification"
        if classifies and isinstance(labels, dict) and "num_labels" in member.model_fields:
            keys.setdefault("num_labels", len(labels))
        for key in OWN:
            if getattr(self, key) is not None:
                if key not in member.model_fields:
                    raise _refusal(path, f"{key}: the model {entry.kind} has none; leave it out.")
                keys[key] = getattr(self, key)
        raw = {"kind": entry.kind, **keys}
        try:
            made: Model = TypeAdapter(member).validate_python(raw)
        except ValidationError as error:
            raise ScenarioError(
                [f"{path}: {found.line}" for found in problems(error, raw)]
            ) from None
        return made

    def _entry(self, path: Path, config: Mapping[str, Any]) -> tuple[FromConfig, str]:
        """What is known of the file's model, and which class it is of."""
        from simdp.workload.models import MODELS

        known = {name: entry for name, entry in FROM_CONFIG.items() if entry.kind in MODELS}
        said = config.get("architectures") or []
        first = str(said[0]) if isinstance(said, list) and said else None
        wanted = self.architecture or first
        model_type = config.get("model_type")
        if model_type is None and wanted is not None:
            of = [name for name, entry in known.items() if wanted in entry.architectures]
            if not of:
                classes = [name for entry in known.values() for name in entry.architectures]
                raise _refusal(path, _unknown("architecture", wanted, classes))
            model_type = of[0]
        is_known = isinstance(model_type, str) and model_type in known
        if "text_config" in config and not is_known:
            raise _refusal(
                path,
                f"holds a text_config inside that of {shown(model_type)}; write that part into a "
                "file of its own, and name it instead.",
            )
        if not is_known:
            raise _refusal(path, _unknown("model_type", model_type, known))
        entry = known[str(model_type)]
        if wanted is None:
            wanted = next(iter(entry.architectures))
        if wanted not in entry.architectures:
            told = _unknown("architecture", wanted, entry.architectures)
            raise _refusal(path, f"{told} Choose one by architecture in the model.")
        return entry, wanted

    def build(self) -> Graph:
        raise AssertionError("the model of the file takes this one's place")

    def input_shapes(self) -> dict[str, Shape | None]:
        return {}


def _keys(
    path: Path, config: Mapping[str, Any], entry: FromConfig, member: type[Model]
) -> dict[str, Any]:
    """The model's keys, after all others have been found harmless."""
    found = {}
    for key, value in config.items():
        own = entry.renames.get(key, key)
        if own in member.model_fields and own not in entry.ignored:
            field = member.model_fields[own]
            if value is not None or type(None) in get_args(field.annotation):
                found[own] = _nested(path, key, value, entry, field.annotation)
        else:
            _refuse_what_matters(path, key, value, entry)
    return found


def _nested(path: Path, key: str, value: Any, entry: FromConfig, annotation: Any) -> Any:
    """A value that may have keys of its own, without those that change nothing."""
    if not isinstance(value, dict):
        return value
    if "type" in value and "rope_type" not in value and key.startswith("rope"):
        value = {("rope_type" if name == "type" else name): one for name, one in value.items()}
    fields = getattr(annotation, "model_fields", None)
    if fields is None:
        return value
    kept = {}
    for name, one in value.items():
        if name in fields:
            kept[name] = one
        else:
            _refuse_what_matters(path, f"{key}.{name}", one, entry)
    return kept


def _refuse_what_matters(path: Path, key: str, value: Any, entry: FromConfig) -> None:
    """Refuse a key that may change what is computed and that the model does not have."""
    name = key.split(".")[-1]
    fixed = {**ALWAYS_FIXED, **entry.fixed}
    if name in ALWAYS_IGNORED or name in entry.ignored:
        return
    if name in fixed:
        members = value if isinstance(value, list) else [value]
        if any(one is not None and one != fixed[name] for one in members):
            raise _refusal(
                path,
                f"{key} is {shown(value)}, but the model {entry.kind} knows "
                f"{shown(fixed[name])} alone; change it, or leave it out.",
            )
    elif value is not None:
        raise _refusal(
            path,
            f"{key} is {shown(value)}, which the model {entry.kind} does not know; take it out "
            "if it changes nothing of what is computed.",
        )


def _unknown(what: str, given: object, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(str(given), names, n=1, cutoff=0.0)
    return f"unknown {what} {shown(given)}; known: {', '.join(names)}. The nearest is {near[0]!r}."


def _refusal(path: Path, line: str) -> ScenarioError:
    return ScenarioError([f"{path}: {line}"])
