"""Empirical failures: gaps from a file or by quantiles, and what is left of them at the start."""

from collections import defaultdict

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from processes import HOUR, drawn, failures, folder, refusal

UNIFORM = ["45 min", "75 min"]


def gaps_of(process, num=20_000):
    return np.diff([event.time for event in drawn(process, num, 1)])


def test_two_quantiles_are_a_uniform_distribution():
    """As in the published runs with a failure each 2,700 to 4,500 s."""
    gaps = gaps_of(failures("empirical", quantiles=UNIFORM))
    assert gaps.min() >= 2700
    assert gaps.max() <= 4500
    assert gaps.mean() == pytest.approx(3600, rel=0.01)
    assert gaps.std() == pytest.approx(1800 / np.sqrt(12), rel=0.01)


def test_quantiles_are_met():
    gaps = gaps_of(failures("empirical"), 40_000) / HOUR
    np.testing.assert_allclose(np.quantile(gaps, [0, 0.5, 1]), [100, 300, 2000], rtol=0.02)
    assert failures("empirical").mean_gap() / HOUR == pytest.approx((200 + 1150) / 2)


def test_gaps_of_a_file_are_as_likely_as_they_are_there(tmp_path):
    process = failures("empirical", folder(tmp_path), quantiles=None, path="gaps.csv")
    gaps, counts = np.unique(gaps_of(process).round(3), return_counts=True)
    assert gaps.tolist() == [100, 300, 900]
    np.testing.assert_allclose(counts / counts.sum(), [0.5, 0.25, 0.25], atol=0.02)
    assert process.mean_gap() == pytest.approx(350)


@pytest.mark.slow
@pytest.mark.parametrize("new", [True, False])
def test_the_first_gap_is_a_whole_one_of_new_units_only(new):
    """What is left of a gap has the mean E[X^2] / (2 E[X]): 1837.5 of 3600 s."""
    process = failures("empirical", quantiles=UNIFORM, new=new)
    firsts = {}
    for event in drawn(process, 60_000, 20_000):
        firsts.setdefault(event.nodes, event.time)
    assert len(firsts) == 20_000
    assert np.mean(list(firsts.values())) == pytest.approx(3600 if new else 1837.5, rel=0.02)


@pytest.mark.slow
@given(num_nodes=st.integers(1, 200), spread=st.sampled_from([0.0, 0.5, 3.0]))
def test_no_failure_is_lost_or_doubled_between_windows(num_nodes, spread):
    """Units whose gaps are all alike fail at every multiple of theirs, each at its own pace."""
    process = failures("empirical", quantiles=["1 h", "1 h"], new=True, spread=spread)
    events = drawn(process, 700, num_nodes)
    times = defaultdict(list)
    for event in events:
        times[event.nodes].append(event.time)
    for found in times.values():
        assert found == pytest.approx([found[0] * k for k in range(1, len(found) + 1)])
        assert found[-1] + found[0] >= events[-1].time * (1 - 1e-9)
    if not spread:
        assert all(found[0] == HOUR for found in times.values())
        assert len(times) == num_nodes


@for_each(
    ("options", "line"),
    [
        ({"quantiles": None}, "give either path, a file of gaps, or quantiles."),
        ({"path": "gaps.csv"}, "give either path, a file of gaps, or quantiles."),
        ({"quantiles": ["1 h"]}, "quantiles: ['1 h'] has too few entries; it needs at least 2."),
        ({"quantiles": [1, "2 s"]}, 'quantiles.0: 1 has no unit; write "1 s", "1 ms" or "1 us".'),
        ({"quantiles": ["2 s", "1 s"]}, "quantiles: 1 s comes after 2 s; sort them."),
        ({"quantiles": ["0 s", "0 s"]}, "quantiles: all gaps are 0; give a time above 0."),
    ],
)
def test_wrong_quantiles_are_refused(options, line):
    assert refusal("empirical", **options) == line


@for_each(
    ("text", "line"),
    [
        ("gap_h\n1\n", ":1: unknown column 'gap_h'. Did you mean 'gap_s'? Known: gap_s."),
        ("gap_s\n", ": has no rows below its columns."),
        ("", ": has no lines; begin with gap_s."),
        ("gap_s\n1\n-2\n", ":3: gap_s -2 is out of range; it must be >= 0 and finite."),
        ("gap_s\n1 h\n", ":2: gap_s '1 h' is not a number."),
        ("gap_s\n1,2\n", ":2: has 2 cells for 1 columns."),
        ("gap_s\n0\n0\n", ": all gaps are 0; give a time above 0."),
    ],
)
def test_a_wrong_file_of_gaps_is_refused(text, line, tmp_path):
    path = folder(tmp_path, gaps=text)
    said = refusal("empirical", path, quantiles=None, path="gaps.csv")
    assert said in (f"{tmp_path}/gaps.csv{line}", f"gaps.csv{line}")


def test_a_missing_file_of_gaps_is_refused(tmp_path):
    said = refusal("empirical", tmp_path, quantiles=None, path="no.csv")
    assert said == f"{tmp_path}/no.csv: there is no such file."
