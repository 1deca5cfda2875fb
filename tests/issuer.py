"""An issuer of access tokens for tests: its metadata and keys over HTTP, and tokens of any kind."""

import json
import time
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey
from tests.http.origin import Origin, Visit

Key = RSAKey | ECKey | OKPKey


@cache
def signing_key(kind: str = "RS256", name: str = "one") -> Key:
    """A key of a kind, made once; its id is its kind and name."""
    given = {"kid": f"{kind}-{name}"}
    if kind == "ES256":
        return ECKey.generate_key("P-256", given)
    if kind == "Ed25519":
        return OKPKey.generate_key("Ed25519", given)
    return RSAKey.generate_key(1024 if name == "short" else 2048, given)


class Issuer(Origin):
    """Publishes keys, and signs tokens with the first of them."""

    def __init__(self, *keys: Key, path: str = "") -> None:
        super().__init__(self._answer)
        self.keys = list(keys or [signing_key()])
        self.path = path
        self.is_down = False
        self.scope = ""
        """What tokens of its token endpoint are good for."""

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def fetches(self) -> int:
        """How often the keys were fetched."""
        return sum(visit.path == "/jwks" for visit in self.visits)

    async def _answer(self, visit: Visit) -> None:
        if self.is_down:
            visit.answer(503)
        elif visit.path == f"/.well-known/openid-configuration{self.path}":
            visit.json(self._describe(f"http://127.0.0.1:{self.port}"))
        elif visit.path == "/jwks":
            visit.json({"keys": [key.as_dict(private=False) for key in self.keys]})
        elif visit.path == "/register":
            visit.json({**json.loads(visit.body), "client_id": "c"}, status=201)
        elif visit.path == "/token":
            given = dict(parse_qsl(visit.body.decode()))
            token = self.token(given.get("resource"), scope=given.get("scope", self.scope))
            visit.json({"access_token": token, "token_type": "Bearer", "expires_in": 600})
        else:
            visit.answer(404)

    def _describe(self, origin: str) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{origin}/jwks",
            "authorization_endpoint": f"{origin}/authorize",
            "token_endpoint": f"{origin}/token",
            "registration_endpoint": f"{origin}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }

    def token(self, audience: Any, key: Key | None = None, alg: str = "", **claims: Any) -> str:
        """Make an access token; a claim of None is left out."""
        now = int(time.time())
        found = {"iss": self.issuer, "aud": audience, "sub": "alice", "iat": now, "exp": now + 600}
        return sign(key or self.keys[0], alg, **{**found, **claims})


def sign(key: Key, alg: str = "", typ: str | None = "at+jwt", **claims: Any) -> str:
    """Sign claims; the algorithm is that of the key, unless another is asked for."""
    header = {"alg": alg or key.kid.partition("-")[0]} | ({"kid": key.kid} if key.kid else {})
    header |= {} if typ is None else {"typ": typ}
    payload = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(header, payload, key, algorithms=[header["alg"]])


def forge(token: str, alg: str) -> str:
    """Make a token that is not signed, or signed with the public key as if it were a secret."""
    import base64
    import hashlib
    import hmac

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    header = {"alg": alg, "kid": "RS256-one", "typ": "at+jwt"}
    text = f"{encode(json.dumps(header).encode())}.{token.split('.')[1]}"
    if alg == "none":
        return f"{text}."
    secret = signing_key().as_pem(private=False)
    return f"{text}.{encode(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"
