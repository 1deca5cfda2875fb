"""The opening of the handshake era: what we say to a server, and what it says of itself."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.versions import LATEST_HANDSHAKE

QUESTIONS: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
"""What a server may ask a client, and the capability that takes."""


class Hello(msgspec.Struct, frozen=True):
    """What servers are told of who calls: the client's version and capabilities."""

    protocol_version: str = LATEST_HANDSHAKE
    capabilities: bytes = b"{}"
    client: bytes = b"{}"
    """Who the client says it is; only stateless servers are told, with its own requests."""

    def params(self, name: str, version: str) -> bytes:
        """The params of ``initialize``, under our own name."""
        return encode.dumps(
            {
                "protocolVersion": self.protocol_version,
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
