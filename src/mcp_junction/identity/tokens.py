"""AccessTokens: verifies callers' JWT access tokens, and keeps what it verified.

A token that was verified is remembered by its whole header until it expires, so that it costs a
call no more than a key does. The same subject with the same rights and claims is the same Principal
whatever token it shows: its sessions outlive a token, its streams end when no token of it is left.
Fetching the issuer's keys is ``issuer_keys.py``; the token itself is neither stored, logged nor
sent on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcp_junction.config.door import DoorConfig
from mcp_junction.credentials.subjects import TOKEN_KEY, SubjectToken
from mcp_junction.errors import ScopesMissing, TokenRefused
from mcp_junction.identity.issuer_keys import IssuerKeys
from mcp_junction.policy.grants import check_agent_id
from mcp_junction.policy.principal import Principal, Role, TokenClaims
from mcp_junction.store.keys import REVOKED_SUBJECTS_TOPIC, RevokedSubjects

LEEWAY: Final = 60.0
"""Seconds by which the issuer's clock may differ from ours."""
_MAX_LENGTH: Final = 16_384
_MAX_KEPT: Final = 10_000
_BEARER: Final = b"bearer "
_TYPES: Final = ("at+jwt", "application/at+jwt", "jwt")
_ID_TOKEN_CLAIMS: Final = ("nonce", "at_hash", "c_hash")

Admit = Callable[[str, tuple[str, ...]], str]
"""Puts the grants of a token's conditions in force for an agent; returns its grantee."""
Decode = Callable[[bytes, Sequence[Any], str], dict[str, Any]]
"""Returns the claims of a token that one of the keys signed. Raises TokenRefused."""
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


class _JoseHeader(msgspec.Struct):
    """What is read of the header of a token."""

    alg: str
    kid: str | None = None
    typ: str | None = None


class _VerifiedToken(msgspec.Struct, frozen=True):
    """A token that was verified: whose it is, and when it was issued and expires."""

    principal: Principal
    expires_at: float
    issued_at: float | None
    scopes: int
    """How many it has."""


class TokenLife(msgspec.Struct, frozen=True, array_like=True):
    """What a session in a browser keeps of the access token that was shown for it."""

    expires_at: float
    issued_at: float | None
    door: str
    """A hash of the door that accepted it: another door may give it other rights."""


