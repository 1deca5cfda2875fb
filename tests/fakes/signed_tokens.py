"""Access tokens for tests: signed by keys of any kind, or made up. What they say is the test's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

Key = RSAKey | ECKey | OKPKey


@cache
def signing_key(kind: str = "RS256", name: str = "one") -> Key:
    """A key of a kind, made once; its id is its kind and name."""
    given: Any = {"kid": f"{kind}-{name}"}
    if kind == "ES256":
        return ECKey.generate_key("P-256", given)
    if kind == "Ed25519":
        return OKPKey.generate_key("Ed25519", given)
    return RSAKey.generate_key(1024 if name == "short" else 2048, given)


def sign(key: Key, alg: str = "", typ: str | None = "at+jwt", **claims: Any) -> str:
    """Sign claims; the algorithm is that of the key, unless another is asked for."""
    header = {"alg": alg or str(key.kid).partition("-")[0]} | ({"kid": key.kid} if key.kid else {})
    header |= {} if typ is None else {"typ": typ}
    payload = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(header, payload, key, algorithms=[str(header["alg"])])


def forge(token: str, alg: str) -> str:
    """Make a token that is not signed, or signed with the public key as if it were a secret."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    header = {"alg": alg, "kid": "RS256-one", "typ": "at+jwt"}
    text = f"{encode(json.dumps(header).encode())}.{token.split('.')[1]}"
    if alg == "none":
        return f"{text}."
    secret = signing_key().as_pem(private=False)
    return f"{text}.{encode(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"
