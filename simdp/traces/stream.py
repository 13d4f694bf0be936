"""Streams the events of a trace file of any size, and reports cut or invalid parts.

A window of text slides over the file. Python's own decoder reads one event from it at a time: it is
faster than streaming libraries (``python -m benchmarks.traces``), and continues after junk. Unused
events, such as arrows and Python calls, are skipped before decoding.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from simdp.errors import ScenarioError, shown
from simdp.files import open_file

BLOCK = 2**20
"""Bytes that are read at once."""

MAX_VALUE = 2**26
"""Characters of one event, or of one field beside them."""

UNUSED = re.compile(
    r'\{\s*"ph":\s*"(?:[sftMC]"|(i)"|(X)",\s*"cat":\s*"python_function")'
    r"[^{}\\]*+(?:\{[^{}\\]*+\}[^{}\\]*+)?\}(?=\s*[,\]])"
)
"""Events that are never used, as Kineto writes them; others are passed over once decoded."""

_BETWEEN = re.compile(r"[\s,]*+")
_AN_EVENT = re.compile(r'\{\s*"(?:ph|name|cat|pid|tid|ts|id)"\s*:')
_WAIT_FOR = 64
"""Distance to the end of the window within which more text may complete a broken value."""

_DECODER = json.JSONDecoder(parse_float=cast("type[float]", str), parse_constant=str, strict=False)
"""Numbers with a point stay text: times since 1970 have more digits than a float holds."""


class CutError(Exception):
    """The file ends, or cannot be read on, within a value."""


def opened(path: Path) -> IO[bytes]:
    """Open a file, and detect its compression.

    Raises
    ------
    ScenarioError
        If there is no such file, or it cannot be read.
    """
    try:
        stream = open_file(path)
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        if packed:
            stream.close()
            return cast("IO[bytes]", gzip.open(path))
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror or error}."]) from None
    return stream


def unpacked(stream: IO[bytes], packed: bool) -> IO[bytes]:
    """Decompress gzip data, if any."""
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if packed else stream


class TextWindow:
    """The part of a text file that is being looked at.

    Attributes
    ----------
    text : str
        The part.
    at : int
        Where in it the next value begins.
    before : int
        Characters of the file before the part.
    broken : str
        Why the file could not be read to its end; empty if it could.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.text, self.at, self.before, self.broken = "", 0, 0, ""
        self._read = getattr(stream, "read1", stream.read)  # which returns the data before damage
        self._ended = False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode

    def more(self) -> bool:
        """Read on; say whether there was anything more."""
        if self._ended:
            return False
        raw = self._block()
        self._ended = self._ended or not raw
        self.before += self.at
        self.text = self.text[self.at :] + self._decode(raw, self._ended)
        self.at = 0
        return bool(raw)

    def _block(self) -> bytes:
        """Read the next block; of damaged data, the part before the damage."""
        wanted, pieces = max(BLOCK, len(self.text) - self.at), list[bytes]()
        try:
            while wanted > 0 and (piece := self._read(wanted)):
                pieces.append(piece)
                wanted -= len(piece)
        except (OSError, EOFError, zlib.error) as error:
            self._ended, self.broken = True, "its compressed data is damaged, or ends too early"
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                self.broken = f"it cannot be read on: {error.strerror or error}"
        return b"".join(pieces)

    def next(self) -> str:
        """Go to the next character that is no blank and no comma; ``""`` at the end."""
        while True:
            self.at = _BETWEEN.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def value(self) -> Any:
        """Decode the value that begins here, and go behind it.

        Raises
        ------
        CutError
            If the file ends in it.
        ValueError
            If it is no JSON.
        """
        while True:
            try:
                decoded, end = _DECODER.scan_once(self.text, self.at)  # type: ignore[attr-defined]
                if end == len(self.text) and self.more():  # a number may go on
                    continue
                self.at = end
                return decoded
            except (json.JSONDecodeError, StopIteration) as error:
                why = getattr(error, "msg", "no value")
                at = error.value if isinstance(error, StopIteration) else error.pos
                if at < len(self.text) - _WAIT_FOR and "Unterminated" not in why:
                    raise ValueError(why) from None
                if len(self.text) - self.at > MAX_VALUE:
                    raise ValueError("too long") from None
                if not self.more():
                    raise CutError from None
            except RecursionError:
                raise ValueError("too deep") from None

    def skip_to(self, what: re.Pattern[str]) -> bool:
        """Go to where a pattern next occurs, from the next character on."""
        self.at += 1
        while not (match := what.search(self.text, self.at)):
            self.at = max(self.at, len(self.text) - _WAIT_FOR)
            if not self.more():
                return False
        self.at = match.start()
        return True


