"""FileNames: how tensors may be called in files of weights, beside the names that a model has."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple


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
