"""Models of REST responses, and how each is made of a stored record.

Times are RFC 3339 in UTC. A connection is shown masked (``redaction/connections.py``).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mcp_junction.config.registration import ServerOptions
from mcp_junction.credentials.source import AuthFacts
from mcp_junction.redaction.connections import mask_connection, mask_url
from mcp_junction.redaction.payloads import redact_value
from mcp_junction.registry.known_tools import HiddenReason, ToolState
from mcp_junction.search.static_table import to_floats
from mcp_junction.store.records import HistoryRecord, ServerRecord, SkillRecord, ToolRecord
from mcp_junction.upstream.state import ServerState

_CONVERTED: Final = {
    "capabilities",
    "metadata",
    "connection_config",
    "health_check_url",
    "last_health_check",
    "registered_at",
    "connected_at",
    "updated_at",
}
"""Fields of a server that are not copied: they are masked, or formatted as times."""


class SourceServer(msgspec.Struct):
    """The server that a tool belongs to."""

    id: str
    name: str
    status: str


class Tool(msgspec.Struct):
    """A tool of a server, under its namespaced name; or one of Junction's own, of no server."""

    id: str
    name: str
    original_name: str
    description: str
    source_server: SourceServer | None
    skill_ids: list[str]
    primary_skill_id: str | None
    skill_confidences: dict[str, float]
    own_skill_confidences: dict[str, float]
    classified_by: str
    is_classified: bool
    is_external: bool
    enabled: bool
    risk: str | None
    pinned_hash: str
    quarantined: bool
    flags: list[str]
    input_schema: dict[str, Any] | UnsetType = UNSET


class FoundTool(Tool, kw_only=True):
    """A tool in the result of a search; ``explain`` has the parts of its score, on request."""

    score: float
    explain: dict[str, float] | UnsetType = UNSET


class SearchMetadata(msgspec.Struct):
    """How much was searched, and by which strategy; ``warning`` says what was not available."""

    servers_searched: int
    total_tools_searched: int
    strategy: str
    warning: str | UnsetType = UNSET


class MatchedSkill(msgspec.Struct):
    """A skill that fits the query."""

    id: str
    score: float


class SearchResult(msgspec.Struct):
    """The result of a search, best first."""

    query: str
    tools: list[FoundTool]
    matched_skills: list[MatchedSkill]
    metadata: SearchMetadata


class ServerHealth(msgspec.Struct):
    """The state of a server. ``reachable``, ``authenticated``, ``healthy``: null when not known."""

    id: str
    name: str
    status: str
    enabled: bool
    reachable: bool | None
    authenticated: bool | None
    healthy: bool | None
    last_health_check: str | None
    response_time_ms: float | None
    error_rate: float | None
    error_message: str | None


class _DescribedServer(ServerHealth):
    description: str
    transport_type: str
    connection_config: dict[str, Any]
    health_check_url: str | None
    tool_count: int
    origin: str
    absent: bool


_ServerWithOptions: Any = msgspec.defstruct(
    "_ServerWithOptions",
    [(field.name, field.type) for field in msgspec.structs.fields(ServerOptions)],
    bases=(_DescribedServer,),
)


class CredentialFacts(msgspec.Struct):
    """A credential for a server: whether it is good, until when, whose, and from which issuer."""

    state: Annotated[
        str,
        Meta(
            description="none, needs_sign_in, signed_in, refresh_failing, unavailable or refused."
        ),
    ]
    subject: Annotated[str, Meta(description="`shared`, or `agent:` and the agent's id.")]
    until: str | None = None
    issuer: str | None = None
    reason: str | None = None
    scopes: list[str] = []


class Server(_ServerWithOptions):  # type: ignore[misc]
    """A server: its definition, with secrets masked, and its state.

    ``absent`` is one of an earlier config file that the current one does not name.
    """

    version: Annotated[int, Meta(description="Of this record; its ETag.")]
    server_version: Annotated[
        str | None, Meta(description="As the server says, or as it was registered.")
    ]
    capabilities: Annotated[
        Any, Meta(description="As it was registered, or else as the server declares them.")
    ]
    metadata: dict[str, Any]
    registered_at: str | None
    connected_at: str | None
    updated_at: str | None
    last_heartbeat: Annotated[
        str | UnsetType | None, Meta(description="When anything was heard of it last.")
    ] = UNSET
    instructions: str | UnsetType | None = UNSET
    auth: Annotated[
        CredentialFacts | UnsetType | None,
        Meta(description="Whether we are signed in to it; null while it has not asked for that."),
    ] = UNSET
    tools: list[Tool] | UnsetType = UNSET


class Paged(msgspec.Struct):
    """Part of a list: how many there are in all, and what to ask for the next part."""

    total: int
    next_cursor: str | None


class ServerPage(Paged):
    """Servers, by name. ``servers`` is the same array as ``items``."""

    items: list[Server]
    servers: list[Server]


class ToolPage(Paged):
    """Tools of one server."""

    items: list[Tool]


