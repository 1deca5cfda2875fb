"""How we connect to a server: ConnectPolicy; Hello, what we tell it; and Greeting, its answer.

A server on a link that many clients share is told the capabilities that Junction can relay; whether
one client can answer a request of the server (sampling, elicitation, roots) is checked here.
Passing the request on is done elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.cycles import junction_id_in
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    LATEST_HANDSHAKE,
    LATEST_STATELESS,
    METHOD_NOT_FOUND,
    SERVER_INFO_KEY,
    STATELESS_VERSIONS,
    Era,
    era_of,
)
from mcp_junction.tasks import Supervision
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_ELICIT: Final = "elicitation/create"
_NEEDED: Final = {
    "sampling/createMessage": "sampling",
    _ELICIT: "elicitation",
    "roots/list": "roots",
}
_FORM: Final = "form"
_MODES: Final = frozenset((_FORM, "url"))
RELAYED_CAPABILITIES: Final = frozenset(_NEEDED.values())
"""The capabilities of clients that servers are told."""


class ConnectPolicy(msgspec.Struct, frozen=True):
    """How one server is connected to."""

    start_timeout: float
    """Seconds until the server must have started, and answered each request of ours."""
    end_grace: float = 1.0
    """Seconds that its program gets to end by itself, twice."""
    restart: bool = False
    """Whether to connect again when the link is lost."""
    slots: asyncio.Semaphore | None = None
    """Limits how many servers are connected to at the same time."""
    supervision: Supervision | None = None
    """Counts failures of its long-lived tasks."""
    name: str = "mcp-junction"
    version: str = "0"
    junction_id: str = ""
    """The id of this Junction."""


class Hello(msgspec.Struct, frozen=True):
    """Who calls, as servers are told; and which era to try first."""

    protocol_version: str = LATEST_HANDSHAKE
    capabilities: bytes = b"{}"
    client: bytes = b"{}"
    """The client's ``clientInfo``; stateless servers get it with the client's own requests."""
    prefers: Era = Era.STATELESS
    only: bool = False
    """Whether no other era may be used."""
    user: Principal | None = None
    """The one principal that the link is made for, where it is made for one."""

    def params(self, name: str, version: str) -> bytes:
        """Make the params of ``initialize``, with our own name."""
        is_stateless = era_of(self.protocol_version) is Era.STATELESS
        return encode.dumps(
            {
                "protocolVersion": LATEST_HANDSHAKE if is_stateless else self.protocol_version,
                "capabilities": Raw(self.capabilities),
                "clientInfo": {"name": name, "version": version},
            }
        )


EVERYTHING_RELAYED = Hello(
    capabilities=b'{"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},"sampling":{}}'
)
"""For links that many clients share: the capabilities that Junction can relay."""


class Greeting(msgspec.Struct, frozen=True):
    """What a server says about itself when it greets us."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    name: str = ""
    version: str = ""
    instructions: str = ""
    era: Era = Era.HANDSHAKE
    supported: tuple[str, ...] = ()
    """All versions it speaks, in the stateless era."""
    info: dict[str, Any] = {}
    """Its ``serverInfo``: name, title, icons and so on."""
    junction_id: str = ""
    """The id of the server, if it is a Junction."""

    @property
    def extensions(self) -> dict[str, Any]:
        """The extensions it declares."""
        found = self.capabilities.get("extensions")
        return found if isinstance(found, dict) else {}


def read_greeting(payload: Raw | bytes) -> Greeting:
    """Read the answer to ``initialize``. Raises FrameError or ValueError when it makes no sense."""
    answer = frames.members(payload)
    version = frames.text(answer.get("protocolVersion"))
    if version is None:
        raise ValueError("its answer to initialize names no protocolVersion")
    return _greeting(answer, version, _object(answer.get("serverInfo")))


def read_discovery(payload: Raw | bytes) -> Greeting | None:
    """Read the answer to ``server/discover``; None when we share no stateless version.

    Raises FrameError or ValueError when it makes no sense.
    """
    answer = frames.members(payload)
    supported = msgspec.json.decode(answer.get("supportedVersions") or b"[]", type=list[str])
    shared = [version for version in STATELESS_VERSIONS if version in supported]
    if not shared:
        return None
    info = _object(frames.members(answer.get("_meta") or b"").get(SERVER_INFO_KEY))
    greeting = _greeting(answer, shared[-1], info)
    return msgspec.structs.replace(greeting, era=Era.STATELESS, supported=tuple(supported))


def own_meta(name: str, version: str, spoken: str = LATEST_STATELESS) -> dict[str, Raw]:
    """Make the envelope of our own requests, which need no capability."""
    return envelope.sender_meta(encode.dumps({"name": name, "version": version}), version=spoken)


def _greeting(answer: dict[str, Raw], version: str, info: dict[str, Any]) -> Greeting:
    return Greeting(
        protocol_version=version,
        capabilities=_object(answer.get("capabilities")),
        name=str(info.get("name", "")),
        version=str(info.get("version", "")),
        instructions=frames.text(answer.get("instructions")) or "",
        info=info,
        junction_id=junction_id_in(answer.get("_meta")),
    )


def _object(raw: Raw | None) -> dict[str, Any]:
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, dict) else {}


def askable_methods(capabilities: Mapping[str, Raw]) -> frozenset[str]:
    """The methods, and modes of elicitation, that a client with these capabilities can answer."""
    methods = {method for method, needed in _NEEDED.items() if needed in capabilities}
    if _ELICIT in methods:
        modes = _MODES.intersection(frames.object_members(capabilities["elicitation"]))
        methods |= modes or {_FORM}  # the only one before there were modes
    return frozenset(methods)


def question_refusal(method: str, params: Raw | bytes, can: frozenset[str]) -> Outcome | None:
    """The error for a request that the client cannot answer; None when it can."""
    if method not in _NEEDED or method not in can:
        return outcomes.failed(METHOD_NOT_FOUND, f"the client does not support {method}")
    if method == _ELICIT:
        mode = frames.text(frames.object_members(params).get("mode")) or _FORM
        if mode not in can:
            words = f"the client does not support elicitation by {mode[:20]}"
            return outcomes.failed(INVALID_PARAMS, words)
    return None
