"""The only door to disk: YAML, npz, safetensors, JSON, XML and text in; whole files or nothing out.

Every reader bounds its input before reading it: bytes of a text, values and depth of a document,
the unpacked size of an archive. Input beyond that, or damaged, raises a `ScenarioError` that names
the file. Only regular files are read; every reader opens them with `open_file`.
"""

from simdp.files.documents import (
    INSTALLED,
    Catalogue,
    check_outputs,
    format_yaml,
    key_lines,
    open_file,
    parse_yaml,
    put_text,
    read_json,
    read_scenario,
    read_text,
    read_yaml,
    whole_files,
    write_whole,
)
from simdp.files.tensors import (
    TensorFile,
    XmlElement,
    fingerprint,
    parse_xml,
    put_npz,
    read_npz,
    read_tensors,
    shards_of,
)

__all__ = [
    "INSTALLED",
    "Catalogue",
    "TensorFile",
    "XmlElement",
    "check_outputs",
    "fingerprint",
    "format_yaml",
    "key_lines",
    "open_file",
    "parse_xml",
    "parse_yaml",
    "put_npz",
    "put_text",
    "read_json",
    "read_npz",
    "read_scenario",
    "read_tensors",
    "read_text",
    "read_yaml",
    "shards_of",
    "whole_files",
    "write_whole",
]
