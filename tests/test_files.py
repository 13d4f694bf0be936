"""The door to disk: what it reads, what it refuses, and files that appear whole or not at all."""

import gc
import json
import os
import re
import socket
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors_files import safetensors

from simdp.errors import ScenarioError
from simdp.files import (
    Catalogue,
    documents,
    fingerprint,
    parse_yaml,
    put_npz,
    read_json,
    read_npz,
    read_scenario,
    read_tensors,
    read_text,
    read_yaml,
    shards_of,
    whole_files,
    write_whole,
)
from simdp.files.documents import PART
from simdp.files.records import RecordFile
from simdp.files.tensors import parse_xml
from simdp.tables import read_csv
from simdp.traces.stream import opened

pytestmark = pytest.mark.slow

in_a_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=25,
)


def refusal(function, *arguments):
    with pytest.raises(ScenarioError) as caught:
        function(*arguments)
    return str(caught.value)


# Text --------------------------------------------------------------------------------------------


@for_each("read", [read_text, read_yaml, read_json, read_npz, read_tensors])
def test_a_missing_file_is_named(read, tmp_path):
    path = tmp_path / "none.yaml"
    assert refusal(read, path) == f"{path}: there is no such file."


@for_each("read", [read_text, read_yaml, read_json, read_npz, read_tensors])
def test_a_folder_is_no_file(read, tmp_path):
    assert refusal(read, tmp_path) == f"{tmp_path}: is a folder; name a file in it."


