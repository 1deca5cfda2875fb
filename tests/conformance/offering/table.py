"""A table of tools: what is listed, and the function that runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from .answers import Context

Outcome = types.CallToolResult | types.InputRequiredResult
Run = Callable[[Context, types.CallToolRequestParams], Awaitable[Outcome]]
Schema = dict[str, Any]

NOTHING: Schema = {"type": "object", "properties": {}}


def arguments(**properties: Schema) -> Schema:
    """The schema of an object with these properties, all of them required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    input_schema: Schema
    run: Run

    def listed(self) -> types.Tool:
        return types.Tool(
            name=self.name, description=self.description, input_schema=self.input_schema
        )


class Table(dict[str, Tool]):
    """Tools by name, in the order in which they are listed."""

    def add(self, description: str, schema: Schema = NOTHING) -> Callable[[Run], Run]:
        """Decorate a function: it becomes a tool under its own name."""

        def put(run: Run) -> Run:
            self[run.__name__] = Tool(run.__name__, description, schema, run)
            return run

        return put
