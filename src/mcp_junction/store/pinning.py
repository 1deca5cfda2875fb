"""The hash that pins a tool's definition: equal for equal definitions, however they are written."""

from __future__ import annotations

from hashlib import sha256

import msgspec

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_NOT_PINNED = ("_meta",)
"""What may differ from one listing to the next without the tool being another."""


def definition_hash(definition: bytes) -> str:
    """Of everything that a model or a person sees of a tool: name, texts, schemas, annotations."""
    fields = _decode(definition)
    for name in _NOT_PINNED:
        fields.pop(name, None)
    return sha256(_encode(fields)).hexdigest()