@for_each("read", [read_yaml, read_json])
def test_a_byte_order_mark_is_no_part_of_the_text(read, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read(path) == {"a": 1}


def test_a_binary_file_is_no_text(tmp_path):
    path = tmp_path / "picture.yaml"
    path.write_bytes(b"\x89PNG\xff\xfe\x00")
    assert refusal(read_yaml, path) == f"{path}: is not a text file; a scenario is YAML."


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(16 * 2**20 + 1)
    wanted = f"{path}: is larger than 256 KiB, so it is another file; a scenario is YAML."
    assert refusal(read_yaml, path) == wanted


def test_a_file_inside_a_file_cannot_be_read(tmp_path):
    (tmp_path / "file").write_text("a: 1")
    path = tmp_path / "file" / "inner.yaml"
    assert refusal(read_yaml, path) == f"{path}: cannot be read: Not a directory."


READERS = [read_text, read_yaml, read_json, read_npz, read_tensors, read_scenario, opened]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("read", READERS)
def test_devices_pipes_and_sockets_are_refused_before_they_are_read(read, tmp_path, monkeypatch):
    pipe, link = tmp_path / "pipe.npz", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    advice = "not a regular file; store its content in a file, and name that."
    assert refusal(read, pipe) == f"{pipe}: is a pipe, {advice}"
    for path in (Path("/dev/zero"), Path("/dev/urandom"), link):
        assert refusal(read, path) == f"{path}: is a device, {advice}"
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # names of sockets are short
        listening.bind("socket")
        assert refusal(read, Path("socket")) == f"socket: is a socket, {advice}"
    assert fingerprint(pipe) == fingerprint(Path("/dev/zero")) == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_nothing_is_written_over_a_pipe(tmp_path):
    pipe = tmp_path / "points"
    os.mkfifo(pipe)
    wanted = f"{pipe}: is a pipe, not a regular file; store its content in a file, and name that."
    assert refusal(RecordFile, pipe) == wanted
    wanted = f"{pipe}: is a pipe; name a regular file to write to."
    assert refusal(write_whole, pipe, lambda stream: None) == wanted
    assert pipe.is_fifo()


def test_a_name_that_no_file_can_have_is_refused():
    assert refusal(read_text, Path("a\0b")) == "a\\x00b: cannot be read: embedded null byte."


# YAML --------------------------------------------------------------------------------------------


@for_each(
    ("text", "value"),
    [
        ("a: 1e-4", {"a": 1e-4}),
        ("a: 1E5", {"a": 1e5}),
        ("a: -2e+3", {"a": -2000.0}),
        ("a: .5e1", {"a": 5.0}),
        ("a: 25 GB/s", {"a": "25 GB/s"}),
        ("a: '1e-4'", {"a": "1e-4"}),
        ("a: '1:30'\nb: 1:72\n", {"a": "1:30", "b": "1:72"}),
        ("a: 1e", {"a": "1e"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}", {"a": {"b": 1}, "c": {"b": 2}}),
        ("", None),
        ("# nothing", None),
    ],
)
def test_yaml_is_read_as_plain_data(text, value, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert read_yaml(path) == value


@for_each(
    ("text", "message"),
    [
        ("a: 1\na: 2", "f.yaml:2: is not valid YAML: the key 'a' is given twice."),
        ("a:\n  b: {c: 1, c: 1}", "f.yaml:2: is not valid YAML: the key 'c' is given twice."),
        ("? [1]\n: 2", "f.yaml:1: is not valid YAML: a key must be a word."),
        (
            "steps: 1:30",
            "f.yaml:1: is not valid YAML: 1:30 is 90, to the base of 60; write 90, or '1:30' for "
            "a text.",
        ),
        (
            "a: 1\nb: [-1:30:00.5]",
            "f.yaml:2: is not valid YAML: -1:30:00.5 is -5400.5, to the base of 60; write "
            "-5400.5, or '-1:30:00.5' for a text.",
        ),
        ("a: 1\nnull: 2", "f.yaml:2: is not valid YAML: a key must be a word."),
        ("a: b: c", "f.yaml:1: is not valid YAML: mapping values are not allowed here."),
        ("a: 1\nb: [", None),
        ("a: *nope", "f.yaml:1: is not valid YAML: found undefined alias 'nope'."),
        ("--- 1\n--- 2", "f.yaml:2: is not valid YAML: but found another document."),
        ("a: &x [*x]", "f.yaml: an alias contains itself."),
        ("&x {a: {b: *x}}", "f.yaml: an alias contains itself."),
        ("a: 2020-13-45", "f.yaml: is not valid YAML: month must be in 1..12."),
        ("a: " + "[" * 1500, None),
        ("a: \x00", None),
        (
            "[" * 65 + "]" * 65,
            "f.yaml: its values are nested more than 64 deep; write it flatter.",
        ),
        (
            "a: 1\nb: " + "1" * 1001,
            "f.yaml:2: is not valid YAML: a number has more than 1000 digits.",
        ),
        ("a: 1" + ":1" * 1001, "f.yaml:1: is not valid YAML: a number has more than 1000 digits."),
    ],
)
def test_wrong_yaml_is_refused_with_its_line(text, message):
    found = refusal(parse_yaml, text, "f.yaml")
    assert found.startswith("f.yaml")
    assert message is None or found == message


@for_each(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']",
        "a: !!python/name:os.system ''",
        "a: !mine 1",
    ],
)
def test_tags_that_make_objects_are_refused(text):
    found = refusal(parse_yaml, text, "f.yaml")
    assert found.startswith("f.yaml:1: is not valid YAML: could not determine a constructor")


def test_an_alias_bomb_is_refused_at_once():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    wanted = "f.yaml: its aliases expand to more than 200000 values; write them out."
    assert refusal(parse_yaml, "\n".join(lines), "f.yaml") == wanted


@for_each(
    "text",
    ["a: !!bool x", 'a: !!int ""', 'a: !!float ""', "a: !!timestamp x", "!!map [1]"],
)
def test_a_value_that_its_tag_does_not_fit_is_refused(text):
    assert refusal(parse_yaml, text, "f.yaml").startswith("f.yaml")


def test_our_own_files_are_read_by_libyaml():
    folder = Path(documents.__file__).parents[1]
    files = [*folder.rglob("*.yaml"), *(Path(__file__).parents[1] / "scenarios").rglob("*.yaml")]
    assert len(files) > 300
    assert [path for path in files if not documents._is_plain(path.read_text())] == []


DAMAGED = sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))[::6]