class Events:
    """The events of a trace file, each a dictionary; numbers with a point are text.

    Parameters
    ----------
    stream : binary file
        JSON, unpacked.
    where : str
        How messages call the file.

    Attributes
    ----------
    head : dict
        Metadata next to the events; complete once all were read.
    remarks : list of str
        Truncated or invalid parts.
    num_events : int
        How many were read, unused ones too.
    num_numbered : int
        How many of the unused ones are such as torch numbers: Python's own calls, and instants.
    is_cut : bool
        Whether the file ends before its events do.
    """

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self.head: dict[str, object] = {}
        self.remarks: list[str] = []
        self.num_events, self.num_numbered = 0, 0
        self._window, self._where = TextWindow(stream), where
        self._num_junk, self._first_junk = 0, 0
        self.is_cut = False

    def __iter__(self) -> Iterator[dict[str, object]]:
        """Yield them, in the order of the file.

        Raises
        ------
        ScenarioError
            If the file is empty, or no JSON, or JSON without events.
        """
        window = self._window
        first = window.next()
        if first == "[":
            window.at += 1
            yield from self._objects()
        elif first == "{":
            window.at += 1
            yield from self._in_fields()
        elif not first and not window.broken:
            raise ScenarioError([f"{self._where}: is empty; {WANTED}."])
        else:
            why = f": {window.broken}" if window.broken else ""
            raise ScenarioError([f"{self._where}: is no JSON{why}; {WANTED}."])
        if self._num_junk:
            self.remarks.append(
                f"{self._num_junk} places of the file hold no event that can be read and were "
                f"passed over, the first {self._first_junk} characters after its begin."
            )

    def _in_fields(self) -> Iterator[dict[str, object]]:
        window, has_events = self._window, False
        while (first := window.next()) not in ("", "}"):
            try:
                key = window.value()
                if window.next() != ":" or not isinstance(key, str):
                    raise ValueError
                window.at += 1
                if window.next() == "[" and key == "traceEvents":
                    has_events = True
                    window.at += 1
                    yield from self._objects()
                    if window.broken or not window.next():
                        return
                else:
                    self.head[key] = window.value()
            except CutError:
                first = ""
                break
            except ValueError:
                if has_events:
                    self._junk()
                    return
                at = window.before + window.at
                raise ScenarioError(
                    [f"{self._where}: is no JSON from character {at} on; {WANTED}."]
                ) from None
        if not has_events:
            self._without_events(cut=not first)
        elif not first:
            self._cut()

    def _without_events(self, cut: bool) -> None:
        keys = ", ".join(list(self.head)[:6]) or "nothing"
        reason = f"its fields are {shown(keys)[1:-1]}"
        if "nodes" in self.head:
            reason = "it is an execution trace, which holds no times"
        elif cut:
            reason += ", and there it is cut"
        raise ScenarioError([f"{self._where}: is JSON without traceEvents: {reason}; {WANTED}."])

    def _objects(self) -> Iterator[dict[str, object]]:
        """Yield the events of the list that begins here."""
        window, unused = self._window, UNUSED.match
        while first := window.next():
            if first == "]":
                window.at += 1
                return
            skipped = unused(window.text, window.at)
            if skipped:
                window.at = skipped.end()
                self.num_events += 1
                self.num_numbered += skipped.lastindex is not None
                continue
            try:
                if first != "{":
                    raise ValueError
                event = window.value()
            except CutError:
                break
            except ValueError:
                self._junk()
                if not window.skip_to(_AN_EVENT):
                    break
                continue
            self.num_events += 1
            yield event
        self._cut()

    def _junk(self) -> None:
        if not self._num_junk:
            self._first_junk = self._window.before + self._window.at
        self._num_junk += 1

    def _cut(self) -> None:
        self.is_cut = True
        why = f", since {self._window.broken}" if self._window.broken else ""
        self.remarks.append(
            f"The file ends in the middle{why}: {self.num_events:,} events before "
            f"character {self._window.before + self._window.at:,} were read, and what came "
            "behind them is missing."
        )


WANTED = (
    "write a trace with torch.profiler's export_chrome_trace (.json or .json.gz), or take "
    "simdp's trace.json"
)
"""Wanted content of a file, for errors."""
