"""Records: the frozen structs that the store's tables read and write.

Times are seconds since 1970. A record's fields, in their order, are its table's columns. Records
that come in thousands are not tracked by the garbage collector (``gc=False``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from mcp_junction.config.registration import ServerOptions


class ServerRecord(ServerOptions, frozen=True):
    """A registered server: its definition (with a version), and how it stands (without)."""

    id: str
    name: str
    transport_type: str
    connection_config: dict[str, Any]
    description: str = ""
    health_check_url: str | None = None
    enabled: bool = True
    origin: str = "api"
    server_version: str | None = None
    """Of the server itself, as it said last; or, before that, as it was registered."""
    capabilities: Any = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    version: int = 1
    registered_at: float = 0.0
    updated_at: float = 0.0
    status: str = "DISCONNECTED"
    reachable: bool | None = None
    authenticated: bool | None = None
    healthy: bool | None = None
    last_health_check: float | None = None
    response_time_ms: float | None = None
    error_rate: float | None = None
    error_message: str | None = None
    connected_at: float | None = None
    tool_count: int = 0

    def __repr__(self) -> str:
        """Without the connection: a record may end up in a log."""
        return f"ServerRecord(id={self.id!r}, name={self.name!r}, version={self.version})"


DEFINITION_FIELDS: Final = frozenset(
    {
        "name",
        "description",
        "transport_type",
        "connection_config",
        "health_check_url",
        "enabled",
        "server_version",
        "capabilities",
        "metadata",
        *ServerOptions.__struct_fields__,
    }
)
"""What an operator changes in a server: each change is a new version."""

STATUS_FIELDS: Final = frozenset(
    {
        "server_version",
        "status",
        "reachable",
        "authenticated",
        "healthy",
        "last_health_check",
        "response_time_ms",
        "error_rate",
        "error_message",
        "connected_at",
    }
)
"""What the gateway finds out about a server: no new version."""


class ToolDefinitionRow(msgspec.Struct, frozen=True, gc=False):
    """One tool, prompt, resource or template as its server defines it. Only tools have a hash."""

    name: str
    definition: bytes
    hash: str = ""
    is_destructive: bool = False
    """Whether it is a tool that says it destroys."""


OFFLINE: Final = "offline"
REVIEW: Final = "review"
"""What gives tools their skills: the classifier of this program, or a person who approved one."""


class ToolRecord(msgspec.Struct, frozen=True, gc=False):
    """A tool: its server's definition, its pin, its flags and its skills."""

    id: str
    server_id: str
    name: str
    position: int
    definition: bytes
    hash: str
    pinned_hash: str
    pinned_definition: bytes | None = None
    quarantined: bool = False
    approved_flags: list[str] | None = None
    blocked: bool = False
    flags: list[str] = []
    skill_ids: list[str] = []
    primary_skill_id: str | None = None
    skill_confidences: dict[str, float] = {}
    own_skill_confidences: dict[str, float] = {}
    """The skills of the tool by itself: the others also depend on its server's tools."""
    is_classified: bool = False
    classified_by: str = ""
    """What gave it the skills it has: ``offline``, the name of a model, or ``review``."""
    first_seen_at: float = 0.0
    updated_at: float = 0.0
    gone_at: float | None = None
    was_destructive: bool = False
    """Whether a form of it since the last approval said that it destroys."""


class ToolChanges(msgspec.Struct, frozen=True):
    """What a server's new list of tools changed; ``changed`` has pairs (before, after)."""

    added: list[ToolRecord] = []
    changed: list[tuple[ToolRecord, ToolRecord]] = []
    removed: list[ToolRecord] = []
    unchanged: int = 0

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


class ToolCount(msgspec.Struct, frozen=True):
    """How many tools a server has, and how many are classified or quarantined."""

    total: int
    classified: int
    quarantined: int


class SkillRecord(msgspec.Struct, frozen=True):
    """A skill: its name and description, and the mean vector of the tools that have it.

    ``marked`` counts the reasons to compute the vector again, ``computed`` those it has followed.
    """

    id: str
    name: str
    description: str
    embedding: bytes | None = None
    tool_count: int = 0
    marked: int = 0
    computed: int = 0
    version: int = 1
    created_at: float = 0.0
    updated_at: float = 0.0


class PendingTool(msgspec.Struct, frozen=True, gc=False):
    """A tool whose current definition is not classified, with its vector if that is stored."""

    tool: ToolRecord
    embedding: bytes | None


class Classified(msgspec.Struct, frozen=True, gc=False):
    """The classification of a tool that had this hash: its skills, the likeliest first.

    The vector is None where it is stored already.
    """

    tool_id: str
    hash: str
    confidences: dict[str, float]
    primary: str | None
    embedding: bytes | None = None
    own: dict[str, float] = {}
    by: str = OFFLINE


class OfferRecord(msgspec.Struct, frozen=True, gc=False):
    """A prompt, resource or template, as its server defines it."""

    server_id: str
    kind: str
    name: str
    position: int
    definition: bytes


class HistoryEvent(StrEnum):
    CONNECTED = "CONNECTED"
    DISCONNECTED = "DISCONNECTED"
    ERROR = "ERROR"
    RECONNECT = "RECONNECT"


class HistoryRecord(msgspec.Struct, frozen=True):
    """Something that happened to a server's connection."""

    id: int
    server_id: str
    event_type: str
    details: dict[str, Any]
    at: float


class KeyRecord(msgspec.Struct, frozen=True):
    """A bearer key as it is stored: a hash of its secret, never the key."""

    id: str
    role: str
    agent: str
    sha256: str
    created_at: float
    created_by: str
    revoked_at: float | None = None
    revoked_by: str | None = None
    mac: bytes | None = None
    """Proves that whoever wrote the row has the vault's key."""


class SettingRecord(msgspec.Struct, frozen=True):
    """A setting that can change while the program runs."""

    name: str
    value: Any
    version: int
    updated_at: float
    updated_by: str


class NewEvent(msgspec.Struct, frozen=True):
    """An event that has no number yet."""

    type: str
    data: dict[str, Any]
    subject: str | None = None
    origin: str = ""
    at: float = 0.0


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """A stored event. Numbers have no gaps and are never used twice."""

    seq: int
    at: float
    origin: str
    type: str
    subject: str | None
    data: dict[str, Any]