@in_a_folder
@given(st.sampled_from(DAMAGED), st.randoms(use_true_random=False))
def test_libyaml_reads_what_pyyaml_reads(path, random):
    """Without libyaml a machine has the same scenarios, and the same errors."""
    text = list(path.read_text()[:600])
    for _ in range(random.choice([0, 1, 2])):
        place = random.randrange(len(text))
        text[place] = random.choice([*"\t :-[]{},#&*!|>'\"%@`?\nae1", ""])
    text = "".join(text)

    def slowly(*arguments, fast):
        return constructed(*arguments, fast=False)

    def outcome():
        documents._parsed.cache_clear()
        try:
            return repr(parse_yaml(text, "f.yaml"))
        except ScenarioError as error:
            return str(error)

    constructed, found = documents._constructed, outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_constructed", slowly)
        assert outcome() == found


@given(text=st.text(alphabet="ab:1 -[]{}&*!|>\n'\"#,?", max_size=40))
def test_any_text_is_yaml_or_a_scenario_error(text):
    try:
        parse_yaml(text, "f.yaml")
    except ScenarioError as error:
        assert str(error).startswith("f.yaml")


# JSON --------------------------------------------------------------------------------------------


def test_wrong_json_is_refused_with_its_line(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"a": 1,\n"b" 2}')
    assert refusal(read_json, path).startswith(f"{path}:2: is not valid JSON: ")


def test_json_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    assert refusal(read_json, path).startswith(f"{path}")


def test_numbers_without_an_end_are_refused_in_json(tmp_path):
    path, wanted = tmp_path / "result.json", "has a number of thousands of digits; shorten it."
    for digits in (1001, 5000):
        path.write_text('{"scenario": {"seed": ' + "1" * digits + "}}")
        assert refusal(read_scenario, path) == f"{path}: {wanted}"


