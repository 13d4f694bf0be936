"""The ledger: running totals of every part of every rank's memory, and their peaks."""

import numpy as np

from simdp.engine.interpreters.memory import MemoryLedger
from simdp.results.memory import MEMORY_PARTS


def test_the_ledger_keeps_the_peak_and_what_it_was_made_of():
    ledger = MemoryLedger(3)
    ledger.hold("parameters", 10.0)
    ledger.hold("gradients", np.array([1.0, 5.0, 1.0]))
    ledger.hold("gradients", np.array([-1.0, -5.0, -1.0]))
    ledger.hold("activations", np.array([2.0, 2.0, 0.0]))
    assert ledger.peak.tolist() == [12, 15, 11]
    assert ledger.now.sum(axis=0).tolist() == [12, 12, 10]
    assert ledger.at_peak[MEMORY_PARTS.index("gradients")].tolist() == [0, 5, 1]
    assert ledger.at_peak[MEMORY_PARTS.index("activations")].tolist() == [2, 0, 0]
    assert ledger.at_peak.sum(axis=0).tolist() == ledger.peak.tolist()


def test_the_ledger_tells_ranks_apart_only_where_they_differ():
    rng = np.random.default_rng(0)
    ledger, now, peak = MemoryLedger(50), np.zeros(50), np.zeros(50)
    for _ in range(40):
        nbytes = rng.integers(-3, 6, size=3)[np.arange(50) * 3 // 50].astype(float)
        ledger.hold(MEMORY_PARTS[rng.integers(len(MEMORY_PARTS))], nbytes)
        now += nbytes
        peak = np.maximum(peak, now)
    assert ledger.peak.tolist() == peak.tolist()
    assert ledger.now.shape == (len(MEMORY_PARTS), 50)
    assert len(ledger._peak) == 3