class AccessTokens:
    """Verifies access tokens, and remembers those that were valid."""

    def __init__(
        self,
        door: DoorConfig,
        keys: IssuerKeys,
        revoked: RevokedSubjects | None = None,
        admit: Admit | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.door = door
        self.keys = keys
        self._revoked = revoked
        self._admit = admit
        self._now = now
        self.verified: dict[bytes, Principal] = {}
        """The principals of headers with a verified token."""
        self._tokens: dict[bytes, _VerifiedToken] = {}
        self._kept: dict[Principal, tuple[Principal, float]] = {}
        """The principals that have a token, and when the last one of each expires."""
        self._not_before: dict[str, float] = {}
        """Subjects whose tokens were revoked, and when."""
        self._lost: set[str] = set()
        """The ids of agents whose tokens were all revoked."""
        self.generation = -1
        """That of the revocations that are known."""
        self.on_changed: Callable[[Principal | None], None] | None = None
        """Is told whose token was verified; None when tokens of any may be good no more."""
        self._decode: Decode | None = None
        self.public_url = ""
        """The address under which clients reach us; the service sets it."""
        self._door_hash = sha256(msgspec.json.encode(door)).hexdigest()[:16]

    # -- verifying

    async def verify(self, authorization: bytes) -> Principal:
        """Verify the token of an Authorization header, and remember it.

        Raises TokenRefused, or ScopesMissing for a good one that is for something else; and
        IssuerUnavailable when it cannot be verified now.
        """
        if authorization[:7].lower() != _BEARER:
            raise TokenRefused("malformed", "the Authorization header must be: Bearer TOKEN")
        text = authorization[7:].strip()
        header = _read_header(text)
        algorithm = "Ed25519" if header.alg == "EdDSA" else header.alg  # its former name
        if algorithm not in self.door.algorithms:
            raise TokenRefused("signature", "it is not signed with an algorithm that is accepted")
        if (header.typ or "jwt").lower() not in _TYPES:
            raise TokenRefused("malformed", "its type is not that of an access token")
        if _read_part(text.split(b".")[1]).get("iss") != self.door.issuer:
            raise TokenRefused("issuer", "it is of another issuer")  # before any key is fetched
        keys = await self.keys.find_or_fetch(header.kid, algorithm)
        if self._decode is None:
            self._decode = await asyncio.to_thread(_load_decoder)
        claims = self._decode(text, keys, header.alg)
        expires_at = self._check(claims)
        self._check_scopes(claims)
        return self._keep(authorization, self._make_principal(claims), claims, expires_at)

    def _check(self, claims: dict[str, Any]) -> float:
        """Check the claims of a token whose signature is good; return when it expires."""
        now, expires_at = self._now(), _read_time(claims, "exp")
        if claims.get("iss") != self.door.issuer:
            raise TokenRefused("issuer", "it is of another issuer")
        if expires_at is None:
            raise TokenRefused("malformed", "it does not say when it expires")
        if expires_at + LEEWAY <= now:
            raise TokenRefused("expired", "get a new one")
        if max(_read_time(claims, "nbf") or 0, _read_time(claims, "iat") or 0) > now + LEEWAY:
            raise TokenRefused("malformed", "it is not valid yet")
        if not any(map(self._is_for_us, _read_texts(claims.get("aud")))):
            raise TokenRefused("audience", "it is meant for somebody else")
        if any(name in claims for name in _ID_TOKEN_CLAIMS):
            raise TokenRefused("malformed", "it is an ID token; send the access token")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise TokenRefused("malformed", "it names no subject")
        if self._is_revoked(subject, _read_time(claims, "iat")):
            raise TokenRefused("revoked", "the tokens of this subject were revoked; get a new one")
        return expires_at

    def _check_scopes(self, claims: dict[str, Any]) -> None:
        door = self.door
        if not all(fulfils(claims, scope) for scope in door.required_scopes):
            held = [scope for scope in door.scopes if fulfils(claims, scope)]
            raise ScopesMissing(door.required_scopes, held)

    def _is_revoked(self, subject: str, issued_at: float | None) -> bool:
        not_before = self._not_before.get(subject)
        return not_before is not None and (issued_at is None or issued_at < not_before)

    def _is_for_us(self, audience: str) -> bool:
        if self.door.audience:
            return audience in self.door.audience
        ours = self.public_url
        whole = audience.rstrip("/")
        return bool(ours) and (whole in (ours, f"{ours}/mcp") or whole.startswith(f"{ours}/mcp/"))

    def _make_principal(self, claims: dict[str, Any]) -> Principal:
        door = self.door
        name = find_claim(claims, door.agent_claim)
        if not isinstance(name, str) or not name:
            raise TokenRefused("malformed", f"it has no claim {door.agent_claim!r} to name it by")
        agent_id = f"{door.alias}:{name}"
        if check_agent_id(agent_id) is not None:
            raise TokenRefused("malformed", f"its claim {door.agent_claim!r} cannot be an agent id")
        role = next(
            (Role(role) for one, role in door.roles.items() if fulfils(claims, one)), Role.AGENT
        )
        key, grantee = f"{TOKEN_KEY}{claims['sub']}", ""
        if role is Role.AGENT and self._admit is not None:
            conditions = tuple(one for one in door.grants if fulfils(claims, one))
            grantee = self._admit(agent_id, conditions) if conditions else ""
        told = TokenClaims.read(claims)
        return Principal(agent_id, role, key, grantee=grantee, claims=told)

    def _keep(
        self, authorization: bytes, principal: Principal, claims: dict[str, Any], until: float
    ) -> Principal:
        """Remember a token; return its principal, the same object for equal ones."""
        if len(self._tokens) >= _MAX_KEPT:
            self._forget(next(iter(self._tokens)))
        principal, until_before = self._kept.get(principal, (principal, until))
        self._kept[principal] = principal, max(until, until_before)
        issued_at, scopes = _read_time(claims, "iat"), len(_read_scopes(claims))
        self._tokens[authorization] = _VerifiedToken(principal, until, issued_at, scopes)
        self.verified[authorization] = principal
        self._lost.discard(principal.id)
        self._note_changed(principal)
        return principal

    def _forget(self, authorization: bytes) -> None:
        del self._tokens[authorization], self.verified[authorization]

    def _note_changed(self, principal: Principal | None) -> None:
        if self.on_changed is not None:
            self.on_changed(principal)

    def held_by(self, is_meant: Callable[[Principal], bool]) -> list[SubjectToken]:
        """The tokens of those who are meant, that are good now: for exchanging them."""
        now = self._now()
        return [
            SubjectToken(header[len(_BEARER) :].strip().decode(), one.expires_at, one.scopes)
            for header, one in self._tokens.items()
            if one.expires_at > now and is_meant(one.principal)
        ]

    def find_life(self, authorization: bytes) -> TokenLife | None:
        """Return what a session may keep of a token that was verified; None for any other."""
        kept = self._tokens.get(authorization)
        if kept is None:
            return None
        return TokenLife(kept.expires_at + LEEWAY, kept.issued_at, self._door_hash)

    def is_alive(self, principal: Principal, life: TokenLife) -> bool:
        """Whether the token of a session still stands for a principal, in any process."""
        if not principal.key.startswith(TOKEN_KEY) or life.door != self._door_hash:
            return False
        is_revoked = self._is_revoked(principal.key.removeprefix(TOKEN_KEY), life.issued_at)
        return not is_revoked and self._now() < life.expires_at

    # -- ending

    def expire(self) -> set[Principal]:
        """Forget expired tokens; return the principals that have none left any more."""
        now = self._now()
        for header in [h for h, kept in self._tokens.items() if kept.expires_at + LEEWAY <= now]:
            self._forget(header)
        over = {one for one, until in self._kept.values() if until <= now}
        for principal in over:
            del self._kept[principal]
        return over

    @property
    def grantees(self) -> set[str]:
        """The grantees that have a token, or one that is accepted for the leeway yet."""
        return {one.grantee for one in (*self._kept, *self.verified.values())}

    def is_own(self, principal: Principal) -> bool:
        """Whether a principal has shown an access token, rather than a key.

        One without either is a ticket's: it waits for a token that is verified when it comes.
        """
        if not principal.key:
            return principal.id.startswith(f"{self.door.alias}:")
        return principal.key.startswith(TOKEN_KEY)

    def is_in_force(self, principal: Principal) -> bool:
        """Whether what a principal has open may go on: its tokens were not revoked since."""
        if not principal.key:
            return principal.id not in self._lost
        subject = principal.key.removeprefix(TOKEN_KEY)
        return subject not in self._not_before or principal in self._kept

    async def follow(self, generations: Mapping[str, int]) -> None:
        """Take over revocations, of this process or another. Raises StoreUnavailable."""
        generation = generations.get(REVOKED_SUBJECTS_TOPIC, 0)
        if self._revoked is None or generation == self.generation:
            return
        self._not_before = await self._revoked.of_issuer(self.door.issuer)
        for header, kept in list(self._tokens.items()):
            if self._is_revoked(kept.principal.key.removeprefix(TOKEN_KEY), kept.issued_at):
                self._forget(header)
                self._lost.add(kept.principal.id)
        left = {kept.principal for kept in self._tokens.values()}
        self._lost -= {principal.id for principal in left}
        self._kept = {one: kept for one, kept in self._kept.items() if one in left}
        self.generation = generation
        self._note_changed(None)


def fulfils(claims: Mapping[str, Any], condition: str) -> bool:
    """Whether a token has a scope, or a claim with a value: ``claim=value``."""
    name, is_claim, value = condition.partition("=")
    if is_claim:
        found = find_claim(claims, name)
        return value in (
            _read_texts(found) if not isinstance(found, bool) else [str(found).lower()]
        )
    return condition in _read_scopes(claims)


def _read_scopes(claims: Mapping[str, Any]) -> list[str]:
    given = claims.get("scope", claims.get("scp", ""))
    return given.split() if isinstance(given, str) else _read_texts(given)


def find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Find a claim by its name, or by the path to it, with dots."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _read_texts(value: Any) -> list[str]:
    found = value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, str)]


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    """Read a time; None when it is absent. Raises TokenRefused for one that makes no sense."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefused("malformed", f"its claim {name!r} is not a time")
    return float(value)


def _read_header(text: bytes) -> _JoseHeader:
    if len(text) > _MAX_LENGTH or text.count(b".") != 2:
        raise TokenRefused("malformed", "it is neither a key of ours nor a signed token")
    try:
        return msgspec.convert(_read_part(text.partition(b".")[0]), _JoseHeader)
    except msgspec.ValidationError:
        raise TokenRefused("malformed", "its header makes no sense") from None


def _read_part(part: bytes) -> dict[str, Any]:
    """Decode a part of a token. Raises TokenRefused."""
    try:
        padded = part + b"=" * (-len(part) % 4)
        data = base64.b64decode(padded.translate(_URL_SAFE), validate=True)
        return msgspec.json.decode(data, type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        raise TokenRefused("malformed", "it is neither a key of ours nor a signed token") from None


def _load_decoder() -> Decode:
    """Load joserfc, which takes a while; return what verifies signatures with it."""
    from joserfc import jwt
    from joserfc.errors import BadSignatureError, JoseError

    def decode(text: bytes, keys: Sequence[Any], algorithm: str) -> dict[str, Any]:
        for key in keys:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of the former name of Ed25519
                    return jwt.decode(text, key, algorithms=[algorithm]).claims
            except BadSignatureError:
                continue
            except (JoseError, ValueError):
                raise TokenRefused("malformed", "it cannot be read") from None
        raise TokenRefused("signature", "no key of the issuer made its signature")

    return decode
