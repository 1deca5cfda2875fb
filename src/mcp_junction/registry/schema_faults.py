"""SchemaFaults: what is wrong with the schemas of listed tools, found once for each schema.

Checking thousands of schemas takes seconds: call it in a thread. It only finds faults; whether such
a tool is hidden, ``tool_rules.py`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from msgspec import Raw

from mcp_junction.catalog.items import ListItem

_MOST: Final = 50_000
_LONGEST: Final = 300

Iterate = Callable[[Iterable[ListItem]], Iterable[ListItem]]


class SchemaFaults:
    """Finds the faults of schemas, and remembers them by the schema's hash."""

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def find(self, tools: Iterable[ListItem], iterate: Iterate = iter) -> dict[str, str]:
        """Return the first fault of each tool whose schema is invalid, by the tool's name."""
        found: dict[str, str] = {}
        for tool in iterate(tools):
            schema = tool.members.get("inputSchema")
            fault = self._check(schema) if schema is not None else ""
            if fault:
                found[tool.name] = fault
        return found

    def _check(self, schema: Raw) -> str:
        # Imported where it is used: the validator takes a while to load.
        from mcp_junction.governance.schemas import check_schema

        digest = sha256(schema).digest()
        known = self._known.get(digest)
        if known is None:
            problems = check_schema(schema)
            known = " ".join(problems[0]).strip()[:_LONGEST] if problems else ""
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[digest] = known
        return known
