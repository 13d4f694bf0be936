"""One command in this process, under limits of memory and time, and what it must never do."""

import io
import resource
import signal
import sys
import traceback
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from simdp.cli import run_command_line
from simdp.errors import MAX_LINE
from simdp.files.documents import PART

MAX_BYTES, MAX_SECONDS = 2 * 10**9, 20
ALLOWED = (0, 2, 3, 4)
"""Done; wrong input; a check that does not hold; deadlock."""


class TooLong(BaseException):
    """A command takes longer than it may."""


class Outcome(NamedTuple):
    """What a command did: its status, what it complained of, and what is wrong with that."""

    status: int | None
    complaints: list[str]
    fault: str | None


@contextmanager
def limits():
    """Let this process have so much more memory, and so much time of a processor."""

    def stop(*_):
        raise TooLong

    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MAX_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, handler)


def files():
    """Every file of the working folder, with its size."""
    return {str(path): path.stat().st_size for path in Path().rglob("*") if path.is_file()}


def outcome(*arguments):
    """Run one command in the working folder, and look for what must not be."""
    there, out, err, status = files(), io.StringIO(), io.StringIO(), None
    try:
        with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err), limits():
            warnings.simplefilter("error")  # a warning of Python's is more than a line, too
            status = run_command_line([str(argument) for argument in arguments])
    except TooLong:
        return Outcome(None, [], f"takes longer than {MAX_SECONDS} s")
    except Exception:
        told = traceback.format_exc().strip().splitlines()
        return Outcome(1, [], f"{told[-1][:200]} at {_innermost(sys.exc_info()[2])}")
    complaints = err.getvalue().splitlines()
    return Outcome(status, complaints, _fault(status, complaints, there))


def _innermost(trace):
    ours = [f for f in traceback.extract_tb(trace) if "simdp/" in f.filename]
    return f"{ours[-1].filename.split('simdp/')[-1]}:{ours[-1].lineno}" if ours else "?"


def _fault(status, complaints, there):
    now = files()
    if status not in ALLOWED:
        return f"status {status}"
    if any(name.endswith(PART) for name in now):
        return "a file is left half written"
    if status == 2 and not complaints:
        return "status 2 without a word"
    if status == 2 and now != there and not any("/points/" in name for name in now):
        return f"status 2, and files: {sorted(set(now) ^ set(there))}"
    for line in complaints:
        if len(line) > MAX_LINE or not line.replace("\ufffd", "").isprintable():
            return f"a line of {len(line)} characters: {line[:80]!r}"
    if "Traceback" in "".join(complaints):
        return "a traceback"
    return None
