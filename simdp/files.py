"""The only door to disk: YAML, npz, CSV and JSON in; whole files or nothing out."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from simdp.errors import ScenarioError
from simdp.tables import Row, parse_csv

if TYPE_CHECKING:
    import numpy as np

MAX_TEXT_BYTES = 16 * 2**20
"""A scenario or a table of layer times is never larger; a file that is, is of another kind."""

MAX_YAML_NODES = 200_000
"""Nodes of a document after its aliases are expanded; more is an alias bomb."""

_UNSUITED_TAG = (ValueError, LookupError, AttributeError, TypeError)
"""What PyYAML lets through when a tag stands on a value that it does not suit, as ``!!int ""``."""


def read_text(path: Path, wanted: str = "a scenario is YAML") -> str:
    """Read a text file; ``wanted`` says what it should have been.

    Raises
    ------
    ScenarioError
        If there is no such file, or it is not text, or it is too large to be one of ours.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ScenarioError([f"{path}: is larger than 16 MiB, so it is no scenario or table."])
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError([f"{path}: there is no such file."]) from None
    except IsADirectoryError:
        raise ScenarioError([f"{path}: is a folder; name a file in it."]) from None
    except UnicodeDecodeError:
        raise ScenarioError([f"{path}: is not a text file; {wanted}."]) from None
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}."]) from None


def read_yaml(path: Path) -> Any:
    """Read one YAML document safely.

    Plain data; ``1e-4`` is a number; a doubled key, an alias bomb, a second document are errors.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Read one YAML document from a text, as `read_yaml` does; ``where`` leads its errors."""
    return copy.deepcopy(_parsed(text, where))


@lru_cache(maxsize=256)  # parsing takes longer than a short run
def _parsed(text: str, where: str) -> Any:
    import yaml

    try:
        loader = _loader()(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _refuse_bomb(node, where)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ScenarioError([f"{where}{line}: is not valid YAML: {error.problem}."]) from None
    except (yaml.YAMLError, RecursionError, *_UNSUITED_TAG) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ScenarioError([f"{where}: is not valid YAML: {reason}."]) from None


def format_yaml(value: Any) -> str:
    """Write plain data as YAML, in the order in which it is; `parse_yaml` reads it again."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return str(
        yaml.dump(
            value,
            Dumper=Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=100,
            default_flow_style=None,
        )
    )


@cache
def _loader() -> Any:
    """YAML's safe loader, with 1.2's floats and without doubled keys."""
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str | int | float | bool):
                    raise yaml.constructor.ConstructorError(
                        None, None, "a key must be a word", key_node.start_mark
                    )
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )
    return Loader


def _refuse_bomb(root: Any, where: str) -> None:
    """Refuse an alias bomb, or a loop; every node is counted once, so that this stays cheap."""
    counts: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack = [(root, False)]
    while stack:
        node, children_done = stack.pop()
        key = id(node)
        if not children_done and key in counts:
            continue
        value = node.value if isinstance(node.value, list) else []
        children = [c for item in value for c in (item if isinstance(item, tuple) else (item,))]
        if not children_done:
            if key in open_nodes:
                raise ScenarioError([f"{where}: an alias contains itself."])
            open_nodes.add(key)
            stack.append((node, True))
            for child in children:
                if id(child) in open_nodes:
                    raise ScenarioError([f"{where}: an alias contains itself."])
                stack.append((child, False))
        else:
            open_nodes.discard(key)
            counts[key] = 1 + sum(counts[id(child)] for child in children)
    if counts[id(root)] > MAX_YAML_NODES:
        raise ScenarioError(
            [f"{where}: its aliases expand to more than {MAX_YAML_NODES} values; write them out."]
        )


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ScenarioError([f"{path}:{error.lineno}: is not valid JSON: {error.msg}."]) from None
    except RecursionError:
        raise ScenarioError([f"{path}: is not valid JSON: it is nested too deeply."]) from None


def read_csv(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[Row]:
    """Read a table of names and numbers from a CSV file, as `parse_csv` does.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    return parse_csv(read_text(path, "a table is CSV"), str(path), required, optional)


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read every array of an npz file; pickled objects are refused.

    Raises
    ------
    ScenarioError
        If there is no such file, it is not npz, or an array needs pickle.
    """
    import zlib
    from zipfile import BadZipFile

    import numpy as np

    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ScenarioError([f"{path}: there is no such file."]) from None
    except (OSError, ValueError, BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ScenarioError([f"{path}: is not an npz file of arrays."]) from error
    except (AttributeError, TypeError):  # a single array, not an archive of several
        raise ScenarioError([f"{path}: is not an npz file of arrays."]) from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ScenarioError([f"{path}: is not an npz file of arrays."])
    return arrays


def npz_checksums(path: Path) -> tuple[tuple[str, int], ...]:
    """What tells whether an npz file still holds the same arrays; nothing where it is none."""
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(path) as archive:
            return tuple((member.filename, member.CRC) for member in archive.infolist())
    except (OSError, ValueError, RuntimeError, BadZipFile):
        return ()


class Catalogue(Mapping[str, Mapping[str, Any]]):
    """A folder of YAML files, one per real part; as a mapping, its parts' figures by name.

    Parameters
    ----------
    folder : Path
        Where the files lie; a file's stem is the part's name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._names:  # a mapping that raises anything else knows no `in`
            raise KeyError(name)
        return self.figures(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self.folder.glob("*.yaml")))

    def names(self) -> list[str]:
        """Every part's name, sorted."""
        return list(self._names)

    def read(self, name: str) -> Mapping[str, Any]:
        """Read the entry of one part."""
        return dict(read_yaml(self.folder / f"{name}.yaml"))

    def figures(self, name: str) -> dict[str, Any]:
        """Read the entry of one part, without where its figures come from."""
        return {key: value for key, value in self.read(name).items() if key != "source"}


