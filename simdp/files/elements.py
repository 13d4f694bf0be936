"""XML files: elements and attributes, to a limit."""

from __future__ import annotations

from typing import NamedTuple

from simdp.errors import ScenarioError

MAX_ELEMENTS = 500_000


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
    count = 0

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if count > MAX_ELEMENTS:
            raise ScenarioError([f"{where}:{line}: has more than {MAX_ELEMENTS} elements."])
        element = XmlElement(name, line, attributes, [])
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
