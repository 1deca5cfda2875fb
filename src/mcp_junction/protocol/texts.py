"""Checks a JSON text, such as the arguments on the command line, by the limits of frames."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcp_junction.errors import FrameError
from mcp_junction.protocol.frames import TOO_DEEP, TOO_LONG, has_long_number, is_too_deep
from mcp_junction.protocol.versions import PARSE_ERROR

_values = msgspec.json.Decoder(Raw)


def check_json(data: bytes) -> bytes:
    """Check a JSON text and return it without white space around it. Raises FrameError."""
    try:
        str(data, "utf-8")
        _values.decode(data)
    except UnicodeDecodeError as error:
        raise FrameError(PARSE_ERROR, f"not valid UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise FrameError(PARSE_ERROR, TOO_DEEP) from None
    except msgspec.DecodeError as error:
        raise FrameError(PARSE_ERROR, str(error)) from None
    if is_too_deep(data):
        raise FrameError(PARSE_ERROR, TOO_DEEP)
    if has_long_number(data):
        raise FrameError(PARSE_ERROR, TOO_LONG)
    return data.strip(b" \t\r\n")
