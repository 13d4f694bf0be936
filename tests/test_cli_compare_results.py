"""``python -m simdp compare-results``: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml
from small_scenario import MINIMAL

from simdp.cli import run_command_line

pytestmark = pytest.mark.slow


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run a small scenario twice, with another cluster the second time; return what is said."""
    monkeypatch.chdir(tmp_path)
    Path("box.yaml").write_text(yaml.safe_dump(MINIMAL))
    for name, latency in (("a", "5 us"), ("b", "50 us")):
        more = ["--set", f"cluster.link.alpha={latency}", "--no-plots", "--quiet", "--out", name]
        assert run_command_line(["run", "box.yaml", *more]) == 0
    capsys.readouterr()

    def say(*words):
        status = run_command_line(["compare-results", *words])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def test_what_explains_the_difference_comes_first(say):
    status, out, err = say("a", "b/result.json")
    assert (status, err) == (0, [])
    first, second, *rest = out.splitlines()
    assert first.startswith("a -> b/result.json: step ")
    assert first.endswith(("longer)", "times as long)"))
    assert second.startswith("  exposed communication +")
    assert second.endswith("(alpha 5 us -> 50 us)")
    assert max(map(len, (first, second, *rest))) <= 80
    assert not Path("difference.json").exists()


def test_json_is_all_that_it_prints_and_the_same_as_the_file(say):
    status, out, err = say("a", "b", "--json", "--out", "here")
    assert (status, err) == (0, [])
    assert out == Path("here/difference.json").read_text()
    assert "<h1>a and b: what changed</h1>" in Path("here/report.html").read_text()
    content = json.loads(out)
    assert content["points"][0]["keys"][0]["key"] == "cluster.link.alpha"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "nowhere"), "nowhere: there is no such file or folder"),
        (("a", "box.yaml"), "box.yaml: "),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(words, said, say):
    status, out, err = say(*words, "--out", "here")
    assert (status, out) == (2, "")
    assert len(err) == 1
    assert said in err[0]
    assert not Path("here").exists()
