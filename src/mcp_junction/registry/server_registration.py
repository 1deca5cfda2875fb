"""ServerRegistrar: registers a server together with the tools that it declares.

Each declared tool is checked: one without a usable name or with an invalid schema is rejected, the
others are known from then on, whether the server has a connection yet or not. What the server lists
once it is connected goes before what was declared. Registering the same again changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.config.registration import UNCONNECTED, Registration, read_registration
from mcp_junction.errors import InvalidChange, Problem, invalid_at
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, frames
from mcp_junction.registry.known_tools import HiddenReason, KnownTool
from mcp_junction.registry.member import Member
from mcp_junction.registry.registry import Registry
from mcp_junction.registry.tool_settings import check_versions
from mcp_junction.slices import pace
from mcp_junction.store.tool_settings import DeclaredTool

MAX_TOOLS: Final = 10_000
_MAX_NAME: Final = 1_000
_MAX_VERSION: Final = 200
_OWN: Final = ("schema", "version", "enabled")
"""Members of a declared tool that are not members of its definition."""
_UNKNOWN: Final = "unknown"
_NULL: Final = b"null"


class ServerDeclaration(msgspec.Struct, frozen=True):
    """A server as it is registered with its tools."""

    ref: str
    """The name of the server, new or known; or the id of a known one."""
    version: str
    tools: Sequence[Mapping[str, Raw]]
    capabilities: Any = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    connection: dict[str, Any] | None = None
    """The fields of a registration but the name; None leaves the connection as it is."""
    versions: dict[str, Any] = msgspec.field(default_factory=dict)
    """Compatible versions by tool name; ``*`` is for all tools of the server."""


class RejectedTool(msgspec.Struct, frozen=True):
    """A declared tool that was not taken, or was taken and is disabled; and why."""

    tool_name: str
    reason: str
    errors: list[dict[str, str]] = msgspec.field(default_factory=list)
    version: str | None = None


class RegisteredTools(msgspec.Struct, frozen=True):
    """The name of the server, the declared tools that it has, and what was rejected."""

    server: str
    tools: list[KnownTool]
    rejected: list[RejectedTool]


class ServerRegistrar:
    """Registers servers with their tools."""

    def __init__(self, registry: Registry) -> None:
        self._context = registry.context
        self._registry = registry
        self._lock = asyncio.Lock()
        """Held while a server is registered: of two for one name the second finds the first's."""

    async def register(self, declaration: ServerDeclaration, actor: Principal) -> RegisteredTools:
        """Register a server, new or known, with its tools.

        Raises InvalidChange, AlreadyExists, and FileOwned for one of the config file.
        """
        _check_matrix(declaration.versions)
        tools, rejected = await asyncio.to_thread(_check_tools, declaration.tools)
        async with self._lock:
            member = await self._upsert(declaration, actor)
            await self._change_settings(member, declaration, actor)
            await self._declare(member, tools, actor)
        order = {tool.tool_name: number for number, tool in enumerate(tools)}
        known = [one for one in self._registry.tools.known.of(member.id) if one.name in order]
        known.sort(key=lambda one: order[one.name])
        rejected += [
            RejectedTool(one.name, "Version incompatibility", version=one.state.version)
            for one in known
            if one.reason is HiddenReason.INCOMPATIBLE
        ]
        return RegisteredTools(member.name, known, rejected)

    # -- steps

    async def _upsert(self, declaration: ServerDeclaration, actor: Principal) -> Member:
        """Register the server, or change what is known of it."""
        declared = {"capabilities": declaration.capabilities, "metadata": declaration.metadata}
        member, connection = self._context.members.find(declaration.ref), declaration.connection
        if member is None:
            made = _read_new(declaration.ref, connection)
            record = await self._registry.register(
                made,
                actor,
                auto_connect=made.auto_connect and connection is not None,
                declared={**declared, "server_version": declaration.version},
            )
            return self._context.members.get(record.id)
        if member.upstream.greeting is None:  # else it has said itself which version it is
            declared["server_version"] = declaration.version
        body = {key: value for key, value in (connection or {}).items() if key != "auto_connect"}
        try:
            await self._registry.change(member.id, body, actor, declared=declared)
        except InvalidChange as error:
            raise InvalidChange(_moved(error.problems)) from None
        return member

    async def _change_settings(
        self, member: Member, declaration: ServerDeclaration, actor: Principal
    ) -> None:
        """Set the compatible versions, and disable the tools that are declared so.

        Whether a tool is enabled an operator may have decided already: then that stands.
        """
        settings, change = self._context.tool_settings, self._registry.tools.settings.change
        for name, given in declaration.versions.items():
            wanted, _ = check_versions(given)
            known = settings.of(member.id, name)
            if known is None or known.versions != wanted:
                await change(member.id, name, {"versions": wanted}, actor)
        for tool in declaration.tools:
            disabled = frames.text(tool.get("name"))
            if disabled and bytes(tool.get("enabled", b"")) == b"false":
                known = settings.of(member.id, disabled)
                if known is None or known.enabled is None:
                    await change(member.id, disabled, {"enabled": False}, actor)

    async def _declare(
        self, member: Member, tools: Sequence[DeclaredTool], actor: Principal
    ) -> None:
        """Store the declared tools in place of those that were declared before."""
        found = [msgspec.structs.replace(tool, server_id=member.id) for tool in tools]
        before = self._context.known_tools.declared(member.id)
        store = self._context.store.declared_tools
        if await store.all(member.id) == sorted(found, key=lambda tool: tool.tool_name):
            return
        detail = {"tools": len(found)}
        async with self._context.audit_act(actor, "tools.declare", member.record, detail=detail):
            await store.replace(member.id, found)
            self._context.known_tools.declare(member.id, found)
        self._registry.tools.show(member)
        added = [tool.tool_name for tool in found if tool.tool_name not in before]
        self._context.publish_tools(member.record, added, declared=True)


