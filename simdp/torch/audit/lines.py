"""Lines of a script: the one that runs now, and the one that assigned a variable."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from simdp.files import INSTALLED

TORCH = str(Path(str(torch.__file__)).parent)
OURS = str(Path(__file__).parents[2])
STANDARD = sysconfig.get_paths()["stdlib"]


class Line(NamedTuple):
    """A line of a file."""

    file: str
    line: int


@lru_cache(maxsize=4096)
def is_script(file: str) -> bool:
    """Return whether a file is the user's: in no library, and not a string."""
    if file.startswith(("<", TORCH, OURS)):
        return False
    return not (INSTALLED & set(Path(file).parts) or file.startswith(STANDARD))


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


def stack() -> tuple[tuple[str, Line], ...]:
    """Return function and line of each frame of the script, the outermost first."""
    return tuple(
        (frame.f_code.co_qualname, Line(frame.f_code.co_filename, frame.f_lineno))
        for frame in reversed(frames())
    )


def directly(depth: int = 2) -> Line | None:
    """Return the line of the caller, if it is the script's; else None."""
    frame = sys._getframe(depth)
    file = frame.f_code.co_filename
    return Line(file, frame.f_lineno) if is_script(file) else None


def last_of_block(line: Line | None) -> Line | None:
    """Return the last statement of the block that a line is in."""
    if line is None:
        return None
    for node in ast.walk(_tree(line.file)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and any(
                isinstance(one, ast.stmt)
                and one.lineno <= line.line <= (one.end_lineno or 0)
                and not isinstance(
                    one,
                    ast.If
                    | ast.For
                    | ast.While
                    | ast.With
                    | ast.FunctionDef
                    | ast.ClassDef
                    | ast.Try,
                )
                for one in block
            ):
                return Line(line.file, block[-1].lineno)
    return line


def computed(line: Line | None) -> Line | None:
    """Return the line that computed a number which a statement uses; else the statement's."""
    return assigned(line, numbers=True)


WORLD_SIZE = re.compile(r"world|num_(processes|replicas|ranks|gpus|devices)|n_?(ranks|gpus)\b")
"""Names of the number of ranks in scripts."""


def by_world_size(frames: Sequence[Line]) -> Line | None:
    """Return the line of a call's number that depends on the number of ranks.

    Parameters
    ----------
    frames : sequence of Line
        Lines of the frames that make the call, the innermost first.

    Returns
    -------
    Line or None
        The first statement with a name of the number of ranks, among those of the frames and those
        that compute their numbers; else the first that computes a number; else the innermost.
    """
    listed = [part for line in frames for part in (line, computed(line)) if part is not None]
    named = (line for line in listed if WORLD_SIZE.search(_text(line)))
    numbers = (line for line in listed if line not in frames)
    return next(named, None) or next(numbers, None) or next(iter(frames), None)


def _text(line: Line) -> str:
    statement = _statement(_tree(line.file), line.line)
    return "" if statement is None else ast.unparse(statement)


def computes(line: Line | None) -> bool:
    """Return whether a statement has arithmetic of its own."""
    statement = None if line is None else _statement(_tree(line.file), line.line)
    return statement is not None and any(
        isinstance(node, ast.BinOp) for node in ast.walk(statement)
    )


def rate_line(file: str) -> Line | None:
    """Return the line from which a script computes a rate that it sets in ``param_groups``."""
    for node in ast.walk(_tree(file)):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(key, ast.Constant) and key.value == "lr":
                return assigned(Line(file, node.lineno))
    return None


def assigned(line: Line | None, numbers: bool = False) -> Line | None:
    """Return the line that last assigned a variable that a statement uses.

    Of a statement such as ``loss.backward()``, where the loss is computed. Returns the statement's
    line if it assigns none of the same function before it. ``numbers``: only by arithmetic.
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
        computes = _is_number if numbers else _computes
        if computes(node.value) and names & set(loads) and (best is None or node.lineno > best):
            best = node.lineno
    return line if best is None else Line(line.file, best)


def divided(line: Line) -> Line:
    """Return the first line after another one of its function that divides; else that one."""
    tree = _tree(line.file)
    _, last = _function(tree, line.line)
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
        if line.line < node.lineno <= last
    ]
    return Line(line.file, min(found, default=line.line))


def followed(line: Line | None, depth: int = 3) -> Line | None:
    """Return the line that computes what a statement assigns from a call of the script's function.

    It is the statement returned by the function, or the one that assigns what it returns; of a
    function that calls another one for it, the other's. The line itself if it calls none.
    """
    if line is None or not depth:
        return line
    tree = _tree(line.file)
    statement = _statement(tree, line.line)
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Call):
        return line
    name = getattr(value.func, "attr", getattr(value.func, "id", None))
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if len(functions) != 1 or _assigns(tree, line.line, str(name)):
        return line
    returns = [
        node
        for node in ast.walk(functions[0])
        if isinstance(node, ast.Return) and node.value is not None
    ]
    if not returns:
        return line
    found = Line(line.file, returns[-1].lineno)
    if not _computes(returns[-1].value):
        found = assigned(found) or found
    return followed(found, depth - 1)


def guard(line: Line | None) -> Line | None:
    """Return the innermost ``if`` with a remainder around a line, as of one rank's samples.

    The line itself if there is none.
    """
    if line is None:
        return None
    around = [
        node
        for node in ast.walk(_tree(line.file))
        if isinstance(node, ast.If)
        and node.body[0].lineno <= line.line <= (node.body[-1].end_lineno or 0)
        and any(isinstance(part, ast.Mod) for part in ast.walk(node.test))
    ]
    found = max(around, key=lambda node: node.lineno, default=None)
    return line if found is None else Line(line.file, found.lineno)


def argument(line: Line | None, names: Sequence[str]) -> Line | None:
    """Return the line that assigns what a call of a statement gets by one of these keywords.

    The line itself if it gets none, or no variable.
    """
    if line is None:
        return None
    tree = _tree(line.file)
    statement = _statement(tree, line.line)
    given = [
        keyword.value.id
        for node in ast.walk(statement or tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in names and isinstance(keyword.value, ast.Name)
    ]
    first, last = _function(tree, line.line)
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and first <= node.lineno <= min(line.line, last)
        and any(isinstance(one, ast.Name) and one.id in given for one in node.targets)
    ]
    return Line(line.file, max(found)) if found else line


def only_call(file: str, name: str) -> Line | None:
    """Return the line of the only call of a method in a file; None without, or with several."""
    found = [
        node.lineno
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == name
    ]
    return Line(file, found[0]) if len(found) == 1 else None


def _assigns(tree: ast.Module, line: int, name: str) -> bool:
    """Return whether the function of a line assigns a variable."""
    first, last = _function(tree, line)
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        for node in ast.walk(tree)
        if first <= getattr(node, "lineno", 0) <= last
    )


def _computes(value: ast.expr | None) -> bool:
    """Return whether an expression calls or computes something."""
    kinds = (ast.Call, ast.BinOp)
    return value is not None and any(isinstance(node, kinds) for node in ast.walk(value))


def _is_number(value: ast.expr | None) -> bool:
    """Return whether an expression is arithmetic, or a function of it such as ``int``."""
    if isinstance(value, ast.Call) and len(value.args) >= 1 and not value.keywords:
        return any(_is_number(one) for one in value.args)
    return isinstance(value, ast.BinOp)


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
