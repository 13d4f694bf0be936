"""The notebooks of docs/: small, without outputs, and what they show when they are run."""

import ast
import json
import re
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
SLOWER = ROOT / "docs" / "tutorials" / "slower_step.ipynb"

RICH = "text/html"


def cells(path, kind):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def test_there_is_one():
    assert SLOWER in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_asks_a_question_and_carries_no_outputs(path):
    title = source(cells(path, "markdown")[0]).splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?")
    for cell in cells(path, "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        ast.parse(source(cell))
    assert path.stat().st_size < 20_000


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_run_in_plain_python(path):
    names = {}
    for cell in cells(path, "code"):
        exec(compile(source(cell), path.name, "exec"), names)
    assert names["point"].seconds > 0
    assert sum(part.seconds for part in names["point"].parts) == pytest.approx(
        names["point"].seconds
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each cell that shows something shows, by type, from a kernel of its own."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(SLOWER, as_version=4)
    folder = tmp_path_factory.mktemp("notebook")
    client.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    nbformat.validate(notebook)
    return [
        output["data"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries, not ours
@pytest.mark.extra
def test_a_kernel_shows_the_page_and_the_text_of_each_document(shown):
    first_lines = [data["text/plain"].splitlines()[0] for data in shown if RICH in data]
    assert first_lines[0] == "8gpu_ring: 8 ranks"
    assert first_lines[2].startswith("8gpu_ring (A) -> 8gpu_ring (B): step ")
    assert first_lines[3].startswith("8gpu_ring: a step's time in ms")
    assert first_lines[4].startswith("8 ranks, step ")
    for data in (data for data in shown if RICH in data):
        frame, text = data[RICH].split("</iframe>")
        page = unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
        assert page.startswith("<!DOCTYPE html>")
        assert "default-src 'none'" in page
        assert "<pre " in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.extra
def test_the_keys_that_made_the_step_slower_are_named(shown):
    (values,) = (data["text/plain"] for data in shown if RICH not in data)
    assert "cluster.stragglers" in values
    assert "cluster.link" in values
    explained = next(d["text/plain"] for d in shown if "->" in d["text/plain"].splitlines()[0])
    said = " ".join(explained.split())
    assert re.search(r"as long\) exposed communication \+[^()]*\(link nvlink2 -> ", said)
    assert re.search(r" wait \+[^()]*\([^()]*stragglers", said)
