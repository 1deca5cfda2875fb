"""Questions: what an agent may ask, at every door, about what it sees, may not see and invents."""

from random import Random
from typing import Any

from tests.api.mcp_client import HELLO
from tests.invisible.twins import Question
from tests.invisible.worlds import PROMPTS, RESOURCES, TEMPLATES, TOOLS, Item, World

from mcp_junction.protocol.names import PLATFORM, STDIO, STRICT, Pair

ERAS = ("handshake", "stateless")
SEARCHED = ["penguin", "zoo", "feed", "find the", "file", "echo", "issue", "mail", "who", "notes"]
SKILLS = "/api/v1/skills"


class Questions:
    """Makes questions about one world. ``<key>`` stands for the id of a server."""

    def __init__(self, random: Random, world: World, api: Any) -> None:
        self.random = random
        self.world = world
        self._routes = [
            (path, method.upper(), told)
            for path, methods in api["paths"].items()
            for method, told in methods.items()
        ]
        known = world.known_servers
        self._hidden_keys = [key for key in world.servers if key not in known]
        self.paths = ["/mcp", *(f"/mcp/{name}" for name in (*world.servers, *world.sets))]

    # -- names

    def names(self, item: Item) -> list[str]:
        """All that may mean an item, or what is like it."""
        pair = Pair(item.server, item.name)
        plain = STRICT.spell(pair)
        return [
            item.name,
            PLATFORM.spell(pair),
            STDIO.spell(pair),
            plain,
            STRICT.hashed(plain, pair),
            f"{item.server}+{item.name}",
            f"{item.name}x",
            plain[:-1],
        ]

    def name(self, kind: str) -> tuple[str, bool]:
        """A name of some item of a kind, and whether that is hidden."""
        items = [item for item in self.world.items if item.kind == kind]
        if not items or self.random.random() < 0.1:
            return self.random.choice(("nothing", "x__y", "d.y", "a" * 300)), False
        item = self.random.choice(items)
        is_hidden = not self.world.is_visible(item)
        return self.random.choice(self.names(item)), is_hidden

    def server(self) -> tuple[str, bool]:
        """A name or id of a server, and whether that is hidden."""
        if self.random.random() < 0.1:
            return "nothing", False
        key = self.random.choice(self.world.servers)
        is_hidden = key in self._hidden_keys
        ref = f"<{key}>" if self.random.random() < 0.4 else key
        return ref, is_hidden

    # -- questions

    def one(self) -> Question:
        """One question, at any door."""
        doors = [self.listing, self.calling, self.own_tool, self.getting, self.opening]
        doors += [self.search, self.rest_call, self.invoke, self.explain, self.rest_list, self.any]
        doors += [self.other]
        return self.random.choice(doors)()

    def every_list(self) -> list[Question]:
        """Every list, at every address, in both eras, and all that REST lists."""
        found = [
            Question(path, rpc=rpc, era=era)
            for path in self.paths
            for era in ERAS
            for rpc in ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
        ]
        found += [
            Question(path, rpc="initialize", body=HELLO, era="handshake") for path in self.paths
        ]
        found += [Question(path, rpc="server/discover", era="stateless") for path in self.paths]
        return found + [self.get(path) for path in self.rest_lists()]

    @staticmethod
    def get(path: str, *, is_echo: bool = False) -> Question:
        """A GET; the audit has all names that were asked for before."""
        return Question(path, "GET", is_echo=is_echo or "/audit" in path)

    @staticmethod
    def rest_lists() -> list[str]:
        return [
            "/api/v1/aggregator/tools",
            "/api/v1/aggregator/tools?limit=1",
            "/api/v1/aggregator/tools?include_unavailable=true&include_schemas=true",
            "/api/v1/mcp/tools",
            "/api/v1/mcp/tools?limit=1",
            "/api/v1/mcp/tools?enabled_only=false",
            SKILLS,
            f"{SKILLS}?limit=2&include_embeddings=true",
            "/api/v1/mcp/audit",
            "/api/v1/mcp/audit?limit=3",
            "/api/v1/mcp/metrics",
            "/api/v1/events?follow=false",
            "/api/v1/mcp/policies",
            "/api/v1/mcp/policies/the-agent",
            "/api/v1/mcp/escalations",
            "/api/v1/mcp/circuit-breakers",
            "/api/v1/mcp/agents/the-agent",
            "/api/v1/aggregator/servers",
            "/metrics",
            "/healthz",
            "/readyz",
        ]

    def _rpc(self, rpc: str, body: Any, is_echo: bool, path: str | None = None) -> Question:
        path = path or self.random.choice(self.paths)
        era = self.random.choice(ERAS)
        return Question(path, body=body, rpc=rpc, era=era, is_echo=is_echo)

    def listing(self) -> Question:
        kind = self.random.choice(("tools", "prompts", "resources", "resources/templates"))
        return self._rpc(f"{kind}/list", {}, is_echo=False)

    def opening(self) -> Question:
        path = self.random.choice(self.paths)
        if self.random.random() < 0.5:
            return Question(path, rpc="server/discover", era="stateless")
        return Question(path, rpc="initialize", body=HELLO, era="handshake")

    def other(self) -> Question:
        """Methods that name nothing that is listed."""
        rpc, body = self.random.choice(
            (
                ("ping", {}),
                ("logging/setLevel", {"level": "debug"}),
                ("tasks/get", {"taskId": self.name(TOOLS)[0]}),
                ("resources/unsubscribe", {"uri": self.name(RESOURCES)[0]}),
                ("nothing/such", {}),
            )
        )
        return self._rpc(rpc, body, is_echo=True)

    def calling(self) -> Question:
        name, is_hidden = self.name(TOOLS)
        arguments = self.random.choice(({}, {"x": 1}, {"penguin": "y"}))
        return self._rpc("tools/call", {"name": name, "arguments": arguments}, is_hidden)

    def failing(self, item: Item) -> list[Question]:
        """Calls of a tool that is shown, at three doors, and what is told of them later."""
        target = {"server_id": item.server, "tool_name": item.name}
        named = {"name": item.name, "server_id": item.server, "arguments": {}}
        name = PLATFORM.spell(Pair(item.server, item.name))
        wanted = {"name": name, "arguments": {}}
        return [
            Question("/api/v1/tools/call", body=named),
            Question("/api/v1/mcp/invoke", body={"agent_id": "the-agent", **target, "params": {}}),
            *(Question("/mcp", body=wanted, rpc="tools/call", era=era) for era in ERAS),
            self.get("/api/v1/mcp/escalations"),
            self.get("/api/v1/mcp/audit"),
            self.get("/api/v1/mcp/tools"),
        ]

    def own_tool(self) -> Question:
        name, is_hidden = self.name(TOOLS)
        given: dict[str, Any] = {"name": "call_tool", "arguments": {"name": name}}
        which = self.random.random()
        if which < 0.4:
            is_hidden = False
            given = {"name": "find_tools", "arguments": {"query": self.query()}}
        elif which < 0.7:
            others = [self.name(TOOLS) for _ in range(3)]
            is_hidden = any(hidden for _, hidden in others)
            given = {"name": "describe_tools", "arguments": {"names": [n for n, _ in others]}}
        return self._rpc("tools/call", given, is_hidden)

    def getting(self) -> Question:
        kind = self.random.choice((PROMPTS, RESOURCES, TEMPLATES))
        name, is_hidden = self.name(kind)
        if kind == PROMPTS:
            if self.random.random() < 0.5:
                return self._rpc("prompts/get", {"name": name}, is_hidden)
            ref = {"type": "ref/prompt", "name": name}
        else:
            filled = name.replace("{", "").replace("}", "") if kind == TEMPLATES else name
            reading = self.random.choice(("resources/read", "resources/subscribe", ""))
            if reading:
                return self._rpc(reading, {"uri": filled}, is_hidden)
            ref = {"type": "ref/resource", "uri": name}
        wanted = {"ref": ref, "argument": {"name": "who", "value": "a"}}
        return self._rpc("completion/complete", wanted, is_hidden)

    def query(self) -> str:
        return " ".join(self.random.choice(SEARCHED) for _ in range(self.random.randint(1, 3)))

    def search(self) -> Question:
        body: dict[str, Any] = {"query": self.query(), "limit": self.random.choice((1, 5, 50))}
        is_hidden = False
        if self.random.random() < 0.3:
            ref, is_hidden = self.server()
            body["server_filter"] = [ref]
        if self.random.random() < 0.2:
            body["skill_filter"] = [self.random.choice(("web-search", "file-management", "x"))]
        body["include_schemas"] = self.random.random() < 0.5
        return Question("/api/v1/search", body=body, is_echo=is_hidden)

    def rest_call(self) -> Question:
        name, is_hidden = self.name(TOOLS)
        body: dict[str, Any] = {"name": name, "arguments": {}}
        if self.random.random() < 0.5:
            body["server_id"], is_too = self.server()
            is_hidden |= is_too
        return Question("/api/v1/tools/call", body=body, is_echo=is_hidden)

    def _target(self) -> tuple[dict[str, Any], bool]:
        item = self.random.choice([one for one in self.world.items if one.kind == TOOLS])
        server, name = item.server, item.name
        is_hidden = not self.world.is_visible(item)
        if self.random.random() < 0.3:
            server = f"<{server}>"
        elif self.random.random() < 0.2:
            name, other = self.name(TOOLS)
            is_hidden |= other
        return {"server_id": server, "tool_name": name}, is_hidden

    def invoke(self) -> Question:
        target, is_hidden = self._target()
        body = {"agent_id": "the-agent", **target, "params": {}}
        if self.random.random() < 0.2:
            body["idempotency_key"] = f"key-{self.random.randrange(5)}"
        return Question("/api/v1/mcp/invoke", body=body, is_echo=is_hidden)

    def explain(self) -> Question:
        target, is_hidden = self._target()
        body: dict[str, Any] = {"agent_id": "the-agent", **target}
        if self.random.random() < 0.5:
            body["params"] = {"x": 1}
        return Question("/api/v1/mcp/explain", body=body, is_echo=is_hidden)

    def rest_list(self) -> Question:
        if self.random.random() < 0.5:
            return self.get(self.random.choice(self.rest_lists()))
        ref, is_hidden = self.server()
        name, is_too = self.name(TOOLS)
        path = self.random.choice(
            (
                f"/api/v1/aggregator/tools?server={ref}",
                f"/api/v1/mcp/tools?server_id={ref}",
                f"/api/v1/mcp/tools/{ref}/{name}",
                f"/api/v1/mcp/audit?server_id={ref}",
                f"/api/v1/mcp/escalations?server_id={ref}",
                f"/api/v1/mcp/audit?tool_name={name}",
                f"/api/v1/mcp/metrics?server_id={ref}",
                f"/api/v1/mcp/metrics?tool_name={name}",
            )
        )
        return self.get(path, is_echo=is_hidden or is_too)

    def any(self) -> Question:
        """Any route that is documented, with names of what is hidden, shown or invented."""
        path, method, told = self.random.choice(self._routes)
        is_hidden = False
        for parameter in told.get("parameters", []):
            if parameter["in"] != "path":
                continue
            ref, is_it = self.name(TOOLS) if "tool" in parameter["name"] else self.server()
            is_hidden |= is_it
            path = path.replace("{" + parameter["name"] + "}", ref)
        if path.endswith("/events"):
            path += "?follow=false"
        target, is_too = self._target()
        body = None if method in ("GET", "DELETE") else {"agent_id": "the-agent", **target}
        headers = {"last-event-id": "0"}
        is_echo = is_hidden or is_too or "/audit" in path
        return Question(path, method, body, headers=headers, is_echo=is_echo)
