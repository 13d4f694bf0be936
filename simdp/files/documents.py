"""Reads and writes YAML, JSON and text files; writes are atomic.

A partial file has a name that begins with a dot and ends with `PART`, and is locked by its writer.
This distinguishes the leftovers of a killed process from files being written; leftovers are removed
at the next write to the folder.
"""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from simdp.errors import ScenarioError

# Text ---------------------------------------------------------------------------------------------

MAX_TEXT_BYTES = 16 * 2**20
"""A log or a table of layer times is never larger; a file that is, is of another kind."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, which may be in a script's folder."""

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: Path) -> BufferedReader:
    """Open a regular file to read its bytes; every reader of a user's file opens it here.

    A device may never end, and a pipe may never begin: both are refused before a byte is read.

    Raises
    ------
    ScenarioError
        If there is no such file, it is a folder, a pipe, a socket or a device, or access to it is
        denied.
    """
    try:
        # Without O_NONBLOCK, to open a pipe waits until another process writes to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    except FileNotFoundError:
        raise ScenarioError([f"{path}: there is no such file."]) from None
    except IsADirectoryError:
        raise _a_folder(path) from None
    except OSError as error:
        kind = special_kind(path)
        why = f"cannot be read: {error.strerror or error}." if not kind else _not_regular(kind)
        raise ScenarioError([f"{path}: {why}"]) from None
    except ValueError as error:  # a null byte in the name
        raise ScenarioError([f"{path}: cannot be read: {error}."]) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise _a_folder(path)
        raise ScenarioError([f"{path}: {_not_regular(_KINDS.get(stat.S_IFMT(mode), 'no file'))}"])
    return os.fdopen(handle, "rb")


_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def refuse_special(path: Path) -> None:
    """Refuse a pipe, a socket or a device before another library opens it, or it is replaced.

    Raises
    ------
    ScenarioError
        If the path is one of them; a missing path passes.
    """
    kind = special_kind(path)
    if kind:
        raise ScenarioError([f"{path}: {_not_regular(kind)}"])


def special_kind(path: Path) -> str:
    """Name the type of a pipe, a socket or a device; empty for files, folders and missing paths."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "")
    except (OSError, ValueError):
        return ""


def _not_regular(kind: str) -> str:
    return f"is {kind}, not a regular file; store its content in a file, and name that."


def _a_folder(path: Path) -> ScenarioError:
    return ScenarioError([f"{path}: is a folder; name a file in it."])


def read_text(path: Path, wanted: str = "a scenario is YAML", limit: int = MAX_TEXT_BYTES) -> str:
    """Read a text file; ``wanted`` describes the expected content.

    No more than ``limit`` [bytes] are read.

    Raises
    ------
    ScenarioError
        As `open_file`; or it is not text, or it is too large to be one of ours.
    """
    try:
        with open_file(path) as stream:
            content = stream.read(limit + 1)
        if len(content) > limit:
            most = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit // 2**10} KiB"
            raise ScenarioError(
                [f"{path}: is larger than {most}, so it is another file; {wanted}."]
            )
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ScenarioError([f"{path}: is not a text file; {wanted}."]) from None
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}."]) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Documents ----------------------------------------------------------------------------------------

MAX_YAML_BYTES = 2**18
"""Ten times the longest scenario that we have; more takes long to read."""

MAX_VALUES = 200_000
"""Values of a document after its aliases are expanded; more is an alias bomb."""

MAX_DEPTH = 64
"""How deeply values may be nested; what works on them goes down as deep."""

MAX_DIGITS = 1_000
"""Characters of a number: what comes of it can still be written."""

_UNSUITED_TAG = (ValueError, LookupError, AttributeError, TypeError)
"""What PyYAML lets through when a tag stands on a value that it does not suit, as ``!!int ""``."""


def read_yaml(path: Path) -> Any:
    """Read one YAML document safely.

    Plain data; ``1e-4`` is a number; a doubled key, an alias bomb, a second document are errors.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    return parse_yaml(read_text(path, limit=MAX_YAML_BYTES), str(path))


def key_lines(path: Path) -> dict[str, int]:
    """Find the line of every key of a YAML document, by dotted key; positions of lists count too.

    The file must be valid; see `read_yaml`.
    """
    loader = _loader(False)(read_text(path, limit=MAX_YAML_BYTES))
    lines: dict[str, int] = {}
    try:
        waiting = [("", loader.get_single_node())]
    finally:
        loader.dispose()
    while waiting:
        place, node = waiting.pop()
        for number, item in enumerate(node.value if isinstance(node.value, list) else ()):
            key, inner = item if isinstance(item, tuple) else (item, item)
            name = str(key.value) if isinstance(item, tuple) else str(number)
            dotted = f"{place}.{name}" if place else name
            lines.setdefault(dotted, key.start_mark.line + 1)
            waiting.append((dotted, inner))
    return lines


def parse_yaml(text: str, where: str) -> Any:
    """Read one YAML document from a text, as `read_yaml` does; ``where`` leads its errors."""
    return copy.deepcopy(_parsed(text, where))