@contextmanager
def whole_files(folder: Path) -> Iterator[Callable[[str, Callable[[BinaryIO], None]], None]]:
    """Write several files into a folder: all of them appear, or none.

    Parameters
    ----------
    folder : Path
        Made, with its parents; gone again if the files do not come about.

    Yields
    ------
    callable
        ``add(name, write)`` where ``write`` fills a binary stream.

    Raises
    ------
    ScenarioError
        If the folder cannot be written to.
    """
    written: list[tuple[Path, Path]] = []
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    complete = False
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ScenarioError([f"{folder}: is no folder; name one to write to."]) from None

        def add(name: str, write: Callable[[BinaryIO], None]) -> None:
            target = folder / name
            if target.is_dir():
                raise ScenarioError([f"{target}: is a folder; name a file to write to."])
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
            written.append((target, Path(temporary)))
            with os.fdopen(handle, "wb") as stream:
                write(stream)
            Path(temporary).chmod(0o644)

        yield add
        for target, temporary in written:
            temporary.replace(target)
        complete = True
    except OSError as error:
        why = error.strerror or error
        raise ScenarioError([f"{folder}: cannot be written to: {why}."]) from None
    finally:
        for _, temporary in written:
            temporary.unlink(missing_ok=True)
        if not complete:
            for place in made:
                with suppress(OSError):
                    place.rmdir()


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write one file, whole or not at all; errors as in `whole_files`."""
    with whole_files(path.parent) as add:
        add(path.name, write)


def put_npz(arrays: Mapping[str, np.ndarray[Any, Any]], stream: BinaryIO) -> None:
    """Write arrays into a stream as npz; for `whole_files`."""
    import numpy as np

    np.savez(stream, allow_pickle=False, **arrays)


class XmlElement(NamedTuple):
    """An element of an XML file: its name, its line, its attributes, and what stands in it."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[XmlElement]


def parse_xml(text: str, where: str) -> XmlElement:
    """Read XML from a text: elements and attributes; text between them is passed over.

    A document type is refused, since the entities that it declares can grow without bounds.

    Parameters
    ----------
    text : str
        The whole file.
    where : str
        Leads the errors, for example the file.

    Raises
    ------
    ScenarioError
        With the line and the reason.
    """
    from xml.parsers import expat

    parser = expat.ParserCreate()
    top: list[XmlElement] = []
    open_elements: list[XmlElement] = []

    def begin(name: str, attributes: dict[str, str]) -> None:
        element = XmlElement(name, parser.CurrentLineNumber, attributes, [])
        (open_elements[-1].children if open_elements else top).append(element)
        open_elements.append(element)

    def end(name: str) -> None:
        open_elements.pop()

    def refuse(*declaration: object) -> None:
        line = parser.CurrentLineNumber
        raise ScenarioError([f"{where}:{line}: declares a document type; leave <!DOCTYPE out."])

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ScenarioError([f"{where}:{error.lineno}: is not valid XML: {reason}."]) from None
    return top[0]
