"""``schema``: what it prints and writes."""

import json

from simdp.cli import run_command_line
from simdp.studies.schema import text


def test_it_prints_the_schema(capsys):
    assert run_command_line(["schema"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (text(), "")
    assert json.loads(out)["title"] == "Scenario of simdp"


def test_it_writes_the_schema_and_says_how_a_scenario_names_it(tmp_path, capsys):
    file = tmp_path / "new" / "schema.json"
    assert run_command_line(["schema", "--out", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == text()
    assert capsys.readouterr().out == f"# yaml-language-server: $schema={file}\n"


def test_a_folder_is_no_file_to_write_to(tmp_path, capsys):
    assert run_command_line(["schema", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: is a folder; name a file to write to.\n"
    assert list(tmp_path.iterdir()) == []
