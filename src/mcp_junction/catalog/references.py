"""References: where a server names a resource, by the address that clients know it by.

When two servers have one address, one of the two resources is listed under another. A tool may say
in its ``_meta`` which ``ui://`` resource shows its results, and what is read says what it is: both
must name that one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.names import Pair

_OBJECT = "ui"
_MEMBER = "resourceUri"
_FLAT = "ui/resourceUri"
_contents = msgspec.json.Decoder(list[dict[str, Raw]])


def referred(meta: Raw, server: str, apart: Mapping[Pair, str]) -> Raw:
    """``_meta`` of one of a server's tools, with addresses as they are listed."""
    found = envelope.members(meta)
    shown = envelope.members(found.get(_OBJECT))
    flat = _listed(found.get(_FLAT), server, apart)
    nested = _listed(shown.get(_MEMBER), server, apart)
    if flat is None and nested is None:
        return meta
    if flat is not None:
        found[_FLAT] = flat
    if nested is not None:
        found[_OBJECT] = Raw(encode.dumps({**shown, _MEMBER: nested}))
    return Raw(encode.dumps(found))


def read_as(payload: Raw | bytes, own: str, known: str) -> Raw | bytes:
    """The result of reading a resource, which its server calls its own way, as callers know it."""
    found = envelope.members(payload)
    try:
        contents = _contents.decode(found.get("contents") or b"")
    except msgspec.MsgspecError:
        return payload
    for content in contents:
        if frames.text(content.get("uri")) == own:
            content["uri"] = Raw(encode.dumps(known))
    found["contents"] = Raw(encode.dumps(contents))
    return encode.dumps(found)


def _listed(raw: Raw | None, server: str, apart: Mapping[Pair, str]) -> Raw | None:
    """The address that a resource is listed under, where that is another."""
    listed = apart.get(Pair(server, frames.text(raw) or ""))
    return Raw(encode.dumps(listed)) if listed is not None else None
