"""Audits of scripts with one planted fault: how often it is named first, with its line.

    python -m benchmarks.audit [FOLDER ...] [--ranks 1,2,4]
    python -m benchmarks.audit --trainers [NAME ...]

The scripts, their repaired twins and clean ones are those of ``tests/torch/audit_scripts``, whose
``truth.yaml`` says what is true of each. With ``--trainers``, those of ``tests/torch_scripts``, as
people write them, in float32 and float64: what is found has to be what ``audited.yaml`` says of
each. Needs torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.beside_torch import NO_TORCH, complain
from benchmarks.table import Row, show

TESTS = Path(__file__).parents[1] / "tests"
SCRIPTS, TRAINERS = TESTS / "torch" / "audit_scripts", TESTS / "torch_scripts"


def request(folder: Path, script: str, ranks: tuple[int, ...]) -> tuple[dict[str, Any], Any]:
    """Return what is true of a script, and the audit of it."""
    from simdp.torch.audit import ScriptAudit

    truth = yaml.safe_load((folder / "truth.yaml").read_text())
    audit = truth.get("audit", {})
    arguments = str(audit.get("args", "--global-batch 16 --steps 20 --seed 3"))
    given: dict[str, Any] = {"batch_arg": audit.get("batch_arg") or audit.get("batch_env")}
    if audit.get("save_arg") and audit.get("resume_arg"):
        given |= {name: audit[name] for name in ("save_arg", "resume_arg", "at_step")}
    return truth, ScriptAudit(str(folder / script), tuple(arguments.split()), ranks, **given)


def cases(names: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield folders and scripts."""
    for folder in sorted(SCRIPTS.iterdir()):
        if names and not any(folder.name.startswith(name) for name in names):
            continue
        for script in ("bug.py", "fixed.py", "train.py"):
            if (folder / script).exists():
                yield folder, script


def audited(folder: Path, script: str, ranks: tuple[int, ...]) -> tuple[Row, bool, bool]:
    """Audit a script; return its row, whether it is as it should be, and whether the line is."""
    from simdp.torch.audit import audit_script

    truth, asked = request(folder, script, ranks)
    with tempfile.TemporaryDirectory() as empty, chdir(empty):
        report = audit_script(asked)
    found = ", ".join(f"{one.cause}:{one.line}" for one in report.findings) or "nothing"
    name = f"{folder.name}/{script}"
    if script != "bug.py":
        alarms = any(one.wrong for one in report.findings)
        return (name, found, "no alarm", not alarms), not alarms, True
    first = report.findings[0] if report.findings else None
    lines = (truth["line"], *truth.get("also_lines", []))
    named = first is not None and first.cause == truth["cause"]
    at_line = named and first is not None and first.line in lines
    return (name, found, f"{truth['cause']}:{truth['line']}", named), named, at_line


def trainers(names: list[str]) -> Iterator[Row]:
    """Audit the scripts that people write as they are; yield a row for each data type."""
    from simdp.errors import SimdpError
    from simdp.torch.audit import ScriptAudit, audit_script

    sys.path.insert(0, str(TRAINERS))
    scripts = import_module("table").SCRIPTS
    known = yaml.safe_load((TRAINERS / "audited.yaml").read_text())
    for name, exact in product(names or sorted(known), (False, True)):
        truth = known[name]
        if exact and not truth.get("float64", True):
            continue
        path = str(TRAINERS / "scripts" / f"{name}.py")
        ranks = tuple(truth.get("ranks", (1, 2)))
        given = tuple(one.replace("PORT", "29500") for one in scripts[name].args)
        asked = ScriptAudit(path, given, ranks, exact=exact, max_steps=6)
        with tempfile.TemporaryDirectory() as empty, chdir(empty):
            try:
                found: list[str] = [one.cause for one in audit_script(asked).findings]
            except SimdpError as error:
                found = [str(error)]
        right = [truth["refused"]] if "refused" in truth else truth.get("found", [])
        shown = ["refused" if "refused" in truth else ", ".join(each) for each in (found, right)]
        case = f"{name}, {'float64' if exact else 'float32'}"
        yield case, shown[0] or "nothing", shown[1] or "nothing", found == right


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each script, and the parts that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--trainers", action="store_true")
    given = parser.parse_args(arguments)
    ranks = tuple(int(part) for part in given.ranks.split(","))
    if find_spec("torch") is None:
        complain("audit")
        return NO_TORCH
    known = {path.stem for path in (TRAINERS / "scripts").glob("*.py")}
    if given.trainers and set(given.folders) - known:
        parser.error(f"--trainers: {', '.join(set(given.folders) - known)}: not in {TRAINERS}.")
    if given.trainers:
        return show("audits of trainers", list(trainers(given.folders)))
    rows: list[Row] = []
    faults: list[tuple[bool, bool]] = []
    repaired: list[tuple[bool, bool]] = []
    for folder, script in cases(given.folders):
        row, good, at_line = audited(folder, script, ranks)
        rows.append(row)
        (faults if script == "bug.py" else repaired).append((good, at_line))
    for what, parts, target in (
        ("cause named first", [good for good, _ in faults], 0.95),
        ("its line", [line for _, line in faults], 0.9),
        ("no alarm", [good for good, _ in repaired], 1.0),
    ):
        share = sum(parts) / max(len(parts), 1)
        figure = f"{sum(parts)} of {len(parts)}"
        rows.append((what, figure, f"{target:.0%}", share >= target))
    return show(f"audits of planted faults on {given.ranks} ranks", rows)


if __name__ == "__main__":
    sys.exit(main())