class ToolGroup(msgspec.Struct):
    """The tools of one server, as far as they are on this page."""

    server: SourceServer
    tools: list[Tool]


class ToolGroupPage(Paged):
    """Tools, grouped by server. ``total`` counts tools."""

    items: list[ToolGroup]


class HistoryEntry(msgspec.Struct):
    """One event in the history of a server's connection."""

    id: int
    event_type: str
    details: dict[str, Any]
    at: str | None


class HistoryPage(Paged):
    """The connection history of a server, newest first. ``total`` counts all that is kept."""

    items: list[HistoryEntry]


class Skill(msgspec.Struct):
    """A skill, and how many tools have it. ``embedding`` is their mean vector, or that of the
    description where there are none; null as long as nothing was classified."""

    id: str
    name: str
    description: str
    tool_count: int
    version: int
    created_at: str | None
    updated_at: str | None
    embedding: list[float] | UnsetType | None = UNSET


class SkillPage(Paged):
    """Skills, by name."""

    items: list[Skill]


class Classifying(msgspec.Struct):
    """How many tools are being classified again."""

    tools: int


class Connecting(msgspec.Struct):
    """The result of a request to connect."""

    status: str
    message: str


class Disconnected(msgspec.Struct):
    """The result of a request to disconnect; how many calls were under way."""

    status: str
    pending_requests: int


class Refreshed(msgspec.Struct):
    """What changed in a server's list of tools, by the tools' own names."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    unchanged: int


class Health(msgspec.Struct):
    """``healthy`` when every enabled server is connected, else ``degraded``."""

    status: str
    servers: list[ServerHealth]


def format_time(at: float | None) -> str | None:
    """Format a time as RFC 3339 in UTC; None for none."""
    if not at:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def server_model(record: ServerRecord, *, absent: bool = False) -> Server:
    url = record.health_check_url
    return Server(
        **_copy_fields(record, Server),
        absent=absent,
        connection_config=mask_connection(record.connection_config),
        health_check_url=None if url is None else mask_url(url),
        capabilities=redact_value(record.capabilities),
        metadata=redact_value(record.metadata),
        last_health_check=format_time(record.last_health_check),
        registered_at=format_time(record.registered_at),
        connected_at=format_time(record.connected_at),
        updated_at=format_time(record.updated_at),
    )


def credential_model(facts: AuthFacts | None) -> CredentialFacts | None:
    """Show a credential; None where none is asked for."""
    if facts is None:
        return None
    return CredentialFacts(
        facts.state, facts.subject, format_time(facts.until), facts.issuer, facts.reason,
        list(facts.scopes),
    )  # fmt: skip


def health_model(record: ServerRecord) -> ServerHealth:
    return ServerHealth(
        **_copy_fields(record, ServerHealth),
        last_health_check=format_time(record.last_health_check),
    )


def _copy_fields(record: ServerRecord, shown: type[msgspec.Struct]) -> dict[str, Any]:
    """Copy the fields that are shown as they are stored."""
    kept = set(shown.__struct_fields__) & set(record.__struct_fields__) - _CONVERTED
    return {name: getattr(record, name) for name in kept}


def source_server(record: ServerRecord) -> SourceServer:
    return SourceServer(record.id, record.name, record.status)


def reachable_status(record: ServerRecord) -> str:
    """Return a server's status for callers: one whose calls fail is connected all the same.

    Those may be calls of tools that are hidden from the caller.
    """
    is_degraded = record.status == ServerState.DEGRADED
    return ServerState.CONNECTED.value if is_degraded else record.status


def tool_model(
    record: ToolRecord, server: SourceServer, state: ToolState, *, with_schema: bool
) -> Tool:
    definition = _decode_object(record.definition)
    description = definition.get("description")
    schema = definition.get("inputSchema")
    return Tool(
        id=record.id,
        name=f"{server.name}.{record.name}",
        original_name=record.name,
        description=description if isinstance(description, str) else "",
        source_server=server,
        skill_ids=record.skill_ids,
        primary_skill_id=record.primary_skill_id,
        skill_confidences=record.skill_confidences,
        own_skill_confidences=record.own_skill_confidences,
        classified_by=record.classified_by,
        is_classified=record.is_classified,
        is_external=True,
        enabled=state.enabled or state.reason is HiddenReason.QUARANTINED,
        risk=state.risk.level.value,
        pinned_hash=record.pinned_hash,
        quarantined=record.quarantined,
        flags=record.flags,
        input_schema=(schema if isinstance(schema, dict) else {}) if with_schema else UNSET,
    )


def skill_model(record: SkillRecord, *, with_embedding: bool = False) -> Skill:
    vector = None if record.embedding is None else to_floats(record.embedding)
    return Skill(
        record.id,
        record.name,
        record.description,
        record.tool_count,
        record.version,
        format_time(record.created_at),
        format_time(record.updated_at),
        vector if with_embedding else UNSET,
    )


def history_model(record: HistoryRecord) -> HistoryEntry:
    return HistoryEntry(record.id, record.event_type, record.details, format_time(record.at))


def _decode_object(raw: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
