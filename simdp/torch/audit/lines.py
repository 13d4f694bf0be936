"""Lines of a script: the one that runs now, and the one that assigned a variable."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch

from simdp.files import INSTALLED

TORCH = str(Path(str(torch.__file__)).parent)
OURS = str(Path(__file__).parents[2])
STANDARD = sysconfig.get_path("stdlib")

Node = TypeVar("Node", bound=ast.AST)


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


def frames() -> Iterator[FrameType]:
    """Return the script's frames, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _line_of(frame: FrameType) -> Line:
    return Line(frame.f_code.co_filename, frame.f_lineno)


def running() -> Line | None:
    """Return the innermost line of the script that runs; None in none."""
    return next(map(_line_of, frames()), None)


def calling(skipped: Callable[[Any], bool]) -> Line | None:
    """Return the innermost line of the script outside of methods whose ``self`` is skipped."""
    line = None
    for frame in frames():
        line = _line_of(frame)
        if not skipped(frame.f_locals.get("self")):
            break
    return line


def stack() -> tuple[tuple[str, Line], ...]:
    """Return function and line of each frame of the script, the outermost first."""
    return tuple((frame.f_code.co_qualname, _line_of(frame)) for frame in frames())[::-1]


def directly(depth: int = 2) -> Line | None:
    """Return the line of the caller, if it is the script's; else None."""
    frame = sys._getframe(depth)
    return _line_of(frame) if is_script(frame.f_code.co_filename) else None


COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.ClassDef, ast.Try)
"""Statements with a block of their own."""


