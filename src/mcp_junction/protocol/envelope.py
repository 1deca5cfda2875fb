"""The envelope of the stateless era: the members that describe a request's sender, and a result.

Requests carry version and capabilities in ``_meta``; results have a type, and lists say how long
they may be cached. These functions read, add and remove such members. ``is_tool_error`` reads
whether a tool's result reports a failure, ``level_rank`` how severe a log message is.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.requests import ClientRequest
from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    INVALID_PARAMS,
    LATEST_STATELESS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MAX_CLIENT_INFO,
    SERVER_INFO_KEY,
    VERSION_KEY,
)

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"
TASK: Final = "task"
_RESERVED: Final = frozenset((VERSION_KEY, CLIENT_INFO_KEY, CAPABILITIES_KEY, LOG_LEVEL_KEY))
_OF_RESULTS: Final = ("resultType", "ttlMs", "cacheScope")
_FIRST: Final = b'{"resultType":"complete",'
_LAST: Final = b',"resultType":"complete"}'
_END: Final = struct.Struct(f"{len(_FIRST)}s")
_compare_at: Final = _END.unpack_from
_STAMP: Final = SERVER_INFO_KEY.encode()
_QUOTE: Final = ord('"')
_OBJECT: Final = ord("{")


class RequestEnvelope(msgspec.Struct, gc=False):
    """What a request's ``_meta`` says about its sender."""

    version: Raw = msgspec.field(name=VERSION_KEY, default=frames.NOTHING)
    capabilities: Raw = msgspec.field(name=CAPABILITIES_KEY, default=frames.NOTHING)
    client: Raw = msgspec.field(name=CLIENT_INFO_KEY, default=frames.NOTHING)
    log_level: str | None = msgspec.field(name=LOG_LEVEL_KEY, default=None)
    progress_token: Raw = msgspec.field(name="progressToken", default=frames.NOTHING)


class _Typed(msgspec.Struct, gc=False):
    resultType: str = COMPLETE


class _EnvelopeMembers(msgspec.Struct, gc=False):
    """The members of a result's envelope; few results of the handshake era have one."""

    meta: Raw = msgspec.field(name="_meta", default=frames.NOTHING)
    type: Raw = msgspec.field(name="resultType", default=frames.NOTHING)
    ttl: Raw = msgspec.field(name="ttlMs", default=frames.NOTHING)
    scope: Raw = msgspec.field(name="cacheScope", default=frames.NOTHING)


_envelopes = msgspec.json.Decoder(RequestEnvelope)
_types = msgspec.json.Decoder(_Typed)
_read_members = msgspec.json.Decoder(_EnvelopeMembers).decode
_NO_ENVELOPE: Final = _EnvelopeMembers()


def check_client_info(client: Raw | bytes, capabilities: Raw | bytes) -> None:
    """Raise FrameError when ``clientInfo`` or ``capabilities`` are too large."""
    for what, raw in (("clientInfo", client), ("capabilities", capabilities)):
        if len(raw) > MAX_CLIENT_INFO:
            words = f"{what} is {len(raw)} bytes long; send at most {MAX_CLIENT_INFO}"
            raise FrameError(INVALID_PARAMS, words)


def read_envelope(meta: Raw | None) -> RequestEnvelope:
    """Read a request's ``_meta``. Raises FrameError when a required member is missing."""
    try:
        found = _envelopes.decode(meta or b"{}")
    except msgspec.MsgspecError as error:
        raise FrameError(INVALID_PARAMS, f"params._meta is not an envelope: {error}") from None
    if found.version and found.capabilities:
        return found
    parts = {VERSION_KEY: found.version, CAPABILITIES_KEY: found.capabilities}
    missing = " and ".join(key for key, raw in parts.items() if not raw)
    raise FrameError(INVALID_PARAMS, f"params._meta must have {missing}")


def is_envelope_only(meta: bytes) -> bool:
    """Whether a ``_meta`` holds an envelope and nothing else."""
    return _RESERVED.issuperset(frames.object_members(meta))


def stated_version(frame: Frame) -> Raw | None:
    """The protocol version in a request's ``_meta``, where the stateless era has it."""
    params = (
        frame.known if isinstance(frame, ClientRequest) else frames.object_members(frame.params)
    )
    return frames.object_members(params.get("_meta")).get(VERSION_KEY)


def sender_meta(
    client: Raw | bytes,
    capabilities: Raw | bytes = b"{}",
    log_level: str | None = None,
    version: str = LATEST_STATELESS,
) -> dict[str, Raw]:
    """Make the members of ``_meta`` that describe the sender of a request."""
    found = {
        VERSION_KEY: Raw(encode.dumps(version)),
        CLIENT_INFO_KEY: Raw(client),
        CAPABILITIES_KEY: Raw(capabilities),
    }
    if log_level is not None:
        found[LOG_LEVEL_KEY] = Raw(encode.dumps(log_level))
    return found


def add_envelope(params: dict[str, Raw], meta: dict[str, Raw]) -> None:
    """Add an envelope to params; other members of ``_meta`` stay."""
    kept = frames.object_members(params.get("_meta"))
    params["_meta"] = Raw(encode.dumps({**kept, **meta}))


def merge_meta(meta: Raw, envelope: Raw) -> Raw:
    """Merge an envelope into a client's own ``_meta``."""
    return Raw(encode.dumps({**frames.object_members(meta), **frames.members(envelope)}))