def _read_new(name: str, connection: dict[str, Any] | None) -> Registration:
    """Read the registration of a new server. Raises InvalidChange."""
    without = {"transport_type": UNCONNECTED, "connection_config": {}}
    body = {**(without if connection is None else connection), "name": name}
    made, problems = read_registration(body, needs_connection=connection is not None)
    if made is None:
        raise InvalidChange(_moved(problems))
    return made


def _moved(problems: Iterable[Problem]) -> list[Problem]:
    """Say where in the request the problems are: a registration is part of it."""
    return [
        problem._replace(path="$.server_id")
        if problem.path == "$.name"
        else problem._replace(path=problem.path.replace("$", "$.connection", 1))
        for problem in problems
    ]


def _check_matrix(versions: Mapping[str, Any]) -> None:
    """Check the versions of all tools. Raises InvalidChange."""
    problems = [
        invalid_at(f"$.versions.{name[:64]}", problem.message)
        for name, given in versions.items()
        for problem in check_versions(given)[1]
    ]
    if "" in versions:
        problems.append(invalid_at("$.versions", "must have the names of tools, or *"))
    if problems:
        raise InvalidChange(problems)


# -- checks of tools


def _check_tools(
    given: Sequence[Mapping[str, Raw]],
) -> tuple[list[DeclaredTool], list[RejectedTool]]:
    """Check all declared tools. Slow for many: call it in a thread."""
    found: dict[str, DeclaredTool] = {}
    rejected: list[RejectedTool] = []
    for members in pace(given):
        made = _check_tool(members)
        if isinstance(made, DeclaredTool) and made.tool_name in found:
            made = RejectedTool(made.tool_name, "Declared twice; the first stands")
        if isinstance(made, RejectedTool):
            rejected.append(made)
        else:
            found[made.tool_name] = made
    return list(found.values()), rejected


def _check_tool(members: Mapping[str, Raw]) -> DeclaredTool | RejectedTool:
    name = frames.text(members.get("name"))
    if not name or "\0" in name or len(name) > _MAX_NAME:
        words = f"must be some text of at most {_MAX_NAME} characters"
        return _reject(name or _UNKNOWN, "Invalid tool name", "name", words)
    schema = members.get("schema") or members.get("inputSchema")
    errors = _find_schema_errors(schema)
    if schema is None or errors:
        return RejectedTool(name, "Invalid JSON schema", errors)
    version: str | None = None
    given = members.get("version", _NULL)
    if bytes(given) != _NULL:
        version = frames.text(given)
        if not version or len(version) > _MAX_VERSION:
            words = f"must be some text of at most {_MAX_VERSION} characters"
            return _reject(name, "Invalid version", "version", words)
    meta = frames.object_members(members.get("_meta"))
    if version is None:
        version = frames.text(meta.get("version"))
    definition = {key: raw for key, raw in members.items() if key not in _OWN}
    definition["inputSchema"] = schema
    if version is not None:
        definition["_meta"] = Raw(encode.dumps({**meta, "version": version}))
    return DeclaredTool("", name, encode.dumps(definition), version)


def _find_schema_errors(schema: Raw | None) -> list[dict[str, str]]:
    # Imported where it is used: the validator takes a while to load.
    from mcp_junction.governance.schemas import check_schema

    if schema is None:
        return [{"path": "", "message": "is missing: give a JSON Schema of the arguments"}]
    if not bytes(schema).lstrip().startswith(b"{"):
        return [{"path": "", "message": "must be an object"}]
    return [problem._asdict() for problem in check_schema(schema)]


def _reject(name: str, reason: str, path: str, message: str) -> RejectedTool:
    return RejectedTool(name[:_MAX_NAME], reason, [{"path": f"/{path}", "message": message}])
