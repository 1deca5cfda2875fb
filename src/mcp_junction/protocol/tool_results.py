"""Reads whether a tool's result says that the tool failed, without reading the rest of it.

A result may be megabytes long. Of a short one a single member is decoded, in C. Of a long one the
end is looked at first: many servers write ``isError`` last, and a member right before the last
brace is the result's own. Otherwise it is decoded only if the word is in it at all. (A name that
is written with escapes, ``"\\u0069sError"``, is not found in a long one.)
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

_SHORT: Final = 4_096
_TAIL: Final = 64
_MEMBER: Final = b'"isError"'
_LAST_MEMBER: Final = re.compile(rb'[^\\]"isError"\s*:\s*(true|false)\s*\}\s*\Z')


class _Result(msgspec.Struct):
    isError: bool = False


_decode = msgspec.json.Decoder(_Result).decode


def is_tool_error(result: Raw | bytes) -> bool:
    """Tell whether the result of ``tools/call`` has ``isError: true`` of its own."""
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
