"""Twins: two gateways over one world; one has what is hidden from the agent, and one does not.

Every byte that either sends to the agent is kept. Answers are compared without what differs from
run to run: ids, times, sessions.
"""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any, Self

import httpx
from tests.api.mcp_client import ACCEPTED, HELLO, META, NEWER, frame
from tests.invisible.box import LISTS, Box
from tests.invisible.worlds import World
from tests.keyring import grant_all
from tests.plugin_rest import BOUND, Served, _SqliteOpener, serve_api
from tests.registry.toolbox import until

from mcp_junction.config.load import load
from mcp_junction.policy.grants import CallLimit, Grant
from mcp_junction.policy.principal import Role
from mcp_junction.store.grants import AgentRecord

AGENT = "the-agent"
MOST_PAGES = 50
EVENTS = "events"
CHANGED = "notifications/{}/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@dataclass
class Question:
    """One request of the agent. ``rpc`` is for ``/mcp`` and its like, in one of the eras."""

    path: str
    method: str = "POST"
    body: Any = None
    rpc: str = ""
    era: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    is_echo: bool = False
    """Whether it names something hidden, which the answer may repeat."""

    def __str__(self) -> str:
        what = f"{self.era} {self.rpc}" if self.rpc else self.method
        return f"{what} {self.path} {json.dumps(self.body)} {self.headers}"


