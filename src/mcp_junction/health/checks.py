"""Makes probes, by a server's health URL or by MCP ``ping``; and classifies results and calls.

A probe does not raise for what a server does. ``probes.py`` says when one is run, and how long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from mcp_junction.errors import AddressRefused
from mcp_junction.health.verdict import FAILED, GOOD, NEUTRAL, CallKind, ProbeKind, ProbeResult
from mcp_junction.protocol.versions import CALL_TIMEOUT, LINK_LOST, SERVER_UNAVAILABLE
from mcp_junction.upstream.outcome import CANCELLED, ERROR, RESULT, Outcome

if TYPE_CHECKING:
    from mcp_junction.upstream.http.dialer import Dialer

PING_TIMEOUT: Final = 4.9
"""Less than a probe may take, so that there is time to send the server a cancellation."""

Probe = Callable[[], Awaitable[ProbeResult]]


class PingTarget(Protocol):
    """What a ping is sent to: an Upstream."""

    @property
    def is_stateless(self) -> bool: ...

    async def request(self, method: str, params: bytes, timeout: float) -> Outcome: ...


class _StatusData(msgspec.Struct, frozen=True):
    http_status: int = 0


class _StatusError(msgspec.Struct, frozen=True):
    code: int = 0
    data: _StatusData = _StatusData()


def make_url_probe(url: str, dialer: Dialer) -> Probe:
    """Make a probe that sends GET to a URL, under the rules for outgoing connections."""

    async def check() -> ProbeResult:
        # Imported where it is used: most servers have no health URL.
        from mcp_junction.upstream.http.fetch import fetch_status

        try:
            return classify_status(await fetch_status(url, dialer))
        except (OSError, AddressRefused) as error:
            words = getattr(error, "strerror", None) or str(error)
            return ProbeResult(ProbeKind.UNREACHABLE, detail=f"its health check: {words}")
        except ValueError as error:
            return ProbeResult(ProbeKind.UNREACHABLE, detail=f"its health_check_url: {error}")

    return check


def make_ping_probe(server: PingTarget, timeout: float = PING_TIMEOUT) -> Probe:
    """Make a probe that sends MCP ``ping`` on a server's link; a stateless server has no ping, and
    gets ``server/discover``."""

    async def check() -> ProbeResult:
        method = "server/discover" if server.is_stateless else "ping"
        return classify_ping(await server.request(method, b"{}", timeout))

    return check


def classify_status(status: int) -> ProbeResult:
    """Turn the status that a health URL answered into a result."""
    detail = f"its health check answered HTTP {status}"
    if 200 <= status < 300:
        return ProbeResult(ProbeKind.GOOD)
    if status in (401, 403):
        return ProbeResult(ProbeKind.UNAUTHENTICATED, detail=detail)
    if status < 500:  # redirects are not followed
        return ProbeResult(ProbeKind.CLIENT_ERROR, detail=detail)
    return ProbeResult(ProbeKind.SERVER_ERROR, detail=detail)


def classify_ping(outcome: Outcome) -> ProbeResult:
    """Turn the outcome of a ping into a result. Any answer, even an error, shows a live server."""
    if outcome.kind is RESULT:
        return ProbeResult(ProbeKind.GOOD)
    if outcome.delivery is None:
        return ProbeResult(ProbeKind.GOOD)  # it answered that it does not know ping
    code = _error(outcome).code
    if code == CALL_TIMEOUT:
        return ProbeResult(ProbeKind.TIMEOUT, detail="it did not answer ping in time")
    if code in (SERVER_UNAVAILABLE, LINK_LOST):
        return ProbeResult(ProbeKind.UNREACHABLE, detail="it could not be pinged: its link is lost")
    return ProbeResult(ProbeKind.SERVER_ERROR, detail="its answer to ping makes no sense")


def classify_call(outcome: Outcome) -> CallKind:
    """Decide whether a call counts for or against its server's health, as R-BREAKER says.

    The caller leaves out calls that ended by a short deadline of the client's own.
    """
    if outcome.kind is RESULT or (outcome.kind is ERROR and outcome.delivery is None):
        return GOOD  # the server answered, if only with an error of the tool
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
