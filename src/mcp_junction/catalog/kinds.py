"""OfferKind: the four things servers offer, and what tells one item of each from another."""

from __future__ import annotations

from typing import Final

import msgspec


class OfferKind(msgspec.Struct, frozen=True, eq=False):
    """One kind of offer."""

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


TOOLS: Final = OfferKind(
    "tools", "tools/list", "tools", "name", "tools", "notifications/tools/list_changed"
)
PROMPTS: Final = OfferKind(
    "prompts", "prompts/list", "prompts", "name", "prompts", "notifications/prompts/list_changed"
)
RESOURCES: Final = OfferKind(
    "resources",
    "resources/list",
    "resources",
    "uri",
    "resources",
    "notifications/resources/list_changed",
)
TEMPLATES: Final = OfferKind(
    "templates",
    "resources/templates/list",
    "resourceTemplates",
    "uriTemplate",
    "resources",
    "notifications/resources/list_changed",
)

ALL: Final = (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
BY_LIST: Final = {kind.list_method: kind for kind in ALL}