def with_progress_token(meta: Raw, token: bytes) -> Raw:
    """Replace the progress token of a ``_meta``, in the same place if it has one."""
    return Raw(encode.dumps({**frames.object_members(meta), "progressToken": Raw(token)}))


def valid_progress_token(token: Raw | None) -> Raw | None:
    """The progress token, if it is a string or a number."""
    return token if token and memoryview(token)[0] in frames.ID_STARTS else None


def progress_token(params: dict[str, Raw]) -> Raw | None:
    """The progress token in a request's ``_meta``, if it is valid."""
    meta = params.get("_meta")
    if meta is None or memoryview(meta)[0] != _OBJECT:
        return None
    return valid_progress_token(frames.members(meta).get("progressToken"))


def remove_envelope(params: dict[str, Raw]) -> None:
    """Remove the envelope from params; other members of ``_meta`` stay."""
    kept = frames.object_members(params.get("_meta"))
    kept = {key: raw for key, raw in kept.items() if key not in _RESERVED}
    if kept:
        params["_meta"] = Raw(encode.dumps(kept))
    else:
        params.pop("_meta", None)


# -- results


def result_type(payload: Raw | bytes) -> str:
    """The type of a result; without one it is complete.

    Nearly all are complete and say so first or last, so both ends are compared before decoding.
    """
    try:
        if _compare_at(payload)[0] == _FIRST or _compare_at(payload, -_END.size)[0] == _LAST:
            return COMPLETE
    except struct.error:
        pass  # it is shorter than that
    try:
        return _types.decode(payload).resultType
    except msgspec.MsgspecError:
        return COMPLETE


class ResultEnvelope(msgspec.Struct, frozen=True):
    """The envelope that we give to results for stateless clients."""

    server: bytes
    """Our ``serverInfo``, as JSON."""
    cache: bytes = b""
    """The members about caching, each followed by a comma."""
    ready: bytes = b""
    """How a result begins that has no member of an envelope yet."""

    def __post_init__(self) -> None:
        ready = b'{"resultType":"complete",%b"_meta":{"%b":%b},' % (self.cache, _STAMP, self.server)
        msgspec.structs.force_setattr(self, "ready", ready)


def has_no_envelope(text: bytes) -> bool:
    """Whether a result is an object with members, none of which is of an envelope."""
    try:
        return _read_members(text) == _NO_ENVELOPE and text[1] == _QUOTE
    except msgspec.MsgspecError:
        return False


def to_stateless_result(payload: Raw | bytes, envelope: ResultEnvelope) -> bytes:
    """Convert a result of the handshake era to the stateless era; only objects are changed."""
    text = frames.octets(payload)
    try:
        found = frames.members(text)
    except FrameError:
        return text
    stamp = frames.object_members(found.get("_meta"))
    stamp.setdefault(SERVER_INFO_KEY, Raw(envelope.server))
    for name in _OF_RESULTS:
        found.pop(name, None)
    found.pop("_meta", None)
    rest = encode.dumps(found)[1:]
    head = b'{"resultType":"complete",%b"_meta":%b' % (envelope.cache, encode.dumps(stamp))
    return head + (b"}" if rest == b"}" else b"," + rest)


def to_handshake_result(payload: Raw | bytes) -> bytes:
    """Convert a result of the stateless era to the handshake era; only objects are changed."""
    text = frames.octets(payload)
    if text.startswith(_FIRST):  # most often that is the whole envelope
        rest = b"{" + text[_END.size :]
        if has_no_envelope(rest):
            return rest
    found = frames.object_members(text)
    if not found:
        return text
    kept = {name: raw for name, raw in found.items() if name not in _OF_RESULTS}
    stamp = frames.object_members(kept.get("_meta"))
    if SERVER_INFO_KEY in stamp:
        del stamp[SERVER_INFO_KEY]
        if stamp:
            kept["_meta"] = Raw(encode.dumps(stamp))
        else:
            del kept["_meta"]
    return encode.dumps(kept)


_SHORT: Final = 4_096
_TAIL: Final = 64
_MEMBER: Final = b'"isError"'
_LAST_MEMBER: Final = re.compile(rb'[^\\]"isError"\s*:\s*(true|false)\s*\}\s*\Z')


class _Result(msgspec.Struct):
    isError: bool = False


_decode = msgspec.json.Decoder(_Result).decode


def is_tool_error(result: Raw | bytes) -> bool:
    """Whether the result of ``tools/call`` has ``isError: true`` at its top level.

    A result may be megabytes long. Many servers write ``isError`` last, so the end of a long one is
    searched first; otherwise it is decoded only if the name occurs at all. (A name written with
    escapes, ``"\\u0069sError"``, is not found in a long one.)
    """
    if len(result) > _SHORT:
        last = _LAST_MEMBER.search(memoryview(result)[-_TAIL:])
        if last is not None:
            return last[1] == b"true"
        whole = bytes(result)
        if whole.rfind(_MEMBER) < 0:  # twice as fast as ``in`` where nothing is found
            return False
        result = whole
    try:
        return _decode(result).isError
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


# -- log messages


def has_level(params: Raw, least: int) -> bool:
    """Whether a log message has at least the level ``least``; an unknown level counts as above."""
    return level_rank(params) >= least


def level_rank(params: Raw) -> int:
    """The rank of a log message's level: the highest for an unknown one, -1 without params."""
    try:
        level = frames.text(frames.members(params).get("level"))
    except FrameError:
        return -1
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)
