"""The opening, in either era: what we say to a server, and what it says of itself."""

from __future__ import annotations

from typing import Any

import msgspec

from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.cycles import junction_id_in
from mcp_junction.protocol.versions import (
    LATEST_HANDSHAKE,
    LATEST_STATELESS,
    SERVER_INFO_KEY,
    STATELESS_VERSIONS,
    Era,
    era_of,
)


class Hello(msgspec.Struct, frozen=True):
    """What servers are told of who calls, and in which era they are addressed first."""

    protocol_version: str = LATEST_HANDSHAKE
    capabilities: bytes = b"{}"
    client: bytes = b"{}"
    """Who the client says it is; only stateless servers are told, with its own requests."""
    prefers: Era = Era.STATELESS
    only: bool = False
    """Whether no other era will do."""
    user: Principal | None = None
    """The one principal that the link is made for, where it is made for one."""

    def params(self, name: str, version: str) -> bytes:
        """The params of ``initialize``, under our own name."""
        has_none = era_of(self.protocol_version) is Era.STATELESS
        return encode.dumps(
            {
                "protocolVersion": LATEST_HANDSHAKE if has_none else self.protocol_version,
                "capabilities": msgspec.Raw(self.capabilities),
                "clientInfo": {"name": name, "version": version},
            }
        )


EVERYTHING_RELAYED = Hello(
    capabilities=b'{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},"sampling":{}}'
)
"""What a link that many clients share is told: what Junction can relay."""


class Greeting(msgspec.Struct, frozen=True):
    """What a server said of itself in its answer."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    name: str = ""
    version: str = ""
    instructions: str = ""
    era: Era = Era.HANDSHAKE
    supported: tuple[str, ...] = ()
    """The versions it names, where it names more than one."""
    info: dict[str, Any] = {}
    """All that it says of its name, title, icons and so on."""
    junction_id: str = ""
    """The id of the server, if it is a Junction."""

    @property
    def extensions(self) -> dict[str, Any]:
        """The extensions it declares."""
        found = self.capabilities.get("extensions")
        return found if isinstance(found, dict) else {}


def read_greeting(payload: msgspec.Raw | bytes) -> Greeting:
    """The answer to ``initialize``. Raises FrameError or ValueError when it makes no sense."""
    answer = frames.members(payload)
    version = frames.text(answer.get("protocolVersion"))
    if version is None:
        raise ValueError("its answer to initialize names no protocolVersion")
    info = _object(answer.get("serverInfo"))
    return Greeting(
        protocol_version=version,
        capabilities=_object(answer.get("capabilities")),
        name=str(info.get("name", "")),
        version=str(info.get("version", "")),
        instructions=frames.text(answer.get("instructions")) or "",
        info=info,
        junction_id=junction_id_in(answer.get("_meta")),
    )


def own_meta(name: str, version: str, spoken: str = LATEST_STATELESS) -> dict[str, msgspec.Raw]:
    """The envelope of requests of our own: we ask for nothing that needs a capability."""
    return envelope.sender_meta(encode.dumps({"name": name, "version": version}), version=spoken)


def read_discovery(payload: msgspec.Raw | bytes) -> Greeting | None:
    """The answer to ``server/discover``; None when it names no stateless version that we speak.

    Raises FrameError or ValueError when it makes no sense.
    """
    answer = frames.members(payload)
    supported = msgspec.json.decode(answer.get("supportedVersions") or b"[]", type=list[str])
    shared = [version for version in STATELESS_VERSIONS if version in supported]
    if not shared:
        return None
    info = _object(_object_of_raws(answer.get("_meta")).get(SERVER_INFO_KEY))
    return Greeting(
        protocol_version=shared[-1],
        capabilities=_object(answer.get("capabilities")),
        name=str(info.get("name", "")),
        version=str(info.get("version", "")),
        instructions=frames.text(answer.get("instructions")) or "",
        era=Era.STATELESS,
        supported=tuple(supported),
        info=info,
        junction_id=junction_id_in(answer.get("_meta")),
    )


def _object_of_raws(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    return frames.members(raw) if raw is not None else {}


def _object(raw: msgspec.Raw | None) -> dict[str, Any]:
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, dict) else {}
