"""Pages in Markdown: their files, their commands, and what they say that these print.

A block of ``sh`` holds commands; where a block of ``text`` follows it directly, that is what they
print. A block with a ``title`` is a file of that name, which the blocks after it may use; one of
``diff`` with a title changes that file. Other blocks of ``python`` share one namespace. A line of
simdp's own and Python run in this process, the commands after a ``|`` in a shell.
"""

import math
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from simdp.cli import run_command_line
from simdp.cli.common import CHECK_FAILED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^python -m simdp (.*)")

FIRST = (
    ".venv/bin/python -m simdp run scenarios/8gpu_ring.yaml",
    ".venv/bin/python -m pytest -n auto",
)
"""Ends of the README's two commands, which make an environment: `.ci/run` runs them."""

LONG = {
    "gallery": "it redraws all pictures: minutes",
    "validate scenarios/validation": "it plays a thousand measured points: some minutes",
}
"""Beginnings of the commands that run under ``--long`` alone, and why; `.ci/run` does so."""

TORCH = re.compile(r"torchrun|audit .*\.py")
"""Beginnings of the commands that need torch, and are tried where it is installed."""

MAY_FAIL = "audit"
"""Command of a requested check, whose exit status 3 is a result."""

GIVEN = {
    "guides/diagnose.md": "import torch; rank, loader, train_step = 0, range(20), id",
    "guides/torchrun.md": "import torch; from torch.nn import functional as F; "
    "model, batch = torch.nn.Linear(8, 4), torch.zeros(2, 8); y = torch.zeros(2, dtype=torch.long)",
    "tutorials/slow_step.md": "import torch; rank, loader, train = 0, range(12), id",
}
"""Code for the names that a page's Python takes from a reader's own torch script."""


MEASURED = re.compile(r"(took|agrees?\s+to|rounding\s+explains)\s+[\d.e-]+")
"""Times and rounding errors of an audit, which differ between machines."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its file's name, its lines, and where they stand."""

    language: str
    title: str | None
    text: str
    start: int
    end: int
    whole_start: int
    whole_end: int


def blocks(page, language=None):
    """The fenced blocks of a page, or those in one language."""
    text = page.read_text()
    found = [
        Block(m[1], m[2], m[3], m.start(3), m.end(3), m.start(), m.end())
        for m in FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def section(page, title):
    """What stands under a heading of a page."""
    (text,) = re.findall(
        rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return text


def commands(block):
    """The commands of a block of ``sh``, without comments; a line may go on behind a backslash."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def is_long(command):
    match = COMMAND.match(command)
    return match is not None and match[1].startswith(tuple(LONG))


def is_tried(command, long=False):
    """Whether a command is run here: not what is long, or needs a torch that is not there."""
    if is_long(command) and not long:
        return False
    match = COMMAND.match(command)
    return not (match and TORCH.match(match[1])) or has_torch()


def is_example(block):
    """Whether a block is Python to run: not a file for other blocks."""
    return block.language == "python" and not block.title


def needs_torch(block):
    return re.search(r"\btorch\.", block.text) is not None


def run_example(page, block, names):
    """Run a block of Python in the namespace of its page; False where it needs a missing torch."""
    if needs_torch(block):
        if not has_torch():
            return False
        Path("traces").mkdir(exist_ok=True)
        exec(GIVEN[page.relative_to(DOCS).as_posix()], names)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "CUDA is not available")  # by torch's profiler
        exec(compile(block.text, f"{page.name}, a block of Python", "exec"), names)
    return True


def has_torch():
    """Whether torch can be imported here, and is not hidden from the tests."""
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:
        return False


def printed_by(command, capsys):
    """What a command prints; it must end well."""
    own, *rest = command.split(" | ")
    match = COMMAND.match(own)
    assert match is not None, f"{command}: simdp's own commands alone are tried"
    allowed = (0, CHECK_FAILED) if match[1].startswith(MAY_FAIL) else (0,)
    assert run_command_line(shlex.split(match[1])) in allowed, command
    printed = capsys.readouterr().out
    if rest:
        shell = ["sh", "-c", " | ".join(rest)]
        printed = subprocess.run(shell, input=printed, capture_output=True, text=True).stdout
    return printed


def play(page, capsys, long=False):
    """Run a page's commands and its Python in this folder, from the first to the last.

    Returns
    -------
    list of tuple of Block and str
        Each block of output, and what was printed in its place. One whose commands are long is
        left out unless ``long``, and one that needs torch where it is not installed.
    """
    text = page.read_text()
    found = blocks(page)
    outputs, names = [], {}
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.title:
            write_file(block)
            sys.modules.pop(Path(block.title).stem, None)  # of a page before
        elif block.language == "python":
            run_example(page, block, names)
            capsys.readouterr()
        if block.language != "sh":
            continue
        own = [line for line in commands(block) if not line.endswith(FIRST)]
        if not all(is_tried(line, long) for line in own):
            continue
        printed = "".join(printed_by(command, capsys) for command in own)
        between = after and text[block.whole_end : after.whole_start]
        if after is not None and after.language == "text" and not between.strip():
            assert own, f"{page.name}: {after.text!r} is printed by no command of simdp"
            outputs.append((after, tidy(printed)))
    return outputs


def write_file(block):
    """Write the file of a block, or change it by a block of ``diff``."""
    file = Path(block.title)
    if block.language != "diff":
        file.write_text(block.text)
        return
    lines, text = block.text.splitlines(keepends=True), file.read_text()
    before, after = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
    assert text.count(before) == 1, f"{block.title} does not have these lines once:\n{before}"
    file.write_text(text.replace(before, after))


def tidy(printed):
    """Without blanks at the ends of lines, and without empty lines at both ends."""
    lines = [line.rstrip() for line in printed.splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def rewrite(page, outputs):
    """Put into a page what its commands printed."""
    text = page.read_text()
    for block, printed in reversed(outputs):
        text = text[: block.start] + printed + text[block.end :]
    page.write_text(text)


def same(shown, printed):
    """Whether both are the same words, and numbers within what libraries round differently."""
    ours, theirs = (MEASURED.sub(r"\1 little", text).split() for text in (shown, printed))
    return len(ours) == len(theirs) and all(map(alike, ours, theirs))


def alike(shown, printed):
    if shown == printed:
        return True
    try:
        return math.isclose(float(shown), float(printed), rel_tol=0.02)
    except ValueError:
        return False
