"""Text files: read to a limit, and never beyond."""

from __future__ import annotations

from pathlib import Path

from simdp.errors import ScenarioError

MAX_TEXT_BYTES = 16 * 2**20
"""A log or a table of layer times is never larger; a file that is, is of another kind."""


def read_text(path: Path, wanted: str = "a scenario is YAML", limit: int = MAX_TEXT_BYTES) -> str:
    """Read a text file; ``wanted`` says what it should have been.

    No more than ``limit`` [bytes] are read, also of what has no size, such as a pipe or a device.

    Raises
    ------
    ScenarioError
        If there is no such file, or it is not text, or it is too large to be one of ours.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
        if len(content) > limit:
            most = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit // 2**10} KiB"
            raise ScenarioError(
                [f"{path}: is larger than {most}, so it is another file; {wanted}."]
            )
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError([f"{path}: there is no such file."]) from None
    except IsADirectoryError:
        raise ScenarioError([f"{path}: is a folder; name a file in it."]) from None
    except UnicodeDecodeError:
        raise ScenarioError([f"{path}: is not a text file; {wanted}."]) from None
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}."]) from None
    except ValueError as error:  # a null byte in the name
        raise ScenarioError([f"{path}: cannot be read: {error}."]) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
