"""Parts: what each rank has for itself in a process that all ranks share.

A part is one such thing: the generators, the process groups, the devices. The launcher asks all
of them, in the order of `PARTS`, whenever a rank begins, gets the baton, gives it up, or ends.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from simdp.torch.ranks import Rank


class Part:
    """One thing that each rank has for itself; what a part needs not, it leaves as it is here."""

    def installed(self) -> AbstractContextManager[None]:
        """Stand in for what belongs to the process, while a program runs on any ranks."""
        return nullcontext()

    def begin(self, rank: Rank) -> None:
        """Make what a rank has, in the rank's thread, before its script begins."""

    def enter(self, rank: Rank) -> None:
        """Put what a rank has in its place: the rank has the baton, and goes on."""

    def leave(self, rank: Rank) -> None:
        """Keep what a rank has: it is about to give the baton up."""

    def end(self, rank: Rank) -> None:
        """Clear away after a rank, in the rank's thread, when its script is over."""


PARTS: list[Part] = []
"""All of them; who comes first is installed first, and leaves last."""
