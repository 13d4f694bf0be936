"""The store: what is put is there at once, for this study and later ones, and for nothing else."""

import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from simdp.errors import ScenarioError
from simdp.files.records import RecordFile
from simdp.studies import store as store_module
from simdp.studies.store import FILE, Store, key_of, sources


def test_what_was_put_is_found_by_a_later_study(tmp_path):
    with Store(tmp_path / "points") as store:
        assert store.path == tmp_path / "points" / FILE
        assert not store.path.exists()
        store.put("a", {"x": [1.5, float("inf"), None], "y": "ü"}, {"z": np.arange(3)})
        store.put("b", {"x": 2})
    with Store(tmp_path / "points", go_on=True) as store:
        assert store.get("a") == {"x": [1.5, float("inf"), None], "y": "ü"}
        assert store.arrays("a")["z"].tolist() == [0, 1, 2]
        assert store.arrays("b") == {}
        assert store.get("c") is None
        assert store.num_found == 1
        assert store.num_other == 0


def test_a_file_can_be_named_and_both_names_are_one_place(tmp_path):
    with Store(tmp_path / "kept.db") as store:
        store.put("a", {})
    assert (tmp_path / "kept.db").is_file()
    with Store(tmp_path / "kept.db", go_on=True) as store:
        assert store.get("a") == {}


def test_without_go_on_nothing_is_taken_and_what_is_put_replaces(tmp_path):
    for value in (1, 2):
        with Store(tmp_path) as store:
            assert store.get("a") is None
            store.put("a", {"value": value})
    assert Store(tmp_path, go_on=True).get("a") == {"value": 2}


def test_two_studies_may_write_one_file(tmp_path):
    one, two = Store(tmp_path, go_on=True), Store(tmp_path, go_on=True)
    one.put("a", {"of": 1})
    two.put("b", {"of": 2})
    one.put("c", {"of": 1})
    assert [two.get(key) for key in "abc"] == [{"of": 1}, {"of": 2}, {"of": 1}]
    one.close()
    two.close()


def test_a_process_that_is_killed_loses_nothing_that_was_put(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from simdp.studies.store import Store
store = Store(Path({str(tmp_path)!r}))
for number in range(20):
    store.put(str(number), {{"number": number}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    with Store(tmp_path, go_on=True) as store:
        assert [store.get(str(n)) for n in range(20)] == [{"number": n} for n in range(20)]


def test_points_of_another_version_are_counted_and_never_taken(tmp_path, monkeypatch, load):
    point = load()
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "__version__", "0.0.1")
        with Store(tmp_path) as store:
            store.put(key_of(point), {"metrics": 1})
    with Store(tmp_path, go_on=True) as store:
        assert store.get(key_of(point)) is None
        assert store.num_other == 1


def one_line(error):
    (line,) = error.value.problems
    return line


def test_a_store_of_another_layout_says_what_to_do(tmp_path):
    Store(tmp_path).put("a", {})
    path = tmp_path / FILE
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 7")
    connection.close()
    with pytest.raises(ScenarioError, match="another version of simdp, in layout 7") as error:
        Store(tmp_path, go_on=True)
    assert one_line(error).startswith(f"{path}: ")
    assert one_line(error).endswith("name another file, or remove this one.")


def test_what_is_no_store_is_refused_in_a_line_and_left_as_it_is(tmp_path):
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("create table mine (x)")
    connection.close()
    text = tmp_path / "scenario.yaml"
    text.write_text("name: x\n" * 200)
    for path in (other, text):
        before = path.read_bytes()
        with pytest.raises(ScenarioError, match=r"no file of finished points") as error:
            Store(path)
        assert one_line(error).startswith(f"{path}: ")
        assert path.read_bytes() == before


def test_a_damaged_file_is_an_error_in_a_line(tmp_path):
    with Store(tmp_path) as store:
        for number in range(200):
            store.put(str(number), {"text": str(number) * 100})
    path = tmp_path / FILE
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\0" * (len(content) - 4096))
    with pytest.raises(ScenarioError, match="damaged") as error:
        Store(tmp_path, go_on=True).get("7")
    assert one_line(error).startswith(f"{path}: ")


def test_a_damaged_record_is_no_record(tmp_path):
    with Store(tmp_path) as store:
        store.put("a", {"x": 1})
        store.put("b", {"x": 1})
    for key, value in (("a", b"nonsense"), ("b", b"x\x9c\x03\x00\x00\x00\x00\x01")):
        connection = sqlite3.connect(tmp_path / FILE)
        connection.execute("update records set value = ? where key = ?", (value, key))
        connection.commit()
        connection.close()
        with Store(tmp_path, go_on=True) as store:
            assert store.get(key) is None
            assert store.num_found == 0


def test_a_place_that_cannot_be_written_to_is_an_error_in_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match="is no folder; name one to write to"):
        Store(tmp_path / "file" / "points")
    with pytest.raises(ScenarioError, match="is a folder"):
        RecordFile(tmp_path)


def test_keys_tell_all_apart_that_a_point_depends_on(load, tmp_path):
    point, other = load(), load(seed=1)
    assert key_of(point) == key_of(load())
    assert len({key_of(point), key_of(other), key_of(point, "job"), key_of(point, None)}) == 4


def test_sources_are_what_a_module_imports_from_its_folder(tmp_path):
    files = {
        "alone.py": "import numpy\nimport tools.deep\n",
        "tools/__init__.py": "",
        "tools/deep.py": "from . import near\nimport simdp.spec\n\ndef late():\n    import last\n",
        "tools/near.py": "import missing\n",
        "last.py": "it is no Python\n",
        "other.py": "",
        "site-packages/whole/__init__.py": "import other\n",
        "site-packages/whole/part.py": "",
        "site-packages/other.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def names(module, file):
        found = sources(module, tmp_path / file)
        return [path.relative_to(tmp_path).as_posix() for path in found]

    own = ["tools/__init__.py", "tools/deep.py", "tools/near.py"]
    assert names("alone", "alone.py") == ["alone.py", *own]
    assert names("__main__", "alone.py") == ["alone.py", *own]
    assert names("tools.near", "tools/near.py") == ["tools/__init__.py", "tools/near.py"]
    whole = ["site-packages/whole/__init__.py", "site-packages/whole/part.py"]
    assert names("whole", whole[0]) == names("whole.part", whole[1]) == whole
    assert names("other", "site-packages/other.py") == ["site-packages/other.py"]