def last_of_block(line: Line | None) -> Line | None:
    """Return the last statement of the block that a line is in."""
    if line is None:
        return None
    for node in ast.walk(_tree(line.file)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and any(
                isinstance(statement, ast.stmt)
                and _covers(statement, line.line)
                and not isinstance(statement, COMPOUND)
                for statement in block
            ):
                return Line(line.file, block[-1].lineno)
    return line


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
    lines = [part for line in frames for part in (line, assigned(line, True)) if part is not None]
    named = (line for line in lines if WORLD_SIZE.search(_text(line)))
    numbers = (line for line in lines if line not in frames)
    return next(named, None) or next(numbers, None) or next(iter(frames), None)


def _text(line: Line) -> str:
    statement = _statement(line)
    return "" if statement is None else ast.unparse(statement)


def computes(line: Line | None) -> bool:
    """Return whether a statement has arithmetic of its own."""
    statement = None if line is None else _statement(line)
    return statement is not None and any(
        isinstance(node, ast.BinOp) for node in ast.walk(statement)
    )


def rate_line(file: str) -> Line | None:
    """Return the line from which a script computes a rate that it sets in ``param_groups``."""
    for node in _nodes(_tree(file), ast.Assign):
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
    statement = None if line is None else _statement(line)
    if line is None or statement is None:
        return line
    loads = {n.id for n in _nodes(statement, ast.Name) if isinstance(n.ctx, ast.Load)}
    assignments = []
    first, last = _function(line)
    for node in ast.walk(_tree(line.file)):
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {name.id for target in targets for name in _nodes(target, ast.Name)}
        computes = _is_number if numbers else _computes
        before = first <= node.lineno < statement.lineno <= last
        if before and computes(node.value) and names & loads:
            assignments.append(node.lineno)
    return Line(line.file, max(assignments)) if assignments else line


def divided(line: Line) -> Line:
    """Return the first line after another one of its function that divides; else that one."""
    _, last = _function(line)
    divisions = [
        node.lineno
        for node in ast.walk(_tree(line.file))
        if isinstance(node, ast.BinOp | ast.AugAssign)
        if isinstance(node.op, ast.Div) and line.line < node.lineno <= last
    ]
    return Line(line.file, min(divisions, default=line.line))


def followed(line: Line | None, depth: int = 3) -> Line | None:
    """Return the line that computes what a statement assigns from a call of the script's function.

    It is the statement returned by the function, or the one that assigns what it returns; of a
    function that calls another one for it, the other's. The line itself if it calls none.
    """
    if line is None or not depth:
        return line
    value = getattr(_statement(line), "value", None)
    if not isinstance(value, ast.Call):
        return line
    name = getattr(value.func, "attr", getattr(value.func, "id", None))
    functions = [node for node in _nodes(_tree(line.file), ast.FunctionDef) if node.name == name]
    if len(functions) != 1 or _assigns(line, str(name)):
        return line
    returns = [node for node in _nodes(functions[0], ast.Return) if node.value is not None]
    if not returns:
        return line
    computing = Line(line.file, returns[-1].lineno)
    if not _computes(returns[-1].value):
        computing = assigned(computing) or computing
    return followed(computing, depth - 1)


def guard(line: Line | None) -> Line | None:
    """Return the innermost ``if`` with a remainder around a line, as of one rank's samples.

    The line itself if there is none.
    """
    if line is None:
        return None
    around = [
        node.lineno
        for node in _nodes(_tree(line.file), ast.If)
        if node.body[0].lineno <= line.line <= (node.body[-1].end_lineno or 0)
        and any(_nodes(node.test, ast.Mod))
    ]
    return Line(line.file, max(around)) if around else line


def argument(line: Line | None, names: Sequence[str]) -> Line | None:
    """Return the line that assigns what a call of a statement gets by one of these keywords.

    The line itself if it gets none, or no variable.
    """
    if line is None:
        return None
    tree = _tree(line.file)
    variables = [
        keyword.value.id
        for node in _nodes(_statement(line) or tree, ast.Call)
        for keyword in node.keywords
        if keyword.arg in names and isinstance(keyword.value, ast.Name)
    ]
    first, last = _function(line)
    assignments = [
        node.lineno
        for node in _nodes(tree, ast.Assign)
        if first <= node.lineno <= min(line.line, last)
        and any(getattr(target, "id", None) in variables for target in node.targets)
    ]
    return Line(line.file, max(assignments)) if assignments else line


def only_call(file: str, name: str) -> Line | None:
    """Return the line of the only call of a method in a file; None without, or with several."""
    calls = _nodes(_tree(file), ast.Call)
    lines = [node.lineno for node in calls if getattr(node.func, "attr", None) == name]
    return Line(file, lines[0]) if len(lines) == 1 else None


def _assigns(line: Line, name: str) -> bool:
    first, last = _function(line)
    return any(
        isinstance(node.ctx, ast.Store) and node.id == name and first <= node.lineno <= last
        for node in _nodes(_tree(line.file), ast.Name)
    )


def _computes(value: ast.expr | None) -> bool:
    return value is not None and any(_nodes(value, ast.Call, ast.BinOp))


def _is_number(value: ast.expr | None) -> bool:
    """Return whether an expression is arithmetic, or a function of it such as ``int``."""
    if isinstance(value, ast.Call) and len(value.args) >= 1 and not value.keywords:
        return any(map(_is_number, value.args))
    return isinstance(value, ast.BinOp)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _nodes(tree: ast.AST, *kinds: type[Node]) -> Iterator[Node]:
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _statement(line: Line) -> ast.stmt | None:
    """Return the smallest statement that covers a line."""
    covering = [node for node in _nodes(_tree(line.file), ast.stmt) if _covers(node, line.line)]
    return max(reversed(covering), key=lambda node: node.lineno, default=None)


def _function(line: Line) -> tuple[int, int]:
    """Return the first and last line of the function around a line."""
    functions = _nodes(_tree(line.file), ast.FunctionDef, ast.AsyncFunctionDef)
    covering = [node for node in functions if _covers(node, line.line)]
    innermost = max(covering, key=lambda node: node.lineno, default=None)
    return (0, 1 << 30) if innermost is None else (innermost.lineno, innermost.end_lineno or 0)
