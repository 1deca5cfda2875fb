"""ListKind: the four kinds of lists that servers have, and what tells their items apart."""

from __future__ import annotations

from typing import Final

import msgspec


class ListKind(msgspec.Struct, frozen=True, eq=False):
    """One kind of list: what reads it, where its items are, and what announces a change."""

    name: str
    list_method: str
    member: str
    key: str
    capability: str
    changed: str

    @property
    def is_named(self) -> bool:
        """Whether its items have names, which are spelled; others have URIs."""
        return self.key == "name"


TOOLS: Final = ListKind(
    "tools", "tools/list", "tools", "name", "tools", "notifications/tools/list_changed"
)
PROMPTS: Final = ListKind(
    "prompts", "prompts/list", "prompts", "name", "prompts", "notifications/prompts/list_changed"
)
RESOURCES: Final = ListKind(
    "resources",
    "resources/list",
    "resources",
    "uri",
    "resources",
    "notifications/resources/list_changed",
)
TEMPLATES: Final = ListKind(
    "templates",
    "resources/templates/list",
    "resourceTemplates",
    "uriTemplate",
    "resources",
    "notifications/resources/list_changed",
)

ALL: Final = (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
BY_LIST: Final = {kind.list_method: kind for kind in ALL}
