"""The ways to probe a server: by its health URL, or by MCP ``ping``.

They do not raise for what a server does. When to probe, and how long to wait, is in ``probes.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from mcp_junction.errors import RefusedError
from mcp_junction.health.verdict import FAILED, GOOD, NEUTRAL, CallKind, Probed, ProbeKind
from mcp_junction.protocol.versions import CALL_TIMEOUT, LINK_LOST, SERVER_UNAVAILABLE
from mcp_junction.upstream.outcome import CANCELLED, ERROR, RESULT, Outcome

if TYPE_CHECKING:
    from mcp_junction.upstream.http.dialer import Dialer

PING_TIMEOUT: Final = 4.9
"""A little less than a probe may take, so that the server is told that we do not wait."""

Probe = Callable[[], Awaitable[Probed]]


class Asks(Protocol):
    """What can be asked something: an Upstream."""

    @property
    def is_stateless(self) -> bool: ...

    async def request(self, method: str, params: bytes, timeout: float) -> Outcome: ...


class _StatusData(msgspec.Struct, frozen=True):
    http_status: int = 0


class _StatusError(msgspec.Struct, frozen=True):
    code: int = 0
    data: _StatusData = _StatusData()


def by_url(url: str, dialer: Dialer) -> Probe:
    """A check by GET, under the rules for outgoing connections."""

    async def check() -> Probed:
        # Imported where it is used: most servers have no health URL.
        from mcp_junction.upstream.http.dialer import fetch_status

        try:
            return of_status(await fetch_status(url, dialer))
        except (OSError, RefusedError) as error:
            words = getattr(error, "strerror", None) or str(error)
            return Probed(ProbeKind.UNREACHABLE, detail=f"its health check: {words}")
        except ValueError as error:
            return Probed(ProbeKind.UNREACHABLE, detail=f"its health_check_url: {error}")

    return check


def by_ping(server: Asks, timeout: float = PING_TIMEOUT) -> Probe:
    """A check by MCP ``ping`` on the server's own link; a stateless one has no ping to ask for."""

    async def check() -> Probed:
        method = "server/discover" if server.is_stateless else "ping"
        return of_outcome(await server.request(method, b"{}", timeout))

    return check


def of_status(status: int) -> Probed:
    """What the status of a health URL says."""
    detail = f"its health check answered HTTP {status}"
    if 200 <= status < 300:
        return Probed(ProbeKind.GOOD)
    if status in (401, 403):
        return Probed(ProbeKind.UNAUTHENTICATED, detail=detail)
    if status < 500:  # redirects are not followed
        return Probed(ProbeKind.CLIENT_ERROR, detail=detail)
    return Probed(ProbeKind.SERVER_ERROR, detail=detail)


def of_outcome(outcome: Outcome) -> Probed:
    """What the answer to a ping says. Any answer of the server's own shows that it is there."""
    if outcome.kind is RESULT:
        return Probed(ProbeKind.GOOD)
    if outcome.delivery is None:
        return Probed(ProbeKind.GOOD)  # it does not know ping, and said so
    code = _error(outcome).code
    if code == CALL_TIMEOUT:
        return Probed(ProbeKind.TIMEOUT, detail="it did not answer ping in time")
    if code in (SERVER_UNAVAILABLE, LINK_LOST):
        return Probed(ProbeKind.UNREACHABLE, detail="it could not be pinged: its link is lost")
    return Probed(ProbeKind.SERVER_ERROR, detail="its answer to ping makes no sense")


def of_call(outcome: Outcome) -> CallKind:
    """What the end of a call says of its server, by R-BREAKER's count.

    A deadline that the client itself set short is for the caller to leave out.
    """
    if outcome.kind is RESULT or (outcome.kind is ERROR and outcome.delivery is None):
        return GOOD  # it has answered, if only with an error of the tool's own
    if outcome.kind is CANCELLED:
        return NEUTRAL
    error = _error(outcome)
    if error.code in (SERVER_UNAVAILABLE, LINK_LOST, CALL_TIMEOUT) or error.data.http_status >= 500:
        return FAILED
    return NEUTRAL


def _error(outcome: Outcome) -> _StatusError:
    try:
        return msgspec.json.decode(outcome.payload, type=_StatusError)
    except msgspec.MsgspecError:
        return _StatusError()
