"""Lines of a script: the one that runs now, and the one that assigned a variable."""

from __future__ import annotations

import ast
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

TORCH = str(Path(str(torch.__file__)).parent)
OURS = str(Path(__file__).parents[2])
STANDARD = sysconfig.get_paths()["stdlib"]
INSTALLED = ("site-packages", "dist-packages")


class Line(NamedTuple):
    """A line of a file."""

    file: str
    line: int


@lru_cache(maxsize=4096)
def is_script(file: str) -> bool:
    """Return whether a file is the user's: in no library, and not a string."""
    if file.startswith(("<", TORCH, OURS)):
        return False
    parts = Path(file).parts
    return not (any(name in parts for name in INSTALLED) or file.startswith(STANDARD))


def frames() -> list[FrameType]:
    """Return the script's frames, the innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def running() -> Line | None:
    """Return the innermost line of the script that runs; None in none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def calling(skipped: Any) -> Line | None:
    """Return the innermost line of the script outside of methods whose ``self`` is skipped."""
    found = None
    for frame in frames():
        found = Line(frame.f_code.co_filename, frame.f_lineno)
        if not skipped(frame.f_locals.get("self")):
            return found
    return found


def assigned(line: Line | None) -> Line | None:
    """Return the line that last assigned a variable that a statement uses.

    Of a statement such as ``loss.backward()``, where the loss is computed. Returns the statement's
    line if it assigns none of the same function before it.
    """
    if line is None:
        return None
    tree = _tree(line.file)
    statement = _statement(tree, line.line)
    if statement is None:
        return line
    loads = {
        node.id: None
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    best: int | None = None
    first, last = _function(tree, line.line)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        if not first <= node.lineno < statement.lineno <= last:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {
            part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
        }
        if _computes(node.value) and names & set(loads) and (best is None or node.lineno > best):
            best = node.lineno
    return line if best is None else Line(line.file, best)


def _computes(value: ast.expr | None) -> bool:
    """Return whether an expression calls or computes something."""
    kinds = (ast.Call, ast.BinOp)
    return value is not None and any(isinstance(node, kinds) for node in ast.walk(value))


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """Return the smallest statement that covers a line."""
    found: ast.stmt | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if found is None or node.lineno >= found.lineno:
            found = node
    return found


def _function(tree: ast.Module, line: int) -> tuple[int, int]:
    """Return the first and last line of the function around a line."""
    found = (0, 1 << 30)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.lineno <= line <= (node.end_lineno or 0) and node.lineno > found[0]:
            found = node.lineno, node.end_lineno or 0
    return found
