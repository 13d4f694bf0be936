"""Pages of studies: their sections say what result.json and the terminal say."""

from io import BytesIO

import simdp
from simdp.reports import table
from simdp.reports.page import study as pages
from simdp.reports.page import write
from simdp.reports.page.sections import Source, Summary

RUN = simdp.sweep(simdp.load_scenario("scenarios/8gpu_ring.yaml", {"workload.steps": 3}))


def section(page, title):
    (found,) = (one for one in page.sections if one.title == title)
    return found


def test_the_summary_says_what_the_terminal_says():
    found = section(pages.page(RUN), "Summary")
    assert isinstance(found, Summary)
    assert found.rows == table.fact_rows(RUN.points[0])
    assert found.tiles[0].value in RUN.summary()


def test_the_scenario_is_there_as_resolved_and_loads_again(tmp_path):
    found = section(pages.page(RUN), "The scenario, every default resolved")
    assert isinstance(found, Source)
    path = tmp_path / found.name
    path.write_text(found.source)
    again = simdp.load_scenario(path)
    assert simdp.sweep(again).points[0].metrics == RUN.points[0].metrics


def test_the_command_that_was_given_is_quoted():
    found = section(pages.page(RUN, ["run", "a b.yaml"]), "How to reproduce it")
    assert found.source.startswith("python -m simdp run 'a b.yaml'\n# simdp ")


def test_a_page_is_small_and_the_same_twice():
    written = [BytesIO(), BytesIO()]
    for stream in written:
        write(RUN, stream)
    first, second = (stream.getvalue() for stream in written)
    assert first == second
    assert len(first) < 3e6