class Gateway:
    """One of the twins, as its agent sees it."""

    def __init__(self, served: Served, world: World, boxes: dict[str, Box]) -> None:
        self.served = served
        self.world = world
        self.boxes = boxes
        self.sent: list[tuple[str, bool]] = []
        """All that the agent was sent, and whether it may hold an echo."""
        self.heard: dict[str, list[str]] = {}
        """What the agent heard on its streams."""
        self.foreign_ids: dict[str, str] = {}
        self._sessions: dict[str, str] = {}
        self._listeners: list[asyncio.Task[None]] = []

    # -- asking

    async def ask(self, question: Question) -> str:
        """Ask as the agent; all pages of a list. What was answered, without what differs anyway."""
        if "/audit" in question.path:
            self.served.audit.denials.flush()
            await self.served.audit.flush()
        answers, body, path = [], question.body, question.path
        for _ in range(MOST_PAGES):
            answer = await self._send(question, path, body)
            answers.append(write(answer))
            self.sent.append((answers[-1], question.is_echo))
            following = next_page(answer)
            if following is None:
                break
            if question.rpc:
                body = {**(question.body or {}), "cursor": following}
            else:
                path = following
        return plain("\n".join(answers))

    async def _send(self, question: Question, path: str, body: Any) -> httpx.Response:
        client = self.served.client("agent")
        path, body = self._with_ids(path), json.loads(self._with_ids(json.dumps(body)))
        if not question.rpc:
            return await client.request(
                question.method, path, json=body, headers={**question.headers}
            )
        params, headers = dict(body or {}), {**ACCEPTED, **question.headers}
        if question.era == "stateless":
            params["_meta"] = {**META, **params.get("_meta", {})}
            headers |= {"mcp-protocol-version": NEWER, "mcp-method": question.rpc}
            name = params.get("name") or params.get("uri")
            if name is not None:
                headers["mcp-name"] = name
        elif question.rpc != "initialize":
            session = await self.session(path)
            if session is not None:
                headers["mcp-session-id"] = session
        return await client.post(path, json=frame(question.rpc, params), headers=headers)

    async def session(self, path: str) -> str | None:
        """The agent's session at an address; None where it cannot open one."""
        if path not in self._sessions:
            client = self.served.client("agent")
            hello = frame("initialize", HELLO)
            answer = await client.post(path, json=hello, headers=ACCEPTED)
            self.sent.append((write(answer), False))
            self._sessions[path] = answer.headers.get("mcp-session-id", "")
        return self._sessions[path] or None

    # -- listening

    async def listen(self, path: str, uris: list[str]) -> None:
        """Open the standing stream of a session, and a listen of the newer era."""
        session = await self.session(path)
        if session is None:
            return
        ask: dict[str, Any] = {
            "url": path,
            "headers": {"accept": "text/event-stream", "mcp-session-id": session},
        }
        await self._open(f"handshake {path}", method="GET", **ask)
        wants: dict[str, Any] = dict.fromkeys(
            ("toolsListChanged", "promptsListChanged", "resourcesListChanged"), True
        )
        wants["resourceSubscriptions"] = uris
        params = {"notifications": wants, "_meta": META}
        headers = {**ACCEPTED, "mcp-protocol-version": NEWER, "mcp-method": "subscriptions/listen"}
        asked = frame("subscriptions/listen", params)
        name = f"stateless {path}"
        await self._open(name, method="POST", url=path, json=asked, headers=headers)
        if self.heard[name][0].startswith("200"):  # what comes next comes after its subscriptions
            await until(lambda: any(ACKNOWLEDGED in line for line in self.heard[name]))

    async def follow_events(self) -> None:
        """Follow the events of the agent's own calls."""
        await self._open(EVENTS, method="GET", url="/api/v1/events", headers={})

    async def hear_events(self, last: str) -> list[str]:
        """What was heard of events, once that of the call with this correlation id is there."""
        await until(lambda: any(last in line for line in self.heard[EVENTS]))
        return [plain(line) for line in self.heard[EVENTS]]

    async def _open(self, name: str, **request: Any) -> None:
        opened = asyncio.Event()
        self.heard[name] = []
        self._listeners.append(asyncio.create_task(self._follow(name, opened, request)))
        await asyncio.wait_for(opened.wait(), BOUND)

    async def _follow(self, name: str, opened: asyncio.Event, request: Any) -> None:
        async with self.served.client("agent").stream(**request, timeout=None) as answer:
            self.heard[name].append(f"{answer.status_code} {headers_of(answer)}")
            opened.set()
            async for line in answer.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    self.heard[name].append(line)

    def has_heard(self) -> bool:
        """Whether all streams of both eras at ``/mcp`` have heard of changed tools."""
        told = CHANGED.format("tools")
        streams = [self.heard[name] for name in self.heard if name.endswith(" /mcp")]
        return all(any(told in line for line in lines) for lines in streams)

    async def close(self) -> None:
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)

    # -- what happens

    async def change(self, key: str, kind: str, offers: list[dict[str, Any]]) -> None:
        """Have a server offer something else, and say so; until that is known."""
        box = self.boxes[key]
        box.offers[kind] = offers
        await self.announce(key, kind)

    async def announce(self, key: str, kind: str) -> None:
        """Have a server say that a list has changed; until that was read."""
        box = self.boxes[key]
        method = next(method for method, (each, _) in LISTS.items() if each == kind)
        before = len(box.told(method))
        box.say(CHANGED.format("resources" if kind == "templates" else kind))
        await box.until(lambda: len(box.told(method)) > before)
        live = self.served.junction.live_catalog
        await until(lambda: not live._reading)

    def _with_ids(self, text: str) -> str:
        """A text with the ids of servers in place of their keys in brackets.

        A server that it does not have has the id that it has in the other."""
        for key, server_id in {**self.foreign_ids, **self.ids}.items():
            text = text.replace(f"<{key}>", server_id)
        return text

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the servers, by their keys."""
        return {record.name: record.id for record in self.served.registry.all()}


class Twins:
    """Starts both, and asks both the same."""

    def __init__(self, folder: Path, vault: Any, world: World) -> None:
        self.world = world
        self._folder = folder
        self._vault = vault
        self._stack = AsyncExitStack()
        self.gateways: list[Gateway] = []
        self.asked = 0

    @property
    def hiding(self) -> Gateway:
        """The one that has what is hidden."""
        return self.gateways[0]

    async def __aenter__(self) -> Self:
        try:
            for name, world in (("one", self.world), ("two", self.world.without_hidden())):
                self.gateways.append(await self._start(name, world))
            self.gateways[1].foreign_ids = self.hiding.ids
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self, name: str, world: World) -> Gateway:
        stack, folder = self._stack, self._folder / name
        boxes = {}
        for key in world.servers:
            told = f"how to use {key}" if key in world.known_servers else world.canaries[0]
            boxes[key] = await stack.enter_async_context(Box(world, key, told))
        folder.mkdir()
        file = folder / "mcp.json"
        servers = {key: {"type": "http", "url": box.url} for key, box in boxes.items()}
        own = {**world.settings, "endpoints": world.sets}
        file.write_text(json.dumps({"mcpServers": servers, "junction": own}), "utf-8")
        opener = _SqliteOpener(stack, folder / "data", self._vault)
        config = load(str(file), {}, {}, lenient=True)
        served = await serve_api(stack, opener, config, ("admin", "agent"), grants=False)
        gateway = Gateway(served, world, boxes)
        stack.push_async_callback(gateway.close)
        for key in world.servers:
            await served.until(key, "CONNECTED")
        await self._grant(gateway)
        await until(lambda: not served.registry.state().unclassified_tools)
        await served.registry.skills.classifier.wait_until_done()
        return gateway

    async def _grant(self, gateway: Gateway) -> None:
        served, ids = gateway.served, gateway.ids
        store, now = served.context.store, time()
        for number, planned in enumerate(self.world.grants):
            server_id = "*" if planned.server == "*" else ids.get(planned.server)
            if server_id is None:  # of a server that this twin does not have
                continue
            grant = Grant(
                f"{number}",
                AGENT,
                server_id,
                planned.pattern,
                planned.kinds,
                limits=None if planned.calls is None else CallLimit(planned.calls, 3600),
                token_mode=planned.token_mode,
                granted_at=now,
                granted_by="test",
                expires_at=None if planned.is_live else now - 60,
            )
            await store.policy.grant(grant, AgentRecord(AGENT), lambda _: None)
        await grant_all(store, "other")
        served.keys["other"] = (await served.ring.create(Role.AGENT, "other", "test"))[1]
        governance = served.junction.governance
        assert governance is not None
        assert governance.sync is not None
        await governance.sync.refresh(AGENT, "other")

    async def compare(self, question: Question) -> str | None:
        """Ask both; what differs, if anything does."""
        self.asked += 1
        one, two = [await gateway.ask(question) for gateway in self.gateways]
        return None if one == two else f"{question}\n  with:    {one}\n  without: {two}"


# -- writing down what was answered


def headers_of(answer: httpx.Response) -> str:
    kept = [
        (name, value)
        for name, value in answer.headers.items()
        if name not in ("date", "content-length", "mcp-session-id")
    ]
    return json.dumps(sorted(kept))


def write(answer: httpx.Response) -> str:
    return f"{answer.status_code} {headers_of(answer)} {answer.text}"


def next_page(answer: httpx.Response) -> str | None:
    """The cursor of the next page, or its address over REST."""
    if 'rel="next"' in answer.headers.get("link", ""):
        return answer.headers["link"].partition(">")[0][1:]
    try:
        body = answer.json()
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("result"), dict) and "nextCursor" in body["result"]:
        return str(body["result"]["nextCursor"])
    if body.get("next_cursor"):
        return str(answer.request.url.copy_merge_params({"cursor": body["next_cursor"]}))
    return None


_VARYING = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    (r"j[0-9a-f]{11}-[0-9a-f]{16}", "CORRELATION"),
    (r"(/mcp/audit[^>]*cursor=)[^>&]+", r"\1CURSOR"),
    (r'"junction/id":"[0-9a-f]{16}"', '"junction/id":"ID"'),
    (r'"(\w+_(?:ms|at)|at)": ?(?:"[^"]*"|[^,}]+)', r'"\1":0'),
    (r'"since":[0-9.]+', '"since":0'),
    (r'retry_after_ms\\":\d+', 'retry_after_ms":0'),  # in a text
    (r"again in [0-9.e+]+ s", "again in 0 s"),
    (r'"retry-after", "\d+"', '"retry-after", "0"'),
    (r'"(id|closes)":"(?:[0-9a-f]{24}|[0-9a-f]{16})"', r'"\1":"ROW"'),
    (r"^id: .*$", "id: ID"),
)


def plain(text: str) -> str:
    """An answer without what differs from run to run."""
    for pattern, same in _VARYING:
        text = re.sub(pattern, same, text, flags=re.MULTILINE)
    return text
