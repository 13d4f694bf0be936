"""Every regular expression takes time in proportion to its text, whatever the text.

Texts repeat single characters, and the parts that a pattern itself looks for.
"""

import ast
import importlib
import re
import time
from pathlib import Path
from re import _parser

import pytest

import simdp

pytestmark = pytest.mark.long

ROOT = Path(simdp.__file__).parent

BOUNDED = {
    "simdp/units.py _NUMBER": "quantities have 100 characters at most",
    "simdp/cluster/failures/rates.py _WRITTEN": "rates have 100 characters at most",
}
"""Patterns whose callers limit the text, and how."""

FRAGMENTS = [*'a1 [({"-./|\\=:,#\t_A<>\r%+*', "a ", "1.", "1 ", "[1]", "a.", "rank ", "1,", "a:"]

SHORT, LONG = 2_000, 8_000
"""Characters of the texts that are compared."""

FLOOR = 0.01
"""CPU time below which a pattern is not slow [s]."""

CALLS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")


def module_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def patterns():
    """Yield the place, the pattern and the ways of calling it."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "probes" in path.parts or "torch" in path.relative_to(ROOT).parts or "re." not in text:
            continue
        place = path.relative_to(ROOT.parent)
        module = importlib.import_module(module_of(path))
        for name, value in vars(module).items():
            rows = value if isinstance(value, tuple) else ()
            single = [value, *(part for row in rows if isinstance(row, tuple) for part in row)]
            for pattern in single:
                if isinstance(pattern, re.Pattern) and re.search(rf"^{name}\b", text, re.M):
                    calls = re.findall(rf"\b{name}\.({'|'.join(CALLS)})\(", text)
                    yield f"{place} {name}", pattern, set(calls or ["search"])
        is_inline = re.search(rf"\bre\.(?:{'|'.join(CALLS)})\(", text)
        for node in ast.walk(ast.parse(text)) if is_inline else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func)[:3] == "re.":
                call, first = ast.unparse(node.func)[3:], node.args[0] if node.args else None
                if call in CALLS and isinstance(first, ast.Constant):
                    yield f"{place}:{node.lineno}", re.compile(first.value), {call}


def literals(parsed, prefix, complete):
    """Collect texts that parts of a pattern look for; return the one that is not complete yet."""
    for kind, value in parsed:
        name = str(kind)
        if name == "LITERAL":
            prefix += chr(value)
        elif name == "SUBPATTERN":
            prefix = literals(value[3], prefix, complete)
        elif name.endswith("_REPEAT"):
            complete.append(prefix)
            prefix = literals(value[2], prefix if value[0] else "", complete)
        elif name == "BRANCH":
            branches = [literals(branch, prefix, complete) for branch in value[1]]
            complete += branches
            prefix = branches[0]
        elif name == "IN":
            prefix += "1" if "DIGIT" in str(value) else " " if "SPACE" in str(value) else "a"
        elif name == "ANY":
            prefix += "a"
    return prefix


def fragments(pattern, calls):
    source = pattern.pattern
    source = source.decode("latin1") if isinstance(source, bytes) else source
    complete = list[str]()
    complete.append(literals(_parser.parse(source), "", complete))
    texts = {text[:length] for text in complete for length in (2, 8, 16, 60)} - {""}
    repeated = FRAGMENTS + sorted(texts | {text + "a" for text in texts})
    begins = {""}
    if source[:1] == "^" or calls != {"search"}:
        begins.add(max((text for text in complete if text.startswith(complete[0])), key=len))
    return [(begin, fragment) for begin in sorted(begins) for fragment in repeated]


def seconds(pattern, calls, text):
    text = text.encode("latin1", "replace") if isinstance(pattern.pattern, bytes) else text
    begin = time.process_time()
    for call in calls:
        if call == "sub":
            pattern.sub(text[:0], text)
        elif call == "finditer":
            list(pattern.finditer(text))
        else:
            getattr(pattern, call)(text)
    return time.process_time() - begin


def text_of(fragment, length):
    begin, repeated = fragment
    return begin + repeated * (length // len(repeated)) + "!"


def test_every_pattern_takes_linear_time():
    slow, names = [], set()
    for place, pattern, calls in patterns():
        names.add(place)
        for fragment in fragments(pattern, calls):
            took = seconds(pattern, calls, text_of(fragment, LONG))
            if took > FLOOR and took > 6 * seconds(pattern, calls, text_of(fragment, SHORT)):
                slow.append((place, fragment, took))
                break
    assert {place for place, *_ in slow} <= set(BOUNDED), slow
    assert len(names) > 90
    assert set(BOUNDED) < names
