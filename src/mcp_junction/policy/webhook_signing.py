"""Signs what is posted to webhooks, and verifies it, by the scheme of standardwebhooks.com.

The signature covers the id of the message, the time and the body. A receiver refuses what is older
than the replay window, and ids that it has seen within it.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

WINDOW: Final = 300.0
"""Seconds that a signature is good for."""
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
MIN_SECRET: Final = 16
"""Characters of the shortest secret."""


def sign_webhook(secret: str, message_id: str, now: float, body: bytes) -> dict[str, str]:
    """Make the headers that go with a body."""
    at = str(int(now))
    return {ID: message_id, TIMESTAMP: at, SIGNATURE: _sign(secret, message_id, at, body)}


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether a body was signed with the secret, and not too long ago."""
    at = headers.get(TIMESTAMP, "")
    if not at.isascii() or not at.isdigit() or abs(now - int(at)) > WINDOW:
        return False
    expected = _sign(secret, headers.get(ID, ""), at, body)
    given = headers.get(SIGNATURE, "").split()
    return any(hmac.compare_digest(expected.encode(), one.encode()) for one in given)


def _sign(secret: str, message_id: str, at: str, body: bytes) -> str:
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + b64encode(hmac.digest(secret.encode(), signed, "sha256")).decode()