def test_the_scenario_of_a_result_is_bounded(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"scenario": ' + "[" * 65 + "]" * 65 + "}")
    wanted = "its values are nested more than 64 deep; write it flatter."
    assert refusal(read_scenario, path) == f"{path}: {wanted}"
    path.write_text(json.dumps({"scenario": [0] * 200_001}))
    wanted = "its scenario has more than 200000 values."
    assert refusal(read_scenario, path) == f"{path}: {wanted}"
    path.write_text(json.dumps({"scenario": {"seed": 1}, "points": [0] * 200_001}))
    assert read_scenario(path) == {"seed": 1}


# npz ---------------------------------------------------------------------------------------------


def test_arrays_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "weights.npz"
    arrays = {"layers.0.weight": np.arange(6.0).reshape(2, 3), "n": np.array(3)}
    write_whole(path, lambda stream: put_npz(arrays, stream))
    found = read_npz(path)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_an_array_that_needs_pickle_is_refused(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    assert refusal(read_npz, path) == f"{path}: is not an npz file of arrays."


@for_each("content", [b"", b"hello", b"\x93NUMPY", b"\x80\x04N."])
def test_another_kind_of_file_is_no_npz(content, tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert refusal(read_npz, path) == f"{path}: is not an npz file of arrays."


def with_header(path, text, body=b""):
    """Write an npz file whose array has this header, and this content."""
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", head + body)


def test_a_header_of_another_array_is_refused_before_it_is_believed(tmp_path):
    path, header = tmp_path / "data.npz", "{'descr': %r, 'fortran_order': False, 'shape': %s}\n"
    with_header(path, header % ("<f8", "(2,)"), np.ones(2).tobytes())
    np.testing.assert_array_equal(read_npz(path)["x"], [1, 1])
    shapes = ["(100000000000,)", "(4611686018427387904, 4)", "(-1,)", "(3,)", "(True, 2)", "'x'"]
    shapes += ["(0, 99999999999999999999)", "(1,)" * 5, "(" + "1, " * 33 + ")"]
    for dtype, shape in [*(("<f8", shape) for shape in shapes), ("|S0", "(2,)"), ("|O", "(2,)")]:
        with_header(path, header % (dtype, shape), np.ones(2).tobytes())
        assert refusal(read_npz, path) == f"{path}: is not an npz file of arrays.", (dtype, shape)


def test_an_archive_that_unpacks_to_far_more_is_refused_before_it_does(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros(10**6))
    monkeypatch.setattr("simdp.files.tensors.MAX_UNPACKED", 10**6)
    line = refusal(read_npz, path)
    assert line.startswith(f"{path}: unpacks from 0.00")
    assert line.endswith(" to 8 MB in 1 arrays; store it without compression, by numpy.savez.")
    np.savez(path, x=np.zeros(10**6))
    assert len(read_npz(path)["x"]) == 10**6


def test_arrays_beyond_the_memory_that_is_left_are_refused(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros(3))
    monkeypatch.setattr("simdp.files.tensors._array", full)
    assert refusal(read_npz, path) == f"{path}: its arrays are larger than the memory left."


def test_a_fingerprint_tells_contents_apart(tmp_path):
    one, other, text = (tmp_path / name for name in ("a.npz", "b.npz", "c.csv"))
    np.savez(one, x=np.zeros(3))
    np.savez(other, x=np.ones(3))
    text.write_text("a,b")
    first = fingerprint(text)
    text.write_text("a,c")
    assert len({fingerprint(one), fingerprint(other), fingerprint(text), first}) == 4
    assert fingerprint(tmp_path / "none") == ""


def test_a_truncated_npz_is_refused_and_closed(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"PK\x03\x04")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert refusal(read_npz, path) == f"{path}: is not an npz file of arrays."
        gc.collect()
    assert not [str(warning.message) for warning in caught]


def test_a_single_array_is_no_npz(tmp_path):
    path = tmp_path / "one.npy"
    np.save(path, np.ones(3))
    assert refusal(read_npz, path) == f"{path}: is not an npz file of arrays."


def test_an_archive_of_other_things_is_no_npz(tmp_path):
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")
    assert refusal(read_npz, path) == f"{path}: is not an npz file of arrays."


@in_a_folder
@given(data=st.data(), compressed=st.booleans())
def test_a_damaged_npz_is_read_or_refused(data, compressed, tmp_path):
    path = tmp_path / "data.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=np.arange(40.0), y=np.arange(10))
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read_npz(path)
    except ScenarioError as error:
        assert re.fullmatch(
            f"{re.escape(str(path))}: (is not an npz file of arrays|unpacks from .* MB to .*)\\.",
            str(error),
        )


# safetensors -------------------------------------------------------------------------------------

TENSORS = {
    "a": np.arange(6.0).reshape(2, 3),
    "b": np.array([1.5, -2.0], dtype=np.float32),
    "c": np.array([0.5, 65504.0], dtype=np.float16),
    "d": np.array(7),
    "e": np.zeros((0, 3)),
}


def test_tensors_come_back_with_their_types_and_shapes(tmp_path):
    found = read_tensors(safetensors(tmp_path / "a.safetensors", TENSORS))
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_bfloat16_becomes_the_float32_that_it_is_half_of(tmp_path):
    values = np.array([1.0, -2.5, 3.140625, 2.0**-130, np.inf], dtype=np.float32)
    found = read_tensors(safetensors(tmp_path / "a.safetensors", {"a": values}, bf16="a"))["a"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)


def index(folder, **files):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return path


def test_an_index_leads_to_the_tensors_of_several_files(tmp_path):
    safetensors(tmp_path / "1.safetensors", {"a": TENSORS["a"], "b": TENSORS["b"]})
    safetensors(tmp_path / "2.safetensors", {"c": TENSORS["c"]})
    found = read_tensors(index(tmp_path, a="1.safetensors", c="2.safetensors"))
    assert sorted(found) == ["a", "c"]
    np.testing.assert_array_equal(found["c"], TENSORS["c"])


def test_the_files_of_an_index_are_known_and_a_broken_one_has_none(tmp_path):
    path = index(tmp_path, a="1.safetensors", b="1.safetensors", c="2.safetensors")
    assert shards_of(path) == [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    assert shards_of(tmp_path / "1.safetensors") == []
    for content in ("[]", "{", '{"weight_map": [1]}', '{"weight_map": {"a": 3}}'):
        path.write_text(content)
        assert shards_of(path) == []


def test_an_index_names_files_beside_it_that_hold_what_it_says(tmp_path):
    path = index(tmp_path, a="1.safetensors")
    there = tmp_path / "1.safetensors"
    assert refusal(read_tensors, path) == f"{there}: there is no such file."
    safetensors(there, {"b": TENSORS["b"]})
    assert refusal(read_tensors, path) == f"{there}: has no 'a', which {path} says."
    path = index(tmp_path, a="../1.safetensors")
    assert refusal(read_tensors, path) == (
        f"{path}: names '../1.safetensors', which is no file beside it."
    )
    path.write_text("{}")
    assert refusal(read_tensors, path) == (
        f"{path}: has no weight_map of tensors and files; name an index of safetensors files."
    )


@for_each(
    ("header", "said"),
    [
        (
            {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 48]}},
            "'a' has 24 bytes, which are not at 0 ... 48",
        ),
        (
            {"a": {"dtype": "F64", "shape": [2, 3], "data_offsets": [960, 1008]}},
            "'a' has 48 bytes, which are not at 960 ... 1008",
        ),
        ({"a": {"dtype": "F64", "shape": [-2]}}, "'a' has no dtype, shape and data_offsets"),
        ({"a": 3}, "'a' has no dtype, shape and data_offsets"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(header, said, tmp_path):
    path = safetensors(tmp_path / "a.safetensors", {"a": TENSORS["a"]}, header=header)
    assert refusal(read_tensors, path) == f"{path}: is not a safetensors file: {said}."


def test_tensors_of_other_types_are_refused(tmp_path):
    entry = {"a": {"dtype": "F8_E4M3", "shape": [48], "data_offsets": [0, 48]}}
    path = safetensors(tmp_path / "a.safetensors", {"a": TENSORS["a"]}, header=entry)
    assert refusal(read_tensors, path) == (
        f"{path}: has 'a' of F8_E4M3; store F64, F32, F16 or BF16 instead."
    )


@for_each(
    ("content", "said"),
    [
        (b"", "its first 8 bytes are not the length of a header"),
        (b"PK\x03\x04 an npz file", "its first 8 bytes are not the length of a header"),
        (b"\x02" + bytes(7) + b"{]", "its header is not JSON"),
        (b"\x02" + bytes(7) + b"[]", "its header is not an object"),
        (b"\x02" + bytes(7) + b"\xff\xfe", "its header is not JSON"),
    ],
)
def test_other_files_are_no_safetensors(content, said, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert refusal(read_tensors, path) == f"{path}: is not a safetensors file: {said}."


@in_a_folder
@given(st.binary(max_size=200), st.integers(0, 200))
def test_damage_of_safetensors_is_a_refusal_or_harmless(tmp_path, junk, at):
    path = safetensors(tmp_path / "a.safetensors", TENSORS)
    content = path.read_bytes()
    path.write_bytes(content[:at] + junk + content[at + len(junk) :])
    try:
        found = read_tensors(path)
        assert {name: found[name].shape for name in found}.keys() == set(found)
    except ScenarioError as error:
        assert str(error).startswith(f"{path}: ")


# Catalogue ---------------------------------------------------------------------------------------


def test_a_catalogue_lists_its_parts_in_order(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.yaml").write_text(f"alpha: {name}")
    (tmp_path / "notes.txt").write_text("")
    catalogue = Catalogue(tmp_path)
    assert catalogue.names() == ["a", "b"]
    assert catalogue.read("b") == {"alpha": "b"}


def test_figures_come_without_their_source(tmp_path):
    (tmp_path / "a.yaml").write_text("alpha: 1 us\nsource: {alpha: measured}")
    catalogue = Catalogue(tmp_path)
    assert catalogue.figures("a") == {"alpha": "1 us"}
    assert "source" in catalogue.read("a")


def test_a_catalogue_is_a_mapping_from_names_to_figures(tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.yaml").write_text(f"alpha: {name}\nsource: here\n")
    catalogue = Catalogue(tmp_path)
    assert dict(catalogue) == {"a": {"alpha": "a"}, "b": {"alpha": "b"}}
    assert len(catalogue) == 2
    assert "a" in catalogue
    assert "c" not in catalogue
    assert catalogue.get("c") is None
    with pytest.raises(KeyError, match="c"):
        catalogue["c"]


# Whole files or nothing --------------------------------------------------------------------------


def content_of(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def put(text):
    return lambda stream: stream.write(text.encode())


def fail(stream):
    stream.write(b"half of")
    raise KeyError("the writer's own fault")


def test_files_appear_together_in_a_new_folder(tmp_path):
    folder = tmp_path / "runs" / "one"
    with whole_files(folder) as add:
        add("a", put("1"))
        add("b", put("2"))
        assert not {"a", "b"} & set(content_of(folder))  # not before all are complete
    assert content_of(folder) == {"a": "1", "b": "2"}


def test_files_are_replaced(tmp_path):
    for text in ("old", "new"):
        write_whole(tmp_path / "a", put(text))
    assert content_of(tmp_path) == {"a": "new"}


def test_files_can_be_read_by_everyone(tmp_path):
    write_whole(tmp_path / "a", put("1"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_nothing_changes_when_a_writer_raises(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyError), whole_files(tmp_path) as add:
        add("a", put("new"))
        add("b", fail)
    assert content_of(tmp_path) == {"a": "old"}


def test_nothing_changes_when_the_work_between_the_files_raises(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_files(tmp_path) as add:
        add("a", put("new"))
        raise ZeroDivisionError
    assert content_of(tmp_path) == {}


def test_nothing_changes_when_one_place_is_taken_by_a_folder(tmp_path):
    (tmp_path / "b").mkdir()
    with (
        pytest.raises(ScenarioError, match="/b: is a folder; name a file to"),
        whole_files(tmp_path) as add,
    ):
        add("a", put("new"))
        add("b", put("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    wanted = f"{place}: is no folder; name one to write to."
    assert refusal(write_whole, place / "a", put("1")) == wanted


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "inner"
    wanted = f"{folder}: is no folder; name one to write to."
    assert refusal(write_whole, folder / "a", put("1")) == wanted


def test_what_a_killed_process_left_goes_and_what_another_one_writes_stays(tmp_path):
    left = tmp_path / f".left{PART}"
    left.write_text("half of it")
    with whole_files(tmp_path) as add:
        add("a", put("1"))
        write_whole(tmp_path / "b", put("2"))  # as another process would meanwhile
        (part,) = tmp_path.glob(f".*{PART}")
        assert part != left
    assert content_of(tmp_path) == {"a": "1", "b": "2"}


def test_a_disk_without_locks_is_written_to_and_nothing_is_removed_there(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    left = tmp_path / f".left{PART}"
    left.write_text("perhaps another's")
    write_whole(tmp_path / "a", put("1"))
    assert content_of(tmp_path) == {"a": "1", left.name: "perhaps another's"}


@pytest.mark.parametrize("fault", [KeyError, OSError])
def test_folders_that_were_made_for_files_go_with_them(fault, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises((KeyError, ScenarioError)), whole_files(tmp_path / "there/a/b") as add:
        add("c", put("1"))
        raise fault
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    def denied(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("simdp.files.documents.tempfile.mkstemp", denied)
    wanted = f"{tmp_path}: cannot be written to: Permission denied."
    assert refusal(write_whole, tmp_path / "a", put("1")) == wanted


# CSV ---------------------------------------------------------------------------------------------

REQUIRED, OPTIONAL = ["name", "time"], ["bytes"]


@pytest.fixture
def table(tmp_path):
    def table(text):
        path = tmp_path / "t.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_csv(path, REQUIRED, OPTIONAL)

    return table


@for_each(
    "text",
    [
        "# of a profiler\nname,time,bytes\n# half way\nfirst,1.5,8\n\nlast,2e3,0\n",
        '\ufeff# of a profiler\r\nbytes, time ,name\r\n\r\n8 , 1.5,"first"\r\n0,2e3,last',
    ],
)
def test_a_table_is_read_row_by_row_without_its_comments(table, text):
    rows = table(text)
    assert [(row.name, row.numbers) for row in rows] == [
        ("first", {"time": 1.5, "bytes": 8.0}),
        ("last", {"time": 2000.0, "bytes": 0.0}),
    ]
    assert [text.splitlines()[row.line - 1].count(row.name) for row in rows] == [1, 1]


def test_a_column_that_is_optional_may_be_missing(table):
    assert table("name,time\na,1\n")[0].numbers == {"time": 1.0}


@for_each(
    ("text", "message"),
    [
        ("", "t.csv: has no lines; begin with name,time."),
        ("# nothing\n\n", "t.csv: has no lines; begin with name,time."),
        ("name,time\n# a,1\n", "t.csv: has no rows below its columns."),
        ("name,bytes\na,1\n", "t.csv:1: the column time is missing; given: name, bytes."),
        (
            "# c\nname,time,byte\na,1,1\n",
            "t.csv:2: unknown column 'byte'. Did you mean 'bytes'? Known: name, time, bytes.",
        ),
        ("name,time,time\na,1,1\n", "t.csv:1: the column time is there twice."),
        ("name,time\na,1\nb,fast\n", "t.csv:3: time 'fast' is not a number."),
        ("name,time\na,\n", "t.csv:2: time '' is not a number."),
        ("name,time\na,-1\n", "t.csv:2: time -1 is out of range; it must be >= 0 and finite."),
        ("name,time\na,1e16\n", "t.csv:2: time 1e16 is out of range; it must be <= 1e+15."),
        ("name,time\na,inf\n", "t.csv:2: time inf is out of range; it must be >= 0 and finite."),
        ("name,time\na,nan\n", "t.csv:2: time nan is out of range; it must be >= 0 and finite."),
        ("name,time\na,1,2\n", "t.csv:2: has 3 cells for 2 columns."),
        ("name,time\n,1\n", "t.csv:2: name is empty."),
        ("name,time\na,1\n# c\na,2\n", "t.csv:4: 'a' is in line 2 already."),
        ('name,time\n"a,1\n', "t.csv:2: is not valid CSV: unexpected end of data."),
        (b"name,time\n\xff\xfe,1\n", "t.csv: is not a text file; a table is CSV."),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(table, tmp_path, text, message):
    with pytest.raises(ScenarioError) as caught:
        table(text)
    assert str(caught.value) == f"{tmp_path}/{message}"


# XML ---------------------------------------------------------------------------------------------


def test_xml_of_too_many_elements_is_refused(monkeypatch):
    monkeypatch.setattr("simdp.files.tensors.MAX_ELEMENTS", 3)
    assert len(parse_xml("<a><b/>\n<b/></a>", "f.xml").children) == 2
    wanted = "f.xml:2: has more than 3 elements."
    assert refusal(parse_xml, "<a><b/><b/>\n<b/></a>", "f.xml") == wanted
