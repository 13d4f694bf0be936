"""simdp simulates data-parallel training: real replicas in NumPy, their time on a SimPy clock.

    scenario = simdp.load_scenario("scenarios/8gpu_ring.yaml", {"cluster.world_size": 4})
    result = simdp.simulate(scenario)
    result.metrics["step_time_s"]

The names are imported when they are first used, so that the command line starts fast.
"""

import os
import sys
from importlib import import_module

from simdp.version import __version__ as __version__

TYPE_CHECKING = False  # not typing's, which has not been imported when `python -m simdp` begins
if sys.argv[:1] == ["-m"] and " -m simdp" in " ".join(sys.orig_argv) and not sys.flags.safe_path:
    # The current folder comes first then, and its yaml.py or random.py is none of our libraries.
    _folder = sys.path.pop(0)
    if __path__[0] == f"{_folder}{os.sep}simdp":  # not installed
        sys.path.append(_folder)

if "numpy" not in sys.modules:
    # The bits of a matrix product depend on the number of BLAS threads; one gives the same arrays
    # on every machine with the same NumPy and BLAS. An explicit setting of the user's wins.
    for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(_variable, "1")


if TYPE_CHECKING:
    from typing import Any

    from simdp.engine.simulate import simulate
    from simdp.errors import DeadlockError, ScenarioError, SimdpError
    from simdp.reports.rank_traces import save_traces as save_traces
    from simdp.reports.shown import as_html as as_html
    from simdp.reports.shown import as_text as as_text
    from simdp.results.result import Result, Study
    from simdp.scenario import Scenario, load_scenario
    from simdp.studies.compare_results import compare_results
    from simdp.studies.diagnose import diagnose
    from simdp.studies.plan import plan
    from simdp.studies.replay.scenario import replay
    from simdp.studies.sweep import sweep

_HOMES = {
    "DeadlockError": "simdp.errors",
    "Result": "simdp.results.result",
    "Scenario": "simdp.scenario",
    "ScenarioError": "simdp.errors",
    "SimdpError": "simdp.errors",
    "Study": "simdp.results.result",
    "as_html": "simdp.reports.shown",  # these, and save_traces, for results, which lie below
    "as_text": "simdp.reports.shown",
    "compare_results": "simdp.studies.compare_results",
    "diagnose": "simdp.studies.diagnose",
    "load_scenario": "simdp.scenario",
    "plan": "simdp.studies.plan",
    "replay": "simdp.studies.replay.scenario",
    "save_traces": "simdp.reports.rank_traces",
    "simulate": "simdp.engine.simulate",
    "sweep": "simdp.studies.sweep",
}

__all__ = [
    "DeadlockError",
    "Result",
    "Scenario",
    "ScenarioError",
    "SimdpError",
    "Study",
    "compare_results",
    "diagnose",
    "load_scenario",
    "plan",
    "replay",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> "Any":  # quoted: __future__ is a module too
    if name not in _HOMES:
        raise AttributeError(f"module 'simdp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
