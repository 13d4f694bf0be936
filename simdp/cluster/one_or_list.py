"""One value for all, or a list of them: what mixed clusters give per rank or per node."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationInfo


def one_or_list(member: Any, value: Any, info: ValidationInfo, optional: bool = False) -> Any:
    """Validate by the form that was written, so that an error speaks of that form.

    Parameters
    ----------
    member : type
        What one value is.
    value : object
        As it was written.
    info : ValidationInfo
        Whose context is handed on.
    optional : bool
        Whether None stays None.
    """
    if value is None and optional:
        return None
    return _adapter(member, isinstance(value, list)).validate_python(value, context=info.context)


@cache
def _adapter(member: Any, listed: bool) -> TypeAdapter[Any]:
    return TypeAdapter(list[member] if listed else member)
