"""Models of request bodies. A body with an unknown field is refused. ``routes.py`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mcp_junction.config.registration import (
    CHANGEABLE,
    TRANSPORTS,
    ConnectionConfig,
    Registration,
)
from mcp_junction.config.servers import OPTIONS

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Ref = Annotated[str, Meta(min_length=1, max_length=300)]
_TYPES: Final[dict[str, Any]] = {
    "name": Name,
    "transport_type": Literal[TRANSPORTS],
    **{name: Literal[option.choices] for name, option in OPTIONS.items() if option.choices},
    **{
        name: Annotated[int, Meta(ge=0, le=option.most)]
        for name, option in OPTIONS.items()
        if option.most
    },
    **{
        name: Annotated[str, Meta(max_length=4096)]
        for name, option in OPTIONS.items()
        if option.is_path
    },
}
"""Constraints of a field beyond its type."""


def _derive_model(name: str, words: str, like: type[Struct], only: Sequence[str] = ()) -> Any:
    """Make a model with the fields of ``like``; with ``only`` these fields, each optional."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(like):
        kind = _TYPES.get(field.name, field.type)
        if only and field.name in only:
            fields.append((field.name, kind | UnsetType, UNSET))
        elif not only and field.required:
            fields.append((field.name, kind))
        elif not only:
            fields.append((field.name, kind, _default(field)))
    return msgspec.defstruct(
        name, fields, namespace={"__doc__": words}, module=__name__, forbid_unknown_fields=True
    )


def _default(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else msgspec.field(default_factory=made)


_TYPES["connection_config"] = _derive_model(
    "Connection",
    "How to reach a server. STDIO needs ``command``; SSE and HTTP need ``url``.",
    ConnectionConfig,
    ConnectionConfig.__struct_fields__,
)
ServerRegistration = _derive_model("ServerRegistration", "A server to register.", Registration)
ServerChange = _derive_model(
    "ServerChange", "What to change in a server.", Registration, CHANGEABLE
)


class Disconnection(msgspec.Struct, forbid_unknown_fields=True):
    """How to disconnect: with ``force`` the calls under way are cancelled, not waited for."""

    force: bool = False


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool to call: by its namespaced name, or by its own name with the server's id or name."""

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    arguments: dict[str, Any] = {}
    server_id: Annotated[str, Meta(min_length=1, max_length=300)] | None = None


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """What to search for, and among what. Filters have ids or names, of servers and of skills.

    ``auto`` is ``hybrid``, or ``keyword`` while there are no vectors.
    """

    query: Annotated[str, Meta(min_length=1, max_length=1_000)]
    include_external: bool = True
    server_filter: Annotated[list[Ref], Meta(max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    skill_filter: Annotated[list[Ref], Meta(max_length=100)] | None = None
    strategy: Literal["auto", "hybrid", "semantic", "keyword", "hierarchical"] = "auto"
    include_schemas: bool = False
    explain: bool = False


class DefinitionHash(msgspec.Struct, forbid_unknown_fields=True):
    """The definition of a tool that is decided about: the ``hash`` that it was shown with."""

    hash: Annotated[
        str,
        Meta(
            pattern="^[0-9a-f]{64}$",
            description="SHA-256 of the definition, from `GET …/changes`.",
            examples=["5df1f1b0c8e9a7d64b3e2f1a0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d"],
        ),
    ]


Text = Annotated[str, Meta(min_length=1, max_length=2_000)]
SkillName = Annotated[str, Meta(min_length=1, max_length=100)]


class NewSkill(msgspec.Struct, forbid_unknown_fields=True):
    """A skill to make: its description is what tools are compared with."""

    name: SkillName
    description: Text


class SkillChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to change in a skill."""

    name: SkillName | UnsetType = UNSET
    description: Text | UnsetType = UNSET


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty object, or no body at all."""
