"""Groups: parameters, chosen by name, that an optimizer treats with arguments of their own."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, create_model

from simdp.spec import Spec


class ParamGroup(Spec):
    """Parameters whose names match a pattern, and the arguments that are theirs.

    Every key besides ``params`` is an argument of the optimizer that holds the group; the
    optimizer checks them.

    Attributes
    ----------
    params : tuple of str
        Patterns in which ``*`` stands for any text, dots too, ``?`` for one character and
        ``[ab]`` for one of some; upper and lower case differ.
    """

    model_config = ConfigDict(extra="allow")

    params: tuple[str, ...] = Field(min_length=1)

    @property
    def arguments(self) -> dict[str, Any]:
        """The group's own arguments by name."""
        return dict(self.model_extra or {})

    def matches(self, name: str) -> bool:
        """Whether a parameter belongs to the group, unless an earlier group takes it."""
        return any(fnmatchcase(name, pattern) for pattern in self.params)


def read_groups(optimizer: type[Spec], value: Any) -> tuple[ParamGroup, ...]:
    """Check groups against the arguments of an optimizer.

    Parameters
    ----------
    optimizer : Spec class
        Whose fields a group may set, apart from its kind and the groups themselves.
    value : Any
        A list of mappings or groups, as written.

    Returns
    -------
    tuple of ParamGroup
        With arguments as the optimizer's own fields would hold them.

    Raises
    ------
    pydantic.ValidationError
        If a group names no parameters, an unknown argument or a value that does not fit.
    """
    if isinstance(value, list | tuple):
        value = [each.model_dump() if isinstance(each, ParamGroup) else each for each in value]
    return tuple(ParamGroup(**_written(group)) for group in _grammar(optimizer)(value))


@cache
def _grammar(optimizer: type[Spec]) -> Callable[[Any], list[Spec]]:
    """Make the check of what may stand in groups: the optimizer's own fields, each optional.

    What it returns does not leave this module: pickle finds no class that is made on the fly.
    """
    fields: dict[str, Any] = {
        name: (field.rebuild_annotation() | None, None)
        for name, field in optimizer.model_fields.items()
        if name not in ("kind", "param_groups")
    }
    fields = {"params": (Annotated[list[str], Field(min_length=1)], ...), **fields}
    group = create_model(f"{optimizer.__name__}Group", __base__=Spec, **fields)
    groups: Any = list[group]
    return TypeAdapter[list[Spec]](groups).validate_python


def _written(group: Spec) -> dict[str, Any]:
    return {name: value for name, value in group if value is not None}