@lru_cache(maxsize=256)  # parsing takes longer than a short run
def _parsed(text: str, where: str) -> Any:
    import yaml

    depth = _depth(text)
    if depth > 4 * MAX_DEPTH:  # PyYAML's scanner takes time in proportion to the square of it
        raise ScenarioError([f"{where}: {_TOO_DEEP}"])
    if depth <= MAX_DEPTH and _is_plain(text):
        try:
            return _constructed(text, where, fast=True)
        except (yaml.YAMLError, ScenarioError, *_UNSUITED_TAG):
            pass  # read again, for PyYAML's own message
    try:
        return _constructed(text, where, fast=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ScenarioError([f"{where}{line}: is not valid YAML: {error.problem}."]) from None
    except RecursionError:
        raise ScenarioError([f"{where}: {_TOO_DEEP}"]) from None
    except (yaml.YAMLError, *_UNSUITED_TAG) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ScenarioError([f"{where}: is not valid YAML: {reason}."]) from None


def _constructed(text: str, where: str, fast: bool) -> Any:
    """The values of a document, read by libyaml if ``fast`` and available."""
    loader = _loader(fast)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_bomb(node, where)
        return loader.construct_document(node)
    finally:
        loader.dispose()


_UNUSUAL = re.compile("[^\n -~\xa1-\u1fff\u2010-\u2027]|^[ -]{128}", re.MULTILINE)
"""Characters that libyaml and PyYAML treat differently, and deep indentation."""

_LENIENT = re.compile(r"^(?! *#).*[?!]", re.MULTILINE)
"""Characters outside comments that libyaml accepts in more places than PyYAML."""


def _is_plain(text: str) -> bool:
    """Whether libyaml accepts no more than PyYAML does."""
    return not (_UNUSUAL.search(text) or _LENIENT.search(text))


def _depth(text: str) -> int:
    """The most brackets that are open at once, those of texts and comments included."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


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
def _loader(fast: bool) -> Any:
    """YAML's safe loader, with 1.2's floats, without doubled keys, endless numbers and base 60.

    libyaml, if available, is seven times as fast, but has other error messages, and is unsafe for
    deeply nested values.
    """
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if fast else yaml.SafeLoader

    class Loader(base):  # type: ignore[misc]
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
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

        def construct_scalar(self, node: Any) -> Any:
            if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
                raise yaml.constructor.ConstructorError(
                    None, None, f"a number has more than {MAX_DIGITS} digits", node.start_mark
                )
            scalar = super().construct_scalar(node)
            if node.tag in _NUMBERS and ":" in scalar:
                value = _to_the_base_of_60(scalar)
                why = (
                    f"{scalar} is {value}, to the base of 60; write {value}, or '{scalar}' "
                    "for a text"
                )
                raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
            return scalar

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )
    return Loader


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _to_the_base_of_60(text: str) -> str:
    """The number as which YAML 1.1 reads ``1:30``: 90.

    References
    ----------
    yaml.org/type/int.html, yaml.org/type/float.html: base 60.
    """
    value = 0.0
    for digits in text.lstrip("+-").replace("_", "").split(":"):
        value = 60 * value + float(digits)
    return f"{-value if text.startswith('-') else value:.15g}"


_TOO_DEEP = f"its values are nested more than {MAX_DEPTH} deep; write it flatter."


def _refuse_bomb(root: Any, where: str) -> None:
    """Refuse an alias bomb, a loop, or a well; every node is counted once, so this stays cheap."""
    counts: dict[int, tuple[int, int]] = {}
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
            below = [counts[id(child)] for child in children]
            depth = 1 + max((deep for _, deep in below), default=0)
            counts[key] = 1 + sum(count for count, _ in below), depth
    count, depth = counts[id(root)]
    if count > MAX_VALUES:
        raise ScenarioError(
            [f"{where}: its aliases expand to more than {MAX_VALUES} values; write them out."]
        )
    if depth > MAX_DEPTH:
        raise ScenarioError([f"{where}: {_TOO_DEEP}"])


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    text = read_text(path, "a result is JSON")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ScenarioError([f"{path}:{error.lineno}: is not valid JSON: {error.msg}."]) from None
    except RecursionError:
        raise ScenarioError([f"{path}: is not valid JSON: it is nested too deeply."]) from None
    except ValueError:  # of Python's integers, which no JSON forbids
        raise ScenarioError([f"{path}: has a number of thousands of digits; shorten it."]) from None


def read_scenario(path: Path) -> Any:
    """Read a scenario as plain data from YAML, JSON, or a saved ``result.json``; None: has none.

    Raises
    ------
    ScenarioError
        As `read_yaml` and `read_json`.
    """
    if path.suffix != ".json":
        return read_yaml(path)
    content = read_json(path)
    if not isinstance(content, dict):
        return content
    scenario = content.get("scenario", content if "cluster" in content else None)
    _refuse_too_much(scenario, str(path))
    return scenario


def _refuse_too_much(value: Any, where: str) -> None:
    """Refuse plain data of too many values, or nested too deeply, or with endless numbers."""
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_VALUES:
            raise ScenarioError([f"{where}: its scenario has more than {MAX_VALUES} values."])
        if any(isinstance(node, int) and abs(node) >= 10**MAX_DIGITS for node in level):
            raise ScenarioError([f"{where}: has a number of thousands of digits; shorten it."])
        level = [
            inner
            for node in level
            if isinstance(node, dict | list)
            for inner in (node.values() if isinstance(node, dict) else node)
        ]
    if level:
        raise ScenarioError([f"{where}: {_TOO_DEEP}"])


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

    def mentioning(self, word: str) -> list[str]:
        """Names of the parts whose files contain a word: parsing all takes far longer."""
        files = {name: self.folder / f"{name}.yaml" for name in self._names}
        return [name for name, file in files.items() if word in file.read_text("utf-8")]

    def read(self, name: str) -> Mapping[str, Any]:
        """Read the entry of one part."""
        file = self.folder / f"{name}.yaml"
        return copy.deepcopy(dict(_parsed(read_text(file, limit=MAX_YAML_BYTES), str(file))))

    def figures(self, name: str) -> dict[str, Any]:
        """Read the figures of one part, without their sources and what describes it."""
        others = ("source", "driver_names", "nvls")
        return {key: value for key, value in self.read(name).items() if key not in others}


# Whole --------------------------------------------------------------------------------------------

PART = ".simdp-part"
"""How the name of a file ends that is not whole yet."""


AddFile = Callable[[str, Callable[[BinaryIO], None]], None]


@contextmanager
def whole_files(folder: Path, earlier: Iterable[str] = ()) -> Iterator[AddFile]:
    """Write several files into a folder: all of them appear, or none.

    Parameters
    ----------
    folder : Path
        Made, with its parents; gone again if the files do not come about.
    earlier : iterable of str
        Patterns of the files that an earlier run may have left; those not written now are removed.

    Yields
    ------
    callable
        ``add(name, write)`` where ``write`` fills a binary stream.

    Raises
    ------
    ScenarioError
        If the folder cannot be written to.
    """
    written: list[tuple[Path, Path, int]] = []
    made: list[Path] = []
    complete = False
    try:
        made = [place for place in (folder, *folder.parents) if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ScenarioError([f"{folder}: is no folder; name one to write to."]) from None
        _remove_left_over(folder)

        def add(name: str, write: Callable[[BinaryIO], None]) -> None:
            target = folder / name
            if target.is_dir():
                raise ScenarioError([f"{target}: is a folder; name a file to write to."])
            if kind := special_kind(target):
                raise ScenarioError([f"{target}: is {kind}; name a regular file to write to."])
            handle, temporary = _part(folder)
            written.append((target, temporary, handle))
            with os.fdopen(handle, "wb", closefd=False) as stream:
                write(stream)
            temporary.chmod(0o644)

        yield add
        for target, temporary, _ in written:
            temporary.replace(target)
        complete = True
        _remove_earlier(folder, earlier, [target for target, _, _ in written])
    except OSError as error:
        why = error.strerror or error
        raise ScenarioError([f"{folder}: cannot be written to: {why}."]) from None
    finally:
        for _, temporary, handle in written:
            temporary.unlink(missing_ok=True)
            os.close(handle)
        if not complete:
            for place in made:
                with suppress(OSError):
                    place.rmdir()


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write one file, whole or not at all; errors as in `whole_files`."""
    with whole_files(path.parent) as add:
        add(path.name, write)


SPACE = 2**20
"""Bytes that must fit on a disk before a run whose results go there; a page has as many."""


def check_outputs(*paths: Path | None) -> None:
    """Refuse files that could not be written after a run: write them in part, and remove that.

    A ScenarioError as of `whole_files`, also where the disk is full; None passes.
    """
    for path in filter(None, paths):
        with suppress(_TrialError):
            write_whole(path, _fill)


class _TrialError(Exception):
    """Ends a write before a file appears."""


def _fill(stream: BinaryIO) -> None:
    stream.write(bytes(SPACE))
    raise _TrialError


def put_text(text: str, stream: BinaryIO) -> None:
    """Write text into a binary stream; for `whole_files`."""
    stream.write(text.encode())


def _remove_earlier(folder: Path, patterns: Iterable[str], written: Sequence[Path]) -> None:
    """Remove files of an earlier run, and folders in which nothing is left."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        if path not in written and not path.is_dir():
            path.unlink(missing_ok=True)
            if path.parent != folder:
                with suppress(OSError):
                    path.parent.rmdir()


def _part(folder: Path) -> tuple[int, Path]:
    """Make a file that is locked, for as long as this process has it open."""
    while True:
        handle, name = tempfile.mkstemp(prefix=".", suffix=PART, dir=folder)
        # Between the two lines another process may have taken it for one that is left over.
        if _lock(handle) is not False and os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)


def _remove_left_over(folder: Path) -> None:
    """Remove partial files of dead processes."""
    for path in folder.glob(f".*{PART}"):
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                if _lock(handle):
                    path.unlink()
            finally:
                os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock a file; False where another process has it, None on a disk that knows no locks."""
    try:
        import fcntl  # which not every system has

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True
