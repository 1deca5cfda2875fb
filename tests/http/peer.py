"""An MCP server with every feature of the handshake era, for all transports. Standard library only.

    python peer.py [OPTIONS-AS-JSON]      on stdin and stdout; over HTTP see ``peer_http.py``

A Conversation is one client's. It takes messages and says messages; with each it says, it names the
request it belongs to, or None. Behaviours are tools. Options: ``page`` (items on a page of a list),
``notes`` (how many resources), ``scheme`` (of their addresses).
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
Say = Callable[[Message, Any], None]

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}


class Refusal(Exception):
    """An error to answer with."""


def text(value: Any) -> Message:
    words = value if isinstance(value, str) else json.dumps(value)
    return {"content": [{"type": "text", "text": words}]}


class Tools:
    """Each is a tool: ``name(conversation, request, **arguments)``."""

    async def echo(self, request, **_):
        """Say the params as they came."""
        return text(request["params"])

    async def about(self, request):
        """Say what there is to know about this conversation."""
        return text({"pid": os.getpid(), "hello": self.hello, "context": self.context})

    async def seen(self, request):
        """Say every message that came so far."""
        return text(self.seen)

    async def steps(self, request, count):
        """Report progress, step by step."""
        for step in range(1, count + 1):
            self.progress(request, step, count)
            await asyncio.sleep(0)
        return text("done")

    async def speak(self, request, levels):
        """Log one message at each of these levels."""
        for level in levels:
            self.log(level, f"a {level} message", request["id"])
        return text("spoken")

    async def ask(self, request, method, params=None):
        """Ask the client, and say what it answered."""
        return text(await self.ask(method, params, request["id"]))

    async def ask_alone(self, request, method, params=None):
        """Answer, and then ask for no call in particular."""
        asyncio.get_running_loop().call_later(0.01, self.ask_nobody, method, params)
        return text("asking")

    async def log_alone(self, request, level="info"):
        """Answer, and then log for no call in particular."""
        asyncio.get_running_loop().call_later(0.01, self.log, level, "for everyone", None)
        return text("logging")

    async def hold(self, request):
        """Say that it has begun, and answer when it is released."""
        self.progress(request, 0, 1)
        self.held[request["id"]] = gate = asyncio.Event()
        try:
            await gate.wait()
        finally:
            del self.held[request["id"]]
        return text("released")

    async def release(self, request):
        """Answer everything that is held."""
        for gate in list(self.held.values()):
            gate.set()
        return text("released all")

    async def grow(self, request, kind, name):
        """Offer one more of a kind, and announce it."""
        self.lists[kind].append(described(kind, name))
        announced = "resources" if kind == "resourceTemplates" else kind
        self.notify(f"notifications/{announced}/list_changed")
        return text("grown")

    async def touch(self, request, uri):
        """Say that a resource has changed."""
        asyncio.get_running_loop().call_soon(
            self.notify, "notifications/resources/updated", {"uri": uri}
        )
        return text("touched")

    async def _spill(self, request):
        """Say all that clients have sent, in each message that names no call. It is not listed."""
        calls = [m for m in self.seen if m.get("method") == "tools/call"]
        blob = json.dumps([m["params"] for m in calls])
        said = {"x": blob, "_meta": {"x": blob}}
        for message in calls:
            if message["id"] not in self.running:  # it is over: nothing is awaited under this id
                late = {"progressToken": message["id"], "progress": 9, "message": blob}
                self.notify("notifications/progress", late)
                self.say({"jsonrpc": "2.0", "id": message["id"], "result": text(blob)}, None)
        self.say({"jsonrpc": "2.0", "id": None, "error": {"code": -1, "message": blob}}, None)
        self.notify("notifications/cancelled", {"requestId": "none", "reason": blob})
        for kind in ("tools", "prompts", "resources"):
            self.notify(f"notifications/{kind}/list_changed", said)
        for method in ("elicitation/complete", "tasks/status", "anything", "initialized"):
            self.notify(f"notifications/{method}", said)
        self.notify("notifications/resources/updated", {"uri": "note://1", **said})
        self.log("emergency", blob, None)
        self.ask_nobody("elicitation/create", {"message": blob, "requestedSchema": {}})
        self.ask_nobody("sampling/createMessage", {"messages": [], "systemPrompt": blob})
        self.ask_nobody("roots/list", said)
        return text("spilled")

    async def fail(self, request):
        """Refuse."""
        raise Refusal("this is what was asked for")


def described(kind: str, name: str) -> Message:
    if kind == "tools":
        words = (getattr(Tools, name, Tools.echo).__doc__ or "").strip()
        return {"name": name, "description": words, "inputSchema": {"type": "object"}}
    if kind == "prompts":
        return {"name": name, "arguments": [{"name": "who", "required": True}]}
    key = "uri" if kind == "resources" else "uriTemplate"
    return {key: name, "name": name.rpartition("/")[2] or name, "mimeType": "text/plain"}


class Conversation:
    """One client of this server's."""

    def __init__(self, say: Say, context: Any = None, **options: Any) -> None:
        self.say = say
        self.context = context
        self.options = options
        self.hello: Message = {}
        self.seen: list[Message] = []
        self.held: dict[Any, asyncio.Event] = {}
        self.subscribed: set[str] = set()
        self.level = "debug"
        self.running: dict[Any, asyncio.Task[None]] = {}
        self._asked: dict[str, asyncio.Future[Message]] = {}
        scheme = options.get("scheme", "note")
        notes = [f"{scheme}://{n}" for n in range(options.get("notes", 3))]
        names = [name for name in vars(Tools) if not name.startswith("_")]
        self.lists = {
            "tools": [described("tools", name) for name in names],
            "prompts": [described("prompts", name) for name in ("greet", "part")],
            "resources": [described("resources", uri) for uri in notes],
            "resourceTemplates": [described("resourceTemplates", f"{scheme}://of/{{who}}")],
        }

    def receive(self, message: Message) -> None:
        self.seen.append(message)
        if "method" not in message:
            asked = self._asked.pop(message["id"], None)
            if asked is not None and not asked.done():
                asked.set_result(message)
        elif "id" in message:
            task = asyncio.get_running_loop().create_task(self._serve(message))
            self.running[message["id"]] = task
            task.add_done_callback(lambda _: self.running.pop(message["id"], None))
        elif message["method"] == "notifications/cancelled":
            task = self.running.get(message["params"]["requestId"])
            if task is not None:
                task.cancel()

    def close(self) -> None:
        for task in list(self.running.values()):
            task.cancel()

    # -- saying

    def notify(self, method: str, params: Message | None = None, on: Any = None) -> None:
        message: Message = {"jsonrpc": "2.0", "method": method}
        self.say(message if params is None else {**message, "params": params}, on)

    def progress(self, request: Message, done: int, total: int) -> None:
        token = request["params"].get("_meta", {}).get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": done, "total": total}
            self.notify("notifications/progress", params, request["id"])

    def log(self, level: str, data: str, on: Any) -> None:
        if LEVELS.index(level) >= LEVELS.index(self.level):
            params = {"level": level, "logger": "peer", "data": data}
            self.notify("notifications/message", params, on)

    async def ask(self, method: str, params: Message | None, on: Any) -> Message:
        question = f"q{len(self.seen)}.{len(self._asked)}"
        self._asked[question] = asyncio.get_running_loop().create_future()
        message: Message = {"jsonrpc": "2.0", "id": question, "method": method}
        answer = self._asked[question]
        self.say(message if params is None else {**message, "params": params}, on)
        reply = await answer
        return {key: reply[key] for key in ("result", "error") if key in reply}

    def ask_nobody(self, method: str, params: Message | None) -> None:
        task = asyncio.get_running_loop().create_task(self.ask(method, params, None))
        self.running[f"alone {len(self.running)} {len(self.seen)}"] = task  # type: ignore[assignment]

    # -- serving

    async def _serve(self, request: Message) -> None:
        answer: Message = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            answer["result"] = await self._result(request)
        except Refusal as refusal:
            answer["error"] = {"code": -32050, "message": str(refusal)}
        self.say(answer, request["id"])

    async def _result(self, request: Message) -> Message:
        method, params = request["method"], request.get("params") or {}
        match method:
            case "initialize":
                return self._initialize(params)
            case "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list":
                kind = "resourceTemplates" if "templates" in method else method.split("/")[0]
                return self._page(kind, params)
            case "tools/call":
                tool = getattr(Tools, params["name"], Tools.echo)
                return await tool(self, request, **params.get("arguments", {}))
            case "prompts/get":
                words = f"{params['name']}: hello, {params.get('arguments', {}).get('who')}"
                return {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": f"it is {params['uri']}"}]}
            case "completion/complete":
                return {"completion": {"values": [json.dumps(params["ref"], sort_keys=True)]}}
        return self._small(method, params)

    def _small(self, method: str, params: Message) -> Message:
        if method == "resources/subscribe":
            self.subscribed.add(params["uri"])
        elif method == "resources/unsubscribe":
            self.subscribed.discard(params["uri"])
        elif method == "logging/setLevel":
            self.level = params["level"]
        elif method != "ping":
            raise Refusal(f"no method {method}")
        return {}

    def _initialize(self, params: Message) -> Message:
        self.hello = params
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": "peer", "version": "1"},
        }

    def _page(self, kind: str, params: Message) -> Message:
        start = int(params.get("cursor", 0))
        end = start + self.options.get("page", 100)
        page: Message = {kind: self.lists[kind][start:end]}
        if end < len(self.lists[kind]):
            page["nextCursor"] = str(end)
        return page


async def main() -> None:
    def say(message: Message, _: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    conversation = Conversation(say, sys.argv[1:], **options)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        conversation.receive(json.loads(line))
    conversation.close()


if __name__ == "__main__":
    asyncio.run(main())
