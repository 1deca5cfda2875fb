"""Shapes: the bodies of requests, for the API's documentation and for reading the small ones.

A server's body is read by ``config/registration.py``, which says more about what is wrong with it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Isolation = Literal["shared", "per-session"]
Pin = Literal["off", "warn", "strict"]
Ref = Annotated[str, Meta(min_length=1, max_length=300)]
Milliseconds = Annotated[int, Meta(ge=0, le=24 * 3600 * 1000)]


class Connection(msgspec.Struct, forbid_unknown_fields=True):
    """How to reach a server. STDIO needs ``command``; SSE and HTTP need ``url``."""

    command: str | UnsetType = UNSET
    args: list[str] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    cwd: str | UnsetType | None = UNSET
    url: str | UnsetType = UNSET
    base_url: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET


class ServerRegistration(msgspec.Struct, forbid_unknown_fields=True):
    """A server to register."""

    name: Name
    transport_type: Literal["STDIO", "SSE", "HTTP"]
    connection_config: Connection
    description: str = ""
    auto_connect: bool = True
    health_check_url: str | None = None
    enabled: bool = True
    isolation: Isolation = "shared"
    pin: Pin = "warn"
    trust_annotations: bool = False
    allow_private: bool = False
    allow_http: bool = False
    timeout_ms: Milliseconds = 0


class ServerChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to change in a server."""

    name: Name | UnsetType = UNSET
    description: str | UnsetType = UNSET
    connection_config: Connection | UnsetType = UNSET
    health_check_url: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    isolation: Isolation | UnsetType = UNSET
    pin: Pin | UnsetType = UNSET
    trust_annotations: bool | UnsetType = UNSET
    allow_private: bool | UnsetType = UNSET
    allow_http: bool | UnsetType = UNSET
    timeout_ms: Milliseconds | UnsetType = UNSET


class Disconnection(msgspec.Struct, forbid_unknown_fields=True):
    """How to disconnect: with ``force`` the calls under way are cancelled, not waited for."""

    force: bool = False


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool to call: by its namespaced name, or by its own name with the server's id or name."""

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    arguments: dict[str, Any] = {}
    server_id: Annotated[str, Meta(min_length=1, max_length=300)] | None = None


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """What to search for, and among what. ``server_filter`` has ids or names of servers.

    ``auto`` takes the best way there is, which is by keywords.
    """

    query: Annotated[str, Meta(min_length=1, max_length=1_000)]
    include_external: bool = True
    server_filter: Annotated[list[Ref], Meta(max_length=100)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    skill_filter: Annotated[list[Ref], Meta(max_length=100)] | None = None
    strategy: Literal["auto", "keyword"] = "auto"
    include_schemas: bool = False


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty object, or no body at all."""
