"""What the probes refuse, each in one line, and the way out of a probe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from simdp.errors import SimdpError


class ProbeError(SimdpError):
    """The probe cannot run as asked: what was given, what is allowed, what to do."""

    exit_status = 2


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises
    ------
    ProbeError
        If torch is not installed.
    """
    if find_spec("torch") is None:
        raise ProbeError(
            "probes: run real torch, which is not installed; pip install 'simdp[torch]'."
        )


def say(line: str) -> None:
    """Tell the user how far a probe is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a probe's main function; what is wrong goes to stderr in one line.

    Returns
    -------
    int
        The exit status.
    """
    try:
        main(arguments)
    except SimdpError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0
