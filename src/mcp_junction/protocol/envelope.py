"""The envelope of the stateless era: what a request says of its sender, a result of itself.

Requests carry version and capabilities in ``_meta``; results say of which type they are, and lists
how long they keep. Here is how they are read, written, added and taken off, on raw members. Who is
asked what, and when, is decided elsewhere.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    INVALID_PARAMS,
    LATEST_STATELESS,
    LOG_LEVEL_KEY,
    SERVER_INFO_KEY,
    VERSION_KEY,
)

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"
TASK: Final = "task"
_RESERVED: Final = frozenset((VERSION_KEY, CLIENT_INFO_KEY, CAPABILITIES_KEY, LOG_LEVEL_KEY))
_OF_RESULTS: Final = ("resultType", "ttlMs", "cacheScope")
_STAMP: Final = SERVER_INFO_KEY.encode()
_NEAR: Final = 32


class Envelope(msgspec.Struct, gc=False):
    """What a request says of its sender."""

    version: Raw = msgspec.field(name=VERSION_KEY, default=frames.NOTHING)
    capabilities: Raw = msgspec.field(name=CAPABILITIES_KEY, default=frames.NOTHING)
    client: Raw = msgspec.field(name=CLIENT_INFO_KEY, default=frames.NOTHING)
    log_level: str | None = msgspec.field(name=LOG_LEVEL_KEY, default=None)
    progress_token: Raw = msgspec.field(name="progressToken", default=frames.NOTHING)


class _Typed(msgspec.Struct, gc=False):
    resultType: str = COMPLETE


class _Dress(msgspec.Struct, gc=False):
    """The members of a result that we write; nearly none of the handshake era has one."""

    meta: Raw = msgspec.field(name="_meta", default=frames.NOTHING)
    type: Raw = msgspec.field(name="resultType", default=frames.NOTHING)
    ttl: Raw = msgspec.field(name="ttlMs", default=frames.NOTHING)
    scope: Raw = msgspec.field(name="cacheScope", default=frames.NOTHING)


_envelopes = msgspec.json.Decoder(Envelope)
_types = msgspec.json.Decoder(_Typed)
_dresses = msgspec.json.Decoder(_Dress)


def read(meta: Raw | None) -> Envelope:
    """The envelope in a request's ``_meta``. Raises FrameError when a required part is missing."""
    try:
        found = _envelopes.decode(meta or b"{}")
    except msgspec.MsgspecError as error:
        raise FrameError(INVALID_PARAMS, f"params._meta is not an envelope: {error}") from None
    if found.version and found.capabilities:
        return found
    parts = {VERSION_KEY: found.version, CAPABILITIES_KEY: found.capabilities}
    missing = " and ".join(key for key, raw in parts.items() if not raw)
    raise FrameError(INVALID_PARAMS, f"params._meta must have {missing}")


def is_bare(meta: bytes) -> bool:
    """Whether a ``_meta`` holds an envelope and nothing else."""
    return _RESERVED.issuperset(members(meta))


def is_enveloped(params: Raw | bytes) -> bool:
    """Whether a request is of the stateless era: it says its version itself."""
    if VERSION_KEY.encode() not in bytes(params):
        return False
    try:
        return VERSION_KEY in frames.members(frames.members(params).get("_meta") or b"")
    except FrameError:
        return False


def meta(
    client: Raw | bytes,
    capabilities: Raw | bytes = b"{}",
    log_level: str | None = None,
    version: str = LATEST_STATELESS,
) -> dict[str, Raw]:
    """The members of ``_meta`` that say who asks."""
    found = {
        VERSION_KEY: Raw(encode.dumps(version)),
        CLIENT_INFO_KEY: Raw(client),
        CAPABILITIES_KEY: Raw(capabilities),
    }
    if log_level is not None:
        found[LOG_LEVEL_KEY] = Raw(encode.dumps(log_level))
    return found


def sealed(params: dict[str, Raw], said: dict[str, Raw]) -> None:
    """Put an envelope around params: what is reserved is ours, the rest of ``_meta`` stays."""
    kept = members(params.get("_meta"))
    params["_meta"] = Raw(encode.dumps({**kept, **said}))


def opened(params: dict[str, Raw]) -> None:
    """Take the envelope off params; the rest of ``_meta`` stays."""
    kept = members(params.get("_meta"))
    kept = {key: raw for key, raw in kept.items() if key not in _RESERVED}
    if kept:
        params["_meta"] = Raw(encode.dumps(kept))
    else:
        params.pop("_meta", None)


# -- results


def result_type(payload: Raw | bytes) -> str:
    """Of which type a result says it is; one that does not say is complete."""
    try:
        return _types.decode(payload).resultType
    except msgspec.MsgspecError:
        return COMPLETE


def dress(server: bytes, cache: bytes = b"") -> bytes:
    """What a result of the stateless era begins with when we write it.

    ``server`` is who answers, as JSON; ``cache`` the members that say how long it keeps.
    """
    return b'{"resultType":"complete",%b"_meta":{"%b":%b},' % (cache, _STAMP, server)


def dressed(payload: Raw | bytes, server: bytes, cache: bytes = b"", ready: bytes = b"") -> bytes:
    """A result of the handshake era as one of the stateless era; ``ready`` is their ``dress``."""
    text = frames.octets(payload)
    if _is_plain(text):
        return (ready or dress(server, cache)) + text[1:]
    found = frames.members(payload)
    stamp = members(found.get("_meta"))
    stamp.setdefault(SERVER_INFO_KEY, Raw(server))
    for name in _OF_RESULTS:
        found.pop(name, None)
    found.pop("_meta", None)
    rest = encode.dumps(found)[1:]
    head = b'{"resultType":"complete",%b"_meta":%b' % (cache, encode.dumps(stamp))
    return head + (b"}" if rest == b"}" else b"," + rest)


def _is_plain(text: bytes) -> bool:
    """Whether members can be put before those of a result, which has some and none of ours."""
    if text[:2] != b'{"' and (text[:1] != b"{" or text[1:_NEAR].lstrip()[:1] != b'"'):
        return False
    try:
        found = _dresses.decode(text)
    except msgspec.MsgspecError:
        return False
    return not (found.meta or found.type or found.ttl or found.scope)


def undressed(found: dict[str, Raw]) -> bytes:
    """The members of a result of the stateless era as one of the handshake era."""
    kept = {name: raw for name, raw in found.items() if name not in _OF_RESULTS}
    stamp = members(kept.get("_meta"))
    if SERVER_INFO_KEY in stamp:
        del stamp[SERVER_INFO_KEY]
        if stamp:
            kept["_meta"] = Raw(encode.dumps(stamp))
        else:
            del kept["_meta"]
    return encode.dumps(kept)


def members(raw: Raw | bytes | None) -> dict[str, Raw]:
    """The members of what should be an object; of anything else there are none."""
    try:
        return frames.members(raw or b"")
    except FrameError:
        return {}
