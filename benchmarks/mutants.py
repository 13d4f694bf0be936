"""Draws random mutants of operators, comparisons and constants, and finds the test that kills each.

python -m benchmarks.mutants [--number 15] [--seed 0] [--rooms engine,results]

Each mutant is tried in a copy of this checkout: first by the tests of its room, those of its own
module leading, then by the fast tier (``-m "not slow"``). Without torch, the modules that need it
are left out of the draw. It prints a table; a mutant that survives is either equivalent to the
code or lacks a test.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tokenize
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDS_TORCH = ("probes", "torch")
FAST = ("-m", "not slow")
LONGEST = 900.0
"""Time limit of one pytest command [s]; a mutant that exceeds it loops, and counts as killed."""

SWAPS = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "/",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "and": "or",
    "or": "and",
    "not": "",
    "0": "1",
    "1": "0",
}
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)


@dataclass(frozen=True)
class Mutant:
    """One token of a module, replaced.

    Parameters
    ----------
    module : str
        Path of the module from ``simdp/``.
    line, column : int
        Where the token starts: line from 1, column from 0 [characters].
    token, other : str
        The token and its replacement.
    """

    module: str
    line: int
    column: int
    token: str
    other: str

    @property
    def room(self) -> Path:
        """Folder of the module, from ``simdp/``."""
        return Path(self.module).parent

    def applied(self, source: str) -> str:
        """Source text of the module with the token replaced."""
        lines = source.splitlines(keepends=True)
        text = lines[self.line - 1]
        end = self.column + len(self.token)
        assert text[self.column : end] == self.token
        lines[self.line - 1] = text[: self.column] + self.other + text[end:]
        return "".join(lines)


def _between(node: ast.expr, after: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.end_lineno, node.end_col_offset), (after.lineno, after.col_offset)


def _gaps(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges (line, byte) that hold one operator or one constant each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, BINARY):
            yield _between(node.left, node.right)
        elif isinstance(node, ast.Compare):
            for op, sides in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
                if isinstance(op, ORDER):
                    yield _between(*sides)
        elif isinstance(node, ast.BoolOp):
            yield from (_between(*sides) for sides in pairwise(node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield (node.lineno, node.col_offset), (node.operand.lineno, node.operand.col_offset)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            yield (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    tokens = [
        (token.start, token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.string in SWAPS
    ]
    lines = source.splitlines()
    in_bytes = [(line, len(lines[line - 1][:column].encode())) for (line, column), _ in tokens]
    found = set()
    for start, end in _gaps(ast.parse(source)):
        first, past = bisect_left(in_bytes, start), bisect_left(in_bytes, end)
        if past == first + 1:
            (line, column), text = tokens[first]
            found.add(Mutant(module, line, column, text, SWAPS[text]))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.column))


def drawn(
    number: int, seed: int, rooms: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> list[Mutant]:
    """Mutants of the package or of some rooms, each equally likely, without repetition."""
    everything: list[Mutant] = []
    for path in sorted((ROOT / "simdp").rglob("*.py")):
        name = path.relative_to(ROOT / "simdp").as_posix()
        if name.startswith(tuple(f"{room}/" for room in without)):
            continue
        if not rooms or name.startswith(tuple(f"{room}/" for room in rooms)):
            everything += mutants(name, path.read_text())
    return random.Random(seed).sample(everything, min(number, len(everything)))


def room_tests(module: str, tests: Path) -> list[str]:
    """Test files and folders of a module's room: those named after the module first.

    A room without a folder in ``tests/`` has its tests in ``test_<room>*.py`` one folder above.
    """
    path = Path(module)
    own = [p for p in sorted(tests.rglob(f"test_{path.stem}*.py")) if path.stem != "__init__"]
    own = [p for p in own if p.parent == tests / path.parent]
    room = path.parent
    while room.parts:
        if (tests / room).is_dir():
            rest = sorted((tests / room).glob("test_*.py")) or [tests / room]
            break
        if rest := sorted((tests / room.parent).glob(f"test_{room.name}*.py")):
            break
        room = room.parent
    else:
        rest = sorted(tests.glob(f"test_{path.stem}*.py"))
    return [str(p.relative_to(tests.parent)) for p in dict.fromkeys([*own, *rest])]


def failed(copy: Path, arguments: list[str]) -> str | None:
    """First test that fails in a copy, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-rfE", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"no end within {LONGEST:g} s"
    if process.returncode in (0, 5):  # 5: no tests collected
        return None
    lines = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    return lines[0] if lines else printed.strip().splitlines()[-1]


def write(copy: Path, module: str, source: str) -> None:
    """Replace a module of a copy, and drop its byte code."""
    path = copy / "simdp" / module
    path.write_text(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def killer(copy: Path, mutant: Mutant) -> str | None:
    """Test that kills a mutant, or None if it survives."""
    source = (ROOT / "simdp" / mutant.module).read_text()
    write(copy, mutant.module, mutant.applied(source))
    try:
        own = room_tests(mutant.module, copy / "tests")
        return (failed(copy, own) if own else None) or failed(copy, list(FAST))
    finally:
        write(copy, mutant.module, source)


def copied(folder: Path) -> Path:
    """Copy the files of this checkout that git tracks or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def main() -> int:
    """Print one line per mutant; return 1 if more than 1 in 25 survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", default="", help="folders of simdp/, with commas between")
    given = parser.parse_args()
    rooms = tuple(filter(None, given.rooms.split(",")))
    survivors = 0
    without = () if importlib.util.find_spec("torch") else NEEDS_TORCH
    chosen = drawn(given.number, given.seed, rooms, without)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        if broken := failed(copy, list(FAST)):
            print(f"without a mutation {broken} fails", file=sys.stderr)
            return 2
        print("| module | line | mutation | killed by |\n|---|---|---|---|")
        for mutant in chosen:
            by = killer(copy, mutant)
            survivors += by is None
            change = f"`{mutant.token}` -> `{mutant.other}`"
            print(
                f"| {mutant.module} | {mutant.line}:{mutant.column} | {change} | "
                f"{by or '**survived**'} |",
                flush=True,
            )
    print(f"\n{survivors} of {len(chosen)} survived")
    return int(25 * survivors > len(chosen))


if __name__ == "__main__":
    sys.exit(main())
