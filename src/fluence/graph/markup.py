"""XML as plain elements that know their line, with nothing in it that can grow or reach outside.

Recipes and topologies come from users' files. A document type may be named (hwloc names one), but a
document that declares entities is refused: expanding them is how a small file becomes a huge one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from fluence.errors import InvalidGraph

MAX_DEPTH = 500  # real documents stay below 40


@dataclass(slots=True)
class Element:
    """One element: its local name, its attributes, its contents, and the line where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text directly inside, without the blanks around it."""
        return "".join(self.pieces).strip()

    def named(self, tag: str) -> Iterator[Element]:
        """The children with this name."""
        return (child for child in self.children if child.tag == tag)


def parse(text: str | bytes, *, source: str) -> Element:
    """The root element of a document."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    document = Element("", {}, 0)
    path = [document]

    def line() -> str:
        return f"{source}: line {parser.CurrentLineNumber}"

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(path) > MAX_DEPTH:
            raise InvalidGraph(f"elements are nested more than {MAX_DEPTH} deep", where=line())
        element = Element(tag.rpartition(":")[2], attributes, parser.CurrentLineNumber)
        path[-1].children.append(element)
        path.append(element)

    def end(_tag: str) -> None:
        path.pop()

    def characters(data: str) -> None:
        path[-1].pieces.append(data)

    def refuse_entity(*_declaration: object) -> None:
        raise InvalidGraph("entities are not supported; write the text itself instead", where=line())

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.EntityDeclHandler = refuse_entity
    parser.SkippedEntityHandler = refuse_entity
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise InvalidGraph(
            f"this is not well-formed XML ({reason})", where=f"{source}: line {error.lineno}"
        ) from None
    except (ValueError, LookupError) as error:  # bytes in no encoding that can be read
        raise InvalidGraph(f"the text cannot be decoded ({error}); save it as UTF-8", where=source) from None
    return document.children[0]
