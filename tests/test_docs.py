"""The promises of docs/: its commands, what they print, its Python, reference and pictures."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from for_each import for_each
from pages import (
    DOCS,
    GIVEN,
    ROOT,
    blocks,
    commands,
    is_example,
    is_long,
    needs_torch,
    play,
    rewrite,
    same,
    section,
)

from simdp.files import parse_yaml
from simdp.results.metrics import LABELS
from simdp.scenario import checked

PAGES = sorted(DOCS.rglob("*.md"))
WITH_COMMANDS = [page for page in PAGES if blocks(page, "sh")]
WITH_EXAMPLES = [page for page in PAGES if any(map(is_example, blocks(page)))]
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
GUIDES = DOCS / "guides"

FIGURE = re.compile(r"(?<![\w.])(\d[\d,.]*\d|\d) ?(%|us|ms|s|[kMG]B|GiB|MiB|samples/s)(?!\w)")
"""A number with a unit."""


def name(page):
    return str(page.relative_to(DOCS))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for a page, with the repository's scenarios, tests and records."""
    from simdp.reports.charts import CHARTS

    for shared in ("scenarios", "tests", "records"):
        (tmp_path / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(str(tmp_path))
    charts = dict(CHARTS)
    yield tmp_path
    CHARTS.clear()
    CHARTS.update(charts)


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_what_a_page_runs_works_and_prints_what_it_says(page, folder, capsys, request):
    outputs = play(page, capsys, request.config.getoption("--long"))
    if request.config.getoption("--update-golden"):
        rewrite(page, outputs)
    else:
        for block, printed in outputs:
            assert same(block.text, printed), f"{page.name} shows another output than:\n{printed}"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in WITH_EXAMPLES if p not in WITH_COMMANDS], ids=name)
def test_the_python_of_a_page_without_commands_runs(page, folder, capsys):
    """That of a page with commands runs between these, in the test above."""
    assert play(page, capsys) == []


def test_python_that_continues_a_readers_own_script_has_the_names_that_it_takes():
    continues = {name(page) for page in WITH_EXAMPLES for b in blocks(page) if needs_torch(b)}
    assert set(GIVEN) <= continues
    for page in WITH_EXAMPLES:
        if name(page) not in GIVEN:
            assert not any(is_example(block) and needs_torch(block) for block in blocks(page))


def test_each_python_file_of_a_page_is_used_by_a_later_block():
    """So that it runs with the page; the leaderboard's entrant has a test of its own."""
    for page in PAGES:
        found = blocks(page)
        for i, block in enumerate(found):
            if block.language == "python" and block.title:
                stem = block.title.removesuffix(".py")
                assert any(stem in later.text for later in found[i + 1 :]), (page.name, stem)


def test_the_entrant_of_the_leaderboard_answers_each_question():
    """Half of two seconds of backward hides communication of 10 s, and there is no answer else."""
    (entrant,) = blocks(DOCS / "leaderboard.md", "python")
    step = {"kind": "step", "micro_step_s": 2.0, "grad_accum": 1, "ranks": 1}
    many = {**step, "ranks": 2, "inter_bandwidth": None, "intra_bandwidth": 1.0}
    questions = [step, {**many, "gradient_bytes": 10.0}, {"kind": "table", "micro_step_s": None}]
    printed = subprocess.run(
        [sys.executable, "-c", entrant.text],
        input=json.dumps({"questions": questions}),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.splitlines() == ["2.0 1.0 4.0", "11.0 5.5 22.0", "-"]


def test_outputs_of_long_commands_are_the_only_ones_that_are_not_tried():
    tried = [
        line for page in WITH_COMMANDS for block in blocks(page, "sh") for line in commands(block)
    ]
    long = [line for line in tried if is_long(line)]
    assert 0 < len(long) < len(tried) / 10


@for_each("page", TUTORIALS, ids=name)
def test_a_tutorial_says_no_figure_that_its_blocks_do_not_show(page):
    text = page.read_text()
    shown = " ".join(block.text for block in blocks(page))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for number, unit in FIGURE.findall(prose):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", shown), (
            f"{page.name}: {number} {unit} stands in no block"
        )


def test_there_is_a_tutorial_for_each_question():
    assert len(TUTORIALS) == 10
    for page in TUTORIALS:
        assert page.read_text().splitlines()[0].endswith("?")


def test_the_blocks_of_the_annotated_scenario_make_a_valid_one(tmp_path):
    import numpy as np

    raw = {}
    for block in blocks(GUIDES / "scenario-file.md", "yaml"):
        assert block.text.count("\n") <= 25, "a reader gets short pieces"
        for key, value in (parse_yaml(block.text, "scenario-file.md") or {}).items():
            raw[key] = {**raw[key], **value} if key in raw else value
    widths = raw["workload"]["model"]["widths"]
    weights = {}
    for i, (before, after) in enumerate(pairwise(widths)):
        weights[f"layers.{i}.weight"] = np.zeros((after, before))
        weights[f"layers.{i}.bias"] = np.zeros(after)
    np.savez(tmp_path / "weights.npz", **weights)
    assert len(checked(raw, tmp_path).points()) == 5


