"""Family: a table of classes by kind, its own and those that come from outside.

A kind that is not one of simdp's is looked up outside: a name that an installed package offers as
an entry point of the group ``simdp.<family>``, or ``module:Class``. External kinds cannot replace
those of simdp, and are looked up only for an unknown kind.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

from simdp.errors import KindError

M = TypeVar("M", covariant=True)

GROUP = "simdp."
"""A family's entry points are of the group of this and its name."""

WRITTEN_OUT = r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)"
"""Pattern of ``module:Class``."""

OUTSIDE_MODULES: dict[str, str] = {}
"""Module of each kind from outside that was used in this process."""


class Offer(NamedTuple):
    """Entry point of an installed package."""

    kind: str
    """The entry point's name."""
    value: str
    """Where it leads, ``module:Class``."""
    package: str
    """The package and its version."""
    load: Callable[[], object]
    """Imports it."""


class Family(Mapping[str, type[M]]):
    """A family's table: as a mapping, simdp's own kinds and the class of each.

    A class is imported on first use, since a run needs few of all families.

    Parameters
    ----------
    name : str
        As ``list`` shows it: ``"strategies"``.
    base : type
        Base class of every member.
    package : str
        The family's package.
    classes : mapping of str to str
        For each kind ``module:Class``, a module of the package; or ``Class``, defined in the
        package itself.
    others : Family
        A family whose members belong to this one too; they come first.
    """

    def __init__(
        self,
        name: str,
        base: type[Any],
        package: str,
        classes: Mapping[str, str],
        *others: Family[M],
    ) -> None:
        self.name, self.base, self._others = name, base, others
        self._homes: dict[str, tuple[str, str]] = {}
        for other in others:
            self._homes |= other._homes
        for kind, name in classes.items():
            module, colon, member = name.partition(":")
            self._homes[kind] = (f"{package}.{module}", member) if colon else (package, name)
        self._found: dict[str, type[M]] = {}

    def __getitem__(self, kind: str) -> type[M]:
        module, name = self._homes[kind]
        return cast("type[M]", getattr(import_module(module), name))

    def __contains__(self, kind: object) -> bool:
        return kind in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    # From outside -------------------------------------------------------------------------------

    def find(self, kind: str) -> type[M] | None:
        """The class of a kind, external if it is none of simdp's; None if unknown.

        Parameters
        ----------
        kind : str
            A name, or ``module:Class``.

        Raises
        ------
        KindError
            If it comes from outside and cannot be loaded, or is no member of this family.
        """
        if kind in self._homes:
            return self[kind]
        if kind not in self._found:
            place = kind
            if ":" in kind:
                member = _written_out(kind, self.base)
            elif (offer := self._offer(kind)) is not None:
                member, place = _loaded(kind, offer), offer.value
            else:
                return None
            self._found[kind] = self._checked(kind, member)
            OUTSIDE_MODULES[kind] = place.partition(":")[0]
        return self._found[kind]

    def offered(self) -> list[str]:
        """Kinds that installed packages offer, sorted; none of them is loaded."""
        return sorted({offer.kind for offer in self._offers()} - set(self._homes))

    def offered_by(self, kind: str) -> str:
        """The packages that offer a kind, with their versions."""
        return " and ".join(offer.package for offer in self._offers() if offer.kind == kind)

    def _offers(self) -> list[Offer]:
        groups = [GROUP + family.name for family in (self, *self._others)]
        return [offer for group in groups for offer in _offers().get(group, ())]

    def _offer(self, kind: str) -> Offer | None:
        offers = [offer for offer in self._offers() if offer.kind == kind]
        values = sorted({offer.value for offer in offers})
        if len(values) > 1:
            raise KindError(
                f"{kind!r} is offered by {self.offered_by(kind)}; write out which is meant: "
                f"{' or '.join(values)}."
            )
        return offers[0] if offers else None

    def _checked(self, kind: str, member: object) -> type[M]:
        """Check an external class by the rules for our own.

        Raises
        ------
        KindError
            If it is no class of this family, is not finished, or has another kind.
        """
        base = self.base
        if not (isinstance(member, type) and issubclass(member, base)):
            raise KindError(
                f"{kind!r} is no {base.__name__}; derive it from {base.__module__}.{base.__name__}."
            )
        if inspect.isabstract(member):
            missing = ", ".join(sorted(getattr(member, "__abstractmethods__", ())))
            raise KindError(f"{kind!r} is not finished; it lacks {missing}.")
        field = cast("Any", member).model_fields["kind"]
        literal = field.annotation if get_origin(field.annotation) is Literal else None
        if literal is not None and kind not in get_args(literal):
            named = ", ".join(map(repr, get_args(literal)))
            raise KindError(
                f"{kind!r} calls itself {named}; write kind: str = {kind!r} in its class."
            )
        return cast("type[M]", member)


def has_offers(family: str) -> bool:
    """Whether an installed package offers a kind of a family; neither of them is loaded."""
    return GROUP + family in _offers()


@cache
def _offers() -> dict[str, list[Offer]]:
    """Entry points of installed packages for our groups; the look-up takes 50 ms and more."""
    from importlib.metadata import entry_points

    offers, all_of_them = dict[str, list[Offer]](), entry_points()
    for group in sorted(all_of_them.groups):
        for entry in all_of_them.select(group=group) if group.startswith(GROUP) else ():
            dist = entry.dist
            package = f"{dist.name} {dist.version}" if dist is not None else "an unknown package"
            offer = Offer(entry.name, entry.value, package, entry.load)
            offers.setdefault(group, []).append(offer)
    return offers


def _loaded(kind: str, offer: Offer) -> object:
    """Load an entry point; any exception is attributed to its package."""
    try:
        return offer.load()
    except Exception as error:
        raise KindError(f"{kind!r} cannot be loaded from {offer.value}: {_text(error)}.") from error


def _written_out(kind: str, base: type[Any]) -> object:
    """Load ``module:Class``, as Python finds modules: installed, or in the current folder."""
    parts = re.fullmatch(WRITTEN_OUT, kind)
    if parts is None:
        raise KindError(
            f"{kind!r} is not module:Class; write for example my_package.my_module:MyClass."
        )
    module, name = parts.groups()
    folder = str(Path.cwd())
    if folder not in sys.path and not sys.flags.safe_path:
        sys.path.append(folder)  # for good: the class may import more, and processes import it
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise KindError(f"{kind!r} cannot be loaded: {_text(error)}.") from error
        raise KindError(
            f"{kind!r}: there is no module {error.name}; install it, or run where it lies."
        ) from None
    except Exception as error:
        raise KindError(f"{kind!r} cannot be loaded: {_text(error)}.") from error
    if not hasattr(loaded, name):
        there = [
            key for key, of in vars(loaded).items() if isinstance(of, type) and issubclass(of, base)
        ]
        close = get_close_matches(name, there, n=1)
        hint = f" Did you mean {f'{module}:{close[0]}'!r}?" if close else ""
        raise KindError(f"{kind!r}: the module {module} has no {name}.{hint}")
    return getattr(loaded, name)


def _text(error: Exception) -> str:
    """An exception in one line."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(". :")
