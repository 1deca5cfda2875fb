"""The opening of the handshake era: what we say to a server, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.versions import LATEST_HANDSHAKE


@dataclass(frozen=True, slots=True)
class Hello:
    """What servers are told of who calls: the client's version and capabilities, our name."""

    name: str
    version: str
    protocol_version: str = LATEST_HANDSHAKE
    capabilities: bytes = b"{}"

    def params(self) -> bytes:
        return encode.dumps(
            {
                "protocolVersion": self.protocol_version,
                "capabilities": msgspec.Raw(self.capabilities),
                "clientInfo": {"name": self.name, "version": self.version},
            }
        )


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server said of itself in its answer."""

    protocol_version: str
    capabilities: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    version: str = ""
    instructions: str = ""


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
    )


def _object(raw: msgspec.Raw | None) -> dict[str, Any]:
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, dict) else {}
