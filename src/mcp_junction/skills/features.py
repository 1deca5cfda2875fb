"""ToolText: what a classifier reads of a tool or of a server, as fields and as terms.

The trained classifier and its training (``training/skills.py``) read the same terms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec

from mcp_junction.search.words import terms as split_terms

_NAME: Final = 300
_DESCRIPTION: Final = 400
"""Characters of a description that count."""
_EMBEDDED: Final = 200
"""Characters of a description that are embedded."""
_PARAMETERS: Final = 400
_SPLIT: Final = re.compile(r"[_\-./:\s]+|(?<=[a-z0-9])(?=[A-Z])")


class ToolText(msgspec.Struct, frozen=True, gc=False):
    """The words of a tool, by where they stand. A server has a title and a description only."""

    name: str
    description: str = ""
    parameters: str = ""

    @property
    def embedded(self) -> str:
        """The text that a tool's vector is made of: its name, as words, and its description."""
        words = " ".join(part for part in _SPLIT.split(self.name) if part)
        return f"{words}. {self.description[:_EMBEDDED]}"

    def terms(self) -> Iterator[str]:
        """Yield the stems, the pairs of stems, and the stems marked by the field they stand in."""
        for mark, text in (("n", self.name), ("d", self.description), ("p", self.parameters)):
            found = split_terms(text)
            yield from found
            yield from (f"{mark}:{term}" for term in found)
            if mark != "p":
                yield from (f"{one} {two}" for one, two in pairwise(found))


class _InputSchema(msgspec.Struct):
    properties: dict[str, Any] = {}


class _Definition(msgspec.Struct):
    title: Any = None
    description: Any = None
    inputSchema: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(_Definition).decode
_decode_schema = msgspec.json.Decoder(_InputSchema).decode


def read_tool(name: str, definition: bytes) -> ToolText:
    """Read the words of a tool; of a definition that makes no sense, only its name."""
    try:
        tool = _decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        tool = _Definition()
    try:
        parameters = " ".join(_decode_schema(tool.inputSchema).properties)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        parameters = ""
    texts = [part for part in (tool.title, tool.description) if isinstance(part, str)]
    return make_text(name, " ".join(texts), parameters)


def make_text(name: str, description: str = "", parameters: str = "") -> ToolText:
    """Make a ToolText of words of any length, without what cannot be encoded."""
    cut = name[:_NAME], description[:_DESCRIPTION], parameters[:_PARAMETERS]
    return ToolText(*(text.encode(errors="replace").decode() for text in cut))