def test_every_key_of_the_specs_stands_in_the_annotated_scenario():
    from simdp.cluster import Cluster
    from simdp.cluster.numbering import InterNode
    from simdp.scenario.root import Neighbour, Scenario
    from simdp.strategies.ddp import DDP
    from simdp.workload import Workload

    text = (GUIDES / "scenario-file.md").read_text()
    for spec in (Scenario, Cluster, InterNode, Neighbour, Workload, DDP):
        for key in spec.model_fields:
            assert re.search(rf"\b{key}\b", text), f"{spec.__name__}.{key} is not there"


def test_the_rank_program_of_the_example_runs():
    (example,) = blocks(GUIDES / "rank-programs.md", "python")
    names = {}
    exec(example.text.replace("dist.launch(", "values = dist.launch("), names)
    assert [(tensor.tolist(), clock >= 1e-3) for tensor, clock in names["values"]] == [
        ([16, 20], True)
    ] * 4


def test_the_small_job_ends_with_the_weights_of_one_that_never_fails(tmp_path, monkeypatch):
    import simdp

    monkeypatch.chdir(tmp_path)
    (example,) = blocks(GUIDES / "jobs.md", "python")
    (file,) = (
        block for block in blocks(GUIDES / "jobs.md", "yaml") if block.title == "small_job.yaml"
    )
    (tmp_path / file.title).write_text(file.text)
    names = {}
    exec(example.text, names)
    result, never = names["result"], simdp.simulate(names["scenario"])
    assert result.participation["repeated"] > 0
    for name, value in never.replicas[0].items():
        assert value.tobytes() == result.replicas[0][name].tobytes()


def test_every_scenario_is_listed_with_its_question():
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "scenarios.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))


def test_every_picture_is_there_shown_and_drawn_by_the_gallery():
    from simdp.studies.gallery import pictures

    shown = {
        picture
        for page in PAGES
        for picture in re.findall(r"!\[[^]]+\]\((?:\.\./)*plots/(\w+)\.png\)", page.read_text())
    }
    drawn = set(pictures())
    assert shown <= drawn
    assert {path.stem for path in (ROOT / "plots").glob("*.png")} == drawn
    assert sorted(path.name for path in (DOCS / "plots").glob("*.png"))


def test_the_table_of_algorithms_is_that_of_the_families():
    from simdp.collectives import FAMILIES

    text = section(GUIDES / "collectives.md", "Algorithms")
    head, _, *rows = re.findall(r"^\| .* \|$|^\|--.*$", text, re.MULTILINE)
    names = [cell.strip() for cell in head.split("|")[2:-2]]
    listed = {name: set() for name in FAMILIES}
    for row in rows:
        kind, *cells, others = (cell.strip(" `") for cell in row.split("|")[1:-1])
        for family in [name for name, cell in zip(names, cells, strict=True) if cell]:
            listed[family].add(kind)
        for family in filter(None, others.split(", ")):
            listed[family].add(kind)
    assert listed == {name: set(table) for name, table in FAMILIES.items()}


def test_every_option_of_algorithms_and_topologies_stands_in_its_guide():
    from simdp.cluster.topologies import TOPOLOGIES
    from simdp.collectives import FAMILIES

    for page, tables in (
        (GUIDES / "networks.md", [TOPOLOGIES]),
        (GUIDES / "collectives.md", FAMILIES.values()),
    ):
        text = page.read_text()
        for table in tables:
            for kind in table:
                for word in {kind, *table[kind].model_fields} - {"kind"}:
                    assert re.search(rf"\b{word}\b", text), f"{kind}.{word} is not in {page.name}"


def test_the_metrics_named_in_the_guide_exist():
    text = (GUIDES / "results.md").read_text()
    for metric in ("step_time", "compute", "update", "exposed_comm", "wait", "other"):
        assert f"{metric}_s" in LABELS
        assert re.search(rf"\b{metric}\b", text)


def sentences(text):
    """The sentences of a page, without its code, tables, headings and pictures."""
    text = re.sub(r"\A---.*?^---$|^```.*?^```$", "", text, flags=re.S | re.M)
    text = re.sub(r"^(\||#|!\[).*$", "", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M):
        yield from re.split(r"(?<=[.?!])[*)]* (?=[A-Z*`\[(0-9])", " ".join(paragraph.split()))


@pytest.mark.parametrize("page", ["accuracy.md", "guides/diagnose.md", "guides/results.md"])
def test_a_page_of_figures_says_what_holds_now_in_short_sentences(page):
    text = (DOCS / page).read_text()
    assert [line for line in sentences(text) if len(line.split()) > 25] == []
    assert not re.search(r"\b(used to|no longer|earlier versions?|was added)\b", text.lower())
