"""HttpListener: serves ``/mcp`` and the other endpoints over streamable HTTP, as a bare ASGI app.

It checks who is asking and from where, finds the session, hands the frame to the Dispatcher and
brings the answer back: as JSON when the answer is all there is, as a stream when the call speaks
before it ends. What a method means it does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from mcp_junction.audit.denials import Denial
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint
from mcp_junction.errors import FrameError, IssuerUnavailable, ScopesMissing
from mcp_junction.identity.challenges import Door
from mcp_junction.listener.acceptance import find_carrying
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.http.exchange import AsgiExchange
from mcp_junction.listener.http.guard import Guard, describe_denial, has_two_hosts
from mcp_junction.listener.http.heads import Fields, has_handshake_version
from mcp_junction.listener.http.host import METRICS, App, HttpHost, Receive, RestApp, Scope, Send
from mcp_junction.listener.http.replies import (
    HttpPost,
    HttpRefusal,
    HttpReply,
    done,
    refuse,
    respond,
)
from mcp_junction.listener.http.sessions import HttpSession, SessionRegistry, discard_frame
from mcp_junction.listener.http.stateless import LISTEN, StatelessFront
from mcp_junction.listener.replies import (
    CollectedReply,
    Reply,
    ending,
    refuse_bytes,
    refuse_ending,
)
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import envelope, frames, requests
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import BATCH_VERSIONS, HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.http")

_TYPE = b"application/json"
_ENDPOINTS = "/mcp/"
"""What the paths of all endpoints but the first begin with."""
_API = "/api/"
_PAGES = ("/oauth/", "/approvals/")
_STATELESS = frozenset(version.encode() for version in STATELESS_VERSIONS)
_UNUSUAL = frozenset(("initialize", LISTEN))
"""Methods whose requests are looked at more closely before they are answered."""


class HttpListener:
    """The ASGI app of the MCP endpoints."""

    def __init__(
        self,
        host: HttpHost,
        dispatcher: Dispatcher,
        registry: SessionRegistry,
        stateless: StatelessFront,
        guard: Guard,
        door: Door,
        tasks: TaskScope,
        max_body: int,
        rest: RestApp | None = None,
        deny: Callable[[Denial], None] | None = None,
        pages: App | None = None,
    ) -> None:
        self._host, self._principal_of = host, host.principal_of
        self._pages = pages
        self._deny = deny
        self._rest = rest
        self._dispatcher = dispatcher
        self._registry = registry
        self._stateless = stateless
        self._guard = guard
        self._door = door
        self._tasks = tasks
        self._max_body = max_body
        self._draining = False

    def drain(self) -> None:
        """Take no more requests; running calls go on, and can be answered and cancelled."""
        self._draining = True

    def answer_checked(self, exchange: AsgiExchange) -> Awaitable[None] | None:
        """Answer a request whose head was checked before, as nearly all; None for any other."""
        given = exchange.scope["headers"]
        if not given.is_checked:
            return None
        principal = self._principal_of(given.by_name[b"authorization"])
        if principal is None:
            return None
        exchange.principal = principal
        begun = None if self._draining else self._begin_usual(exchange, given, principal)
        if begun is not None:
            return begun
        post = HttpPost(principal, EVERYTHING, given, given.by_name, exchange.send, exchange)
        return self._read(post, exchange.body)

    def _begin_usual(
        self, exchange: AsgiExchange, given: Fields, principal: Principal
    ) -> Awaitable[None] | None:
        """Begin to answer a request of a session or of a stateless client; None for any other."""
        body, found = exchange.body, None
        if given.session_id:
            found = self._registry.find(given.session_id, principal, EVERYTHING)
        if body is None or (found is None and not given.is_stateless):
            return None
        try:
            frame = requests.decode(body)
        except FrameError:
            return None
        if not frame.id or not frame.method or frame.method in _UNUSUAL:
            return None
        send, headers = exchange.send, given.by_name
        if found is None:
            return self._stateless.begin(frame, principal, EVERYTHING, headers, send, exchange)
        reply = HttpReply(send, self._tasks, headers.get(b"accept"), exchange, found)
        return self._dispatcher.answer(found.session, frame, reply) or done()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Find out who is asking for what, and refuse what is not let in.

        Plain function: checks, then returns the handler's awaitable.
        """
        given = scope["headers"]
        headers: dict[bytes, bytes] = given.by_name if type(given) is Fields else dict(given)
        if not self._guard.admits(headers.get(b"host", b""), headers.get(b"origin", b"")) or (
            len(given) != len(headers) and has_two_hosts(given)
        ):
            return self._refuse_host(scope, send)
        endpoint = self._host.endpoint(scope["path"])
        if endpoint is None and not scope["path"].startswith(_ENDPOINTS):
            return self._serve_other_path(scope, receive, send)
        principal = self._host.principal(headers, scope)
        if principal is None:  # also where there is nothing: that is for nobody to learn
            return self._verify(scope, headers, receive, send)
        if endpoint is None or not self._host.can_see(principal, endpoint):
            return self._serve_other_path(scope, receive, send)
        method = scope["method"]
        if method == "POST":
            return self._post(scope, headers, receive, send, principal, endpoint)
        if headers.get(b"mcp-protocol-version") in _STATELESS:
            return refuse(send, 405, f"no {method} in this version", [(b"allow", b"POST")])
        if method == "GET":
            return self._get(scope, headers, receive, send, principal, endpoint)
        if method == "DELETE":
            return self._delete(headers, send, principal, endpoint)
        return refuse(send, 405, f"no {method} here", [(b"allow", b"GET, POST, DELETE")])

    async def _verify(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Serve a request after all whose access token is good; refuse any other."""
        try:
            refused = await self._door.verify(headers)
        except IssuerUnavailable as error:
            self._note_refused(scope, 503, str(error))
            await refuse(send, 503, f"{error}; try again", [(b"retry-after", b"30")])
            return
        if refused is None and self._host.principal(headers, scope) is not None:
            await self(scope, receive, send)
            return
        status = 403 if isinstance(refused, ScopesMissing) else 401
        reason = f"no good token ({refused})" if refused else "no good key"
        self._note_refused(scope, status, reason)
        given = self._door.challenge(scope["path"], refused).encode("latin-1", "replace")
        words = str(refused) if refused else "a key is needed: Authorization: Bearer …"
        await refuse(send, status, words, [(b"www-authenticate", given)])

    def _note_refused(self, scope: Scope, status: int, reason: str) -> None:
        """Write a refused request to the log and to the audit."""
        client = scope.get("client") or ("an unknown client",)
        log.info("%d for %s by %s", status, client[0], scope["scheme"])
        if self._deny is not None:
            self._deny(describe_denial(scope, reason))

    async def _refuse_host(self, scope: Scope, send: Send) -> None:
        words = "this Host or Origin is not let in"
        self._note_refused(scope, 403, words)
        if self._rest is not None and _is_rest(scope["path"]):
            await self._rest.refuse(send, scope["path"], "FORBIDDEN", words)
        else:
            await refuse(send, 403, words)

    async def _serve_other_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if self._rest is not None and _is_rest(path):
            await self._rest(scope, receive, send)
        elif self._pages is not None and path.startswith(_PAGES):
            await self._pages(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await refuse(send, 404, "there is nothing here; the endpoint is /mcp")
        elif path == "/healthz":
            await respond(send, Reply(b'{"status":"ok"}\n'))
        elif path == "/readyz" and self._host.is_ready:
            answer = {"status": "ready", **self._host.warnings}
            await respond(send, Reply(msgspec.json.encode(answer) + b"\n"))
        elif path == "/readyz":
            answer = {"status": "not ready", "down": self._host.down}
            await respond(send, Reply(msgspec.json.encode(answer) + b"\n", 503))
        elif (described := self._door.describe_resource(path)) is not None:
            await respond(send, Reply(described), [(b"cache-control", b"max-age=300")])
        else:
            await refuse(send, 404, "there is nothing here; the endpoint is /mcp")

    # -- POST

    def _post(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        principal: Principal,
        endpoint: Endpoint,
    ) -> Awaitable[None]:
        kind = headers.get(b"content-type", b"")
        if kind != _TYPE and not kind.lower().startswith(_TYPE):
            return refuse(send, 415, "send content-type: application/json")
        given, exchange = scope["headers"], scope.get("exchange")
        carrying = None
        if type(given) is not Fields or given.carries is not False:
            try:
                carrying = find_carrying(given, headers)
            except FrameError as error:
                return respond(send, Reply(refuse_bytes(error), 400))
            if type(given) is Fields:  # most come again and again
                given.carries = carrying is not None
                if carrying is None and endpoint is EVERYTHING and b"authorization" in headers:
                    given.is_checked = True
                    given.is_stateless = headers.get(b"mcp-protocol-version") in _STATELESS
                    if has_handshake_version(headers):
                        given.session_id = headers.get(b"mcp-session-id", b"").decode("latin-1")
        post = HttpPost(principal, endpoint, given, headers, send, exchange, carrying)
        # Our own HTTP protocol has the body already, or did not even keep it.
        if exchange is None:
            return self._read_first(post, receive)
        exchange.principal = principal
        return self._read(post, exchange.body)

    async def _read_first(self, post: HttpPost, receive: Receive) -> None:
        await self._read(post, await self._body(receive))

    def _read(self, post: HttpPost, body: bytes | None) -> Awaitable[None]:
        """Handle the body of a POST: one frame, a batch, or neither."""
        headers, send = post.headers, post.send
        if body is None:
            return refuse(send, 413, f"the body is over the limit of {self._max_body} bytes")
        try:
            frame = requests.decode(body)
        except FrameError as error:
            if frames.is_batch(body) and b"mcp-session-id" in headers:
                return self._batch(body, error, post)
            return respond(send, Reply(refuse_bytes(error), 400))
        if self._draining and frame.method and frame.id:
            return respond(send, ending(bytes(frame.id)))
        is_stateless = headers.get(b"mcp-protocol-version") in _STATELESS
        if frame.method == "initialize" and frame.id and not is_stateless:
            return self._open(frame, post)
        if is_stateless or (
            b"mcp-session-id" not in headers and envelope.stated_version(frame) is not None
        ):  # its params describe its sender
            return self._stateless.answer(post, frame)
        found = self._session(headers, post.principal, post.endpoint)
        if isinstance(found, HttpRefusal):
            return refuse(send, *found)
        if not frame.id or not frame.method:
            self._dispatcher.take(found.session, frame)
            return respond(send, Reply(b"", 202))
        accept = headers.get(b"accept")
        reply = HttpReply(send, self._tasks, accept, post.exchange, found, post.carrying)
        return self._dispatcher.answer(found.session, frame, reply) or done()

    async def _body(self, receive: Receive) -> bytes | None:
        """Read the whole body; None when it is over the limit."""
        message = await receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body") and len(body) <= self._max_body:
            message = await receive()
            body += message.get("body", b"")
        return body if len(body) <= self._max_body else None

    async def _open(self, frame: Frame, post: HttpPost) -> None:
        send, endpoint, tasks = post.send, post.endpoint, self._tasks
        session = self._host.open_session(post.principal, endpoint, discard_frame)
        reply = CollectedReply(session)
        rest = self._dispatcher.answer(session, frame, reply)
        if rest is not None:
            await rest
        assert reply.answer is not None
        if not session.is_open:  # it was refused
            self._registry.discard(session)
            await respond(send, Reply(reply.answer, 400))
            return
        found = self._registry.add(self._registry.new_id(), session, endpoint)
        session.send = lambda frame: found.standing(tasks).send(frame)
        session.offer = lambda frame: found.standing(tasks).offer(frame)
        await respond(send, Reply(reply.answer), [(b"mcp-session-id", found.id.encode())])

    def _session(
        self, headers: dict[bytes, bytes], principal: Principal, endpoint: Endpoint
    ) -> HttpSession | HttpRefusal:
        """Find the session that a request names, or say why it is refused."""
        named = headers.get(b"mcp-session-id")
        if named is None:
            return HttpRefusal(400, "no Mcp-Session-Id: send initialize first")
        if not has_handshake_version(headers):
            known = ", ".join(HANDSHAKE_VERSIONS)
            return HttpRefusal(400, f"MCP-Protocol-Version must be one of {known}")
        found = self._registry.find(named.decode("latin-1"), principal, endpoint)
        return found or HttpRefusal(404, "there is no such session; send initialize again")

    async def _batch(self, body: bytes, error: FrameError, post: HttpPost) -> None:
        """Handle a batch in one POST, from a client whose version allows batches."""
        send = post.send
        found = self._session(post.headers, post.principal, post.endpoint)
        if isinstance(found, HttpRefusal):
            await refuse(send, *found)
            return
        try:
            if found.session.protocol_version not in BATCH_VERSIONS:
                raise error
            parts = requests.split_batch(body)
        except FrameError as refused:
            await respond(send, Reply(refuse_bytes(refused), 400))
            return
        if self._draining:
            parts = [refuse_ending(part) for part in parts]
        accept = post.headers.get(b"accept")
        reply = HttpReply(send, self._tasks, accept, post.exchange, found, post.carrying)
        answers = await self._dispatcher.answer_batch(found.session, parts, reply, post.carrying)
        if reply.stream is not None:
            await reply.finish(*answers)
        else:
            joined = Reply(requests.join_answers(answers)) if answers else Reply(b"", 202)
            await respond(send, joined)

    # -- GET and DELETE

    async def _get(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        principal: Principal,
        endpoint: Endpoint,
    ) -> None:
        if b"text/event-stream" not in headers.get(b"accept", b""):
            await refuse(send, 406, "a GET here is for a stream: accept text/event-stream")
            return
        found = self._session(headers, principal, endpoint)
        if isinstance(found, HttpRefusal):
            await refuse(send, *found)
            return
        last = found.find_stream(headers.get(b"last-event-id", b""))
        stream, after = last if last is not None else (found.standing(self._tasks), None)
        ended = await stream.attach(send, after=after, prime=found.wants_priming)
        exchange: AsgiExchange | None = scope.get("exchange")
        if exchange is not None:
            exchange.principal = principal
            exchange.when_left = partial(stream.release, ended)
            if exchange.is_gone:  # it left while its token was verified
                stream.release(ended)
            await ended
            return
        while not ended.done():
            message = await receive()
            if message["type"] == "http.disconnect":
                stream.release(ended)
                return

    async def _delete(
        self, headers: dict[bytes, bytes], send: Send, principal: Principal, endpoint: Endpoint
    ) -> None:
        found = self._session(headers, principal, endpoint)
        if isinstance(found, HttpRefusal):
            await refuse(send, *found)
        else:
            self._registry.remove(found, "the client ended the session")
            await respond(send, Reply(b""))


def _is_rest(path: str) -> bool:
    return path.startswith(_API) or path == METRICS
