"""Tables that other programs read."""

import io
from pathlib import Path

import pytest

from simdp.errors import ScenarioError
from simdp.files.records import table_writer

COLUMNS = {"a,b": [1, 2.5, None], "c": ["x", 'say "y"', "ü"], "d": [True, False, None]}


def written(name):
    stream = io.BytesIO()
    table_writer(Path(name))(COLUMNS, stream)
    return stream


def test_csv_quotes_what_must_be_quoted():
    assert written("t.csv").getvalue().decode() == (
        '"a,b",c,d\n1,x,true\n2.5,"say ""y""",false\n,ü,\n'
    )


@pytest.mark.extra
def test_parquet_keeps_types():
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(written("t.parquet"))
    assert table.to_pydict() == COLUMNS
    assert [str(kind) for kind in table.schema.types] == ["double", "string", "bool"]


def test_other_names_are_refused():
    with pytest.raises(ScenarioError, match=r"ends with \.csv or \.parquet"):
        table_writer(Path("t.txt"))
