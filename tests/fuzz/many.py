"""Thousands of cases by hand: ``python tests/fuzz/many.py --scenarios 3000 --files 1000``.

Each case is drawn from a number of its own, so that one that fails can be had again by
``--first NUMBER --scenarios 1 --files 0``.
"""

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from fuzz.cases import fault_of, file_case, prepare, scenario_case  # noqa: E402


def main():
    """Run the cases that are asked for; the status says whether all behaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=3000)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    faults, longest = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare(Path(folder))
        for what, make, count in (
            ("scenario", scenario_case, asked.scenarios),
            ("file", file_case, asked.files),
        ):
            for number in range(asked.first, asked.first + count):
                chance = random.Random(f"{what} {number}")
                command, begin = make(chance), time.process_time()
                fault = fault_of(command)
                longest[f"{what} {number}"] = round(time.process_time() - begin, 1)
                if fault:
                    print(f"{what} {number}: {fault}", flush=True)
                    faults[fault.split(": [")[0]] += 1
        os.chdir("/")
    for fault, count in faults.most_common():
        print(count, fault)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{asked.scenarios} scenarios, {asked.files} files: {faults.total()} faults")
    print(f"longest: {longest.most_common(3)} s; {sum(longest.values()):.0f} s; {memory:.2f} GB")
    return min(faults.total(), 1)


if __name__ == "__main__":
    raise SystemExit(main())
