"""OAuthHttp: single requests to metadata documents and OAuth endpoints, under strict rules.

Each is one ``fetch``: no redirects, bounded bodies and time. A server's metadata may name any
address: loopback and private ones are asked only where the server itself is there, or the operator
named the issuer.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlencode

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import parse_address, parse_url
from mcp_junction.errors import AddressRefused, OAuthError
from mcp_junction.policy.outgoing import Permissions, Reach, classify_address
from mcp_junction.upstream.http.dialer import Dialer, Resolve, resolve
from mcp_junction.upstream.http.fetch import TIMEOUT, FetchedResponse, fetch

_FORM: Final = "application/x-www-form-urlencoded"
_OUTAGES: Final = (408, 425, 429)


class OAuthHttp:
    """Makes the requests for one server."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    async def get(self, step: str, url: str) -> FetchedResponse:
        """GET a document. Raises OAuthError, also for an answer that shows an outage."""
        answer = await self._send(step, "GET", url, {}, b"")
        if answer.status >= 500 or answer.status in _OUTAGES:
            host = parse_url(url).host
            raise OAuthError(step, host, f"it answered HTTP {answer.status}", "", answer.status)
        return answer

    async def post_form(
        self, step: str, url: str, form: dict[str, str], headers: dict[str, str]
    ) -> FetchedResponse:
        """POST a form. Raises OAuthError when there is no answer."""
        sent = {"content-type": _FORM, **headers}
        return await self._send(step, "POST", url, sent, urlencode(form).encode())

    async def post_json(self, step: str, url: str, value: object) -> FetchedResponse:
        """POST a JSON value. Raises OAuthError when there is no answer."""
        sent = {"content-type": "application/json"}
        return await self._send(step, "POST", url, sent, msgspec.json.encode(value))

    async def _send(
        self, step: str, method: str, url: str, headers: dict[str, str], body: bytes
    ) -> FetchedResponse:
        """Send one request; an error names the step and the host, and nothing that was sent."""
        host = "an unreadable address"
        try:
            host = parse_url(url).host
            return await fetch(
                url, self._dialer, method=method, headers=headers, body=body, timeout=TIMEOUT
            )
        except TimeoutError:
            raise OAuthError(step, host, f"no answer within {TIMEOUT:g} s") from None
        except (OSError, ValueError, AddressRefused) as error:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise OAuthError(step, host, words) from None


async def find_permissions(
    definition: ServerDefinition, *, is_named: bool, resolve: Resolve = resolve
) -> Permissions:
    """Say where a server's OAuth may be; ``is_named``: the operator named the issuer.

    A server rules its own name, and may have it point anywhere while we look. So this machine is
    open only to a server whose url says that it is here, and private addresses only where the
    operator allows them for it.
    """
    place = parse_url(definition.url)
    http = definition.allow_http and not place.tls
    if is_named:
        return Permissions(allow_private=True, allow_http=definition.allow_http)
    is_address = parse_address(place.host) is not None
    try:
        found = [place.host] if is_address else await resolve(place.host, place.port)
    except OSError:
        found = []
    reaches = {classify_address(ip_address(one)).reach for one in found}
    is_here = reaches == {Reach.LOOPBACK} and (is_address or is_this_machine(place.host))
    is_near = bool(reaches) and reaches <= {Reach.LOOPBACK, Reach.PRIVATE}
    is_allowed = is_here or (is_near and definition.allow_private)
    return Permissions(allow_private=is_allowed, allow_http=http, allow_loopback=is_here)


def is_this_machine(host: str) -> bool:
    """Whether a name means this machine whoever is asked for it (RFC 6761)."""
    name = host.removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")
