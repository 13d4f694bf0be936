"""What a fuzzer does to scenarios and files: every change is drawn from a source of random numbers.

The source is a `random.Random`, or Hypothesis's own, which then makes a case that fails small.
"""

import copy
import io
import re
import zipfile
from math import inf, nan

import numpy as np

ODD = [
    None, True, False, -1, 0, 1, 2, 3, 7, 64, 1000, 10**6, 10**9, 2**31, 2**53, 2**63, 10**400,
    -(10**18), 0.5, -0.0, 1.5, 1e-300, 1e308, nan, inf, -inf,
    "", " ", "x", "ring", "ddp", "sgd", "none", "auto", "tree", "nccl", "linear", "npz", "1.10",
    "5 us", "25 GB/s", "0 B", "-3 s", "1e999 GB/s", "3 furlongs", "10 %", "1e400", "5us" * 40,
    "a\nb", "a\rb\x1b[31m", "\0", "\u2028", "x" * 5000, "1 a" + " " * 3000 + "b", "../..",
    "/dev/null", "/", ".", "none.npz", "n" * 300, "dgx-a100", "a100-sxm4-80gb", "é", "1:30",
    [], [1], [1, 2], [None], ["x"], [[1, 2]] * 3000, [0] * 500, {}, {"kind": None},
    {"kind": "ring"},
    {"kind": ["x"]}, {"x": 1}, {"kind": "x" * 3000}, {1: 2}, [{}], {"0": {"0": {}}},
]  # fmt: skip
"""Values that someone, or something, may have written in the place of another one."""


def places(value, above=()):
    """The path to every value in plain data, the root left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*above, key)
        if isinstance(one, dict | list):
            yield from places(one, (*above, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def odd_value(chance, others):
    """A value of the list, a nest, or what stands somewhere in another scenario."""
    kind = chance.random()
    if kind < 0.6:
        return copy.deepcopy(chance.choice(ODD))
    if kind < 0.9:
        other = chance.choice(others)
        found = list(places(other))
        return copy.deepcopy(at(other, chance.choice(found))) if found else None
    nest = 1
    for _ in range(chance.choice([2, 10, 60, 80])):
        nest = {"kind": nest} if chance.random() < 0.3 else [nest]
    return nest


def mutated(scenario, chance, others):
    """Change one to four things in a scenario as plain data."""
    scenario = copy.deepcopy(scenario)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 4])):
        found = list(places(scenario))
        if not found:
            break
        *above, key = chance.choice(found)
        holder, way = at(scenario, above), chance.random()
        if way < 0.6:
            holder[key] = odd_value(chance, others)
        elif way < 0.7:
            del holder[key]
        elif way < 0.8 and isinstance(holder, dict):
            name = chance.choice(["kind", "x", "path", "rank", "steps", f"{key}s", "", "a\nb"])
            holder[name] = odd_value(chance, others)
        elif way < 0.9 and isinstance(holder, dict):
            holder[str(key)[:-1] or "k"] = holder.pop(key)
        elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            factor = chance.choice([-1, 0, 2, 1000, 10**9, 0.3])
            holder[key] *= factor if abs(holder[key]) < 1e300 else -1  # as a float may overflow
        else:
            scenario.setdefault("sweep", {})
            if isinstance(scenario["sweep"], dict):
                # A copy, as the sweep itself may be what is swept, which then holds itself.
                values = [odd_value(chance, others), copy.deepcopy(holder[key])]
                scenario["sweep"][".".join(map(str, (*above, key)))] = values
    return scenario


NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")

NUMBERS = [b"0", b"-1", b"1e999", b"nan", b"inf", b"9" * 400, b"9" * 5000, b"1e-320", b"0x7f", b"",
           b"4294967296", b"1.5", b"99999999999999999999", b"\xff"]  # fmt: skip


def damaged(content, chance):
    """Change some bytes of a file, some numbers in it, some of its lines, or its length."""
    content = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4])):
        way, n = chance.random(), len(content)
        place = chance.randrange(n) if n else 0
        if way < 0.25:
            content[place : place + 1] = bytes([chance.randrange(256)])
        elif way < 0.35:
            del content[place:]
        elif way < 0.45:
            del content[place : place + chance.choice([1, 8, 100])]
        elif way < 0.5:
            content[place:place] = bytes(chance.choice([1, 64, 5000]))
        elif way < 0.55:
            content[place:place] = content[: chance.choice([10, 1000, 100_000])]
        elif way < 0.85:
            numbers = list(NUMBER.finditer(bytes(content)))
            if numbers:
                begin, end = chance.choice(numbers).span()
                content[begin:end] = chance.choice(NUMBERS)
        else:
            lines = bytes(content).split(b"\n")
            one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            lines[one : one + chance.choice([0, 1])] = [lines[other]] * chance.choice(
                [0, 1, 2, 300]
            )
            content = bytearray(b"\n".join(lines))
    return bytes(content)


DTYPES = ["<f8", "<f4", "<i8", "|u1", "|b1", "<f2", "<c16", "|O", "|V3", "<U4", "<M8[s]", "|S0",
          ">f8", "f99", "[('a', '<f8')]"]  # fmt: skip

SHAPES = ["()", "(3,)", "(0,)", "(0, 9999999999)", "(-1,)", "(2**62,)", "(4611686018427387904, 4)",
          "(100000000000,)", "(1,) * 40", "'x'", "(3.0,)", "(" * 200 + ")" * 200,
          str((1,) * 33), "(True,)", "9" * 5000]  # fmt: skip


def other_archive(content, chance):
    """Write an npz file anew, with one of its arrays under another header, or other contents."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(list(members))
    way = chance.random()
    if way < 0.6:
        dtype = chance.choice(DTYPES)
        dtype = dtype if dtype.startswith("[") else repr(dtype)
        text = f"{{'descr': {dtype}, 'fortran_order': {chance.choice(['True', 'False', '0'])}, "
        text += f"'shape': {chance.choice(SHAPES)}, }}\n"
        version = chance.choice([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
        size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
        body = bytes(chance.choice([0, 1, 24, 1000]))
        members[name] = b"\x93NUMPY" + version + size + text.encode() + body
    elif way < 0.8:
        stream = io.BytesIO()
        shape = chance.choice([(), (0,), (1,), (3, 2), (2, 0, 3), (5,) * 6, (100, 100)])
        values = np.full(shape, chance.choice([0, -1, 1e300, nan, inf, 2**40]))
        with np.errstate(all="ignore"):  # nan as a whole number, and what is too large
            values = values.astype(chance.choice(["f8", "f4", "i8", "u1", "?", "c8", "U3"]))
        np.save(stream, values)
        members[name] = stream.getvalue()
    elif way < 0.9:
        members[chance.choice(["x.npy", "new.npy", "../up.npy", "é.npy", "y"])] = members[name]
    else:
        del members[name]
    stream = io.BytesIO()
    packing = chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for member, body in members.items():
            archive.writestr(member, body)
    return stream.getvalue()
