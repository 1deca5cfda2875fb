"""Random worlds: servers with what they offer, and the grants of one agent, which hide most of it.

A naive reading of the grants says what the agent may see. ``World.without_hidden`` is the same
world as if the rest had never been: whatever the agent asks, both must answer the same.
"""

import re
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from mcp_junction.policy.tokens import TokenMode
from mcp_junction.protocol.names import STRICT, Pair

TOOLS, PROMPTS, RESOURCES, TEMPLATES = "tools", "prompts", "resources", "templates"
KINDS = (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
WORDS = ["feed", "echo", "read", "list", "find", "who", "send", "note", "plan", "draw", "count"]
NOUNS = ["penguin", "zoo", "file", "mail", "issue", "map", "bear", "song", "lake", "invoice"]
KEYS = ("d", "d__y", "zoo", "files", "zoo-2", "echo")
DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class Item:
    """Something that a server offers: its kind, whose it is, its own name and its definition."""

    kind: str
    server: str
    name: str
    definition: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class PlannedGrant:
    """A grant of the agent, on a server by its key, or on all."""

    server: str
    pattern: str
    kinds: tuple[str, ...]
    is_live: bool = True
    calls: int | None = None
    """At most so many calls by it."""
    token_mode: TokenMode = TokenMode.NONE

    def admits(self, item: Item) -> bool:
        kind = RESOURCES if item.kind == TEMPLATES else item.kind
        if not self.is_live or kind not in self.kinds or self.server not in ("*", item.server):
            return False
        parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in self.pattern)
        return re.fullmatch("".join(parts), item.name, re.DOTALL) is not None


@dataclass(frozen=True)
class World:
    """Servers in the order of the file, what they offer, and what the agent is granted."""

    servers: tuple[str, ...]
    items: tuple[Item, ...]
    grants: tuple[PlannedGrant, ...]
    settings: dict[str, Any]
    sets: dict[str, list[str]]
    canaries: tuple[str, ...]
    """Texts that only hidden things have."""

    def is_visible(self, item: Item) -> bool:
        return any(grant.admits(item) for grant in self.grants)

    @property
    def hidden(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if not self.is_visible(item))

    @property
    def visible(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if self.is_visible(item))

    @property
    def known_servers(self) -> tuple[str, ...]:
        """The servers that exist for the agent: something is visible, or granted by their name."""
        named = {grant.server for grant in self.grants if grant.is_live}
        return tuple(k for k in self.servers if k in named or k in {i.server for i in self.visible})

    def without_hidden(self) -> "World":
        known = self.known_servers
        sets = {
            name: kept
            for name, entries in self.sets.items()
            if (kept := [one for one in entries if one.partition(".")[0] in known])
        }
        return replace(self, servers=known, items=self.visible, sets=sets)

    def of(self, server: str, kind: str) -> list[dict[str, Any]]:
        """The definitions of what a server offers."""
        return [i.definition for i in self.items if i.server == server and i.kind == kind]


class WorldMaker:
    """Makes worlds, each from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.canaries: list[str] = []

    def make(self, hidden_tools: int) -> World:
        while True:
            world = self._make(hidden_tools)
            shown = sum(item.kind == TOOLS for item in world.visible)
            hidden = sum(item.kind == TOOLS for item in world.hidden)
            has_hidden_server = len(world.known_servers) < len(world.servers)
            if shown >= 2 and hidden >= hidden_tools and has_hidden_server:
                return self._marked(world)

    def _make(self, hidden_tools: int) -> World:
        random = self.random
        shown = random.sample(KEYS, random.choice((1, 1, 2, 3)))
        if random.random() < 0.5:  # these two run together in a spelling
            shown[0] = "d__y"
        shown = list(dict.fromkeys(shown))
        secret = self._secret_keys(shown, random.randint(1, 2))
        servers = [*shown, *secret]
        random.shuffle(servers)
        wanted = self._visible_items(shown)
        pairs = {(i.kind, i.server, i.name): i for i in wanted}
        most = hidden_tools + random.randint(0, 6)
        while sum(i not in wanted and i.kind == TOOLS for i in pairs.values()) < most:
            for item in self._hidden_items(servers, wanted):
                pairs.setdefault((item.kind, item.server, item.name), item)
        items = list(pairs.values())
        random.shuffle(items)
        grants = self._grants(wanted, items)
        return World(
            tuple(servers), tuple(items), grants, self._settings(), self._sets(servers, shown), ()
        )

    # -- servers

    def _secret_keys(self, shown: list[str], count: int) -> list[str]:
        """Keys that are like those that are shown, and others."""
        random = self.random
        near = [f"{key}s" for key in shown] + [f"{key}__who" for key in shown]
        near += [key[:-1] for key in shown if len(key) > 1] + [k for k in KEYS if k not in shown]
        found = random.sample([key for key in dict.fromkeys(near) if key not in shown], count)
        if "d__y" in shown and "d" not in (*shown, *found):
            found[0] = "d"
        elif random.random() < 0.5:
            found[-1] = self.canary()
        return found

    def _settings(self) -> dict[str, Any]:
        random = self.random
        chosen: dict[str, Any] = {"page_size": random.choice((2, 3, 200))}
        chosen["retry_max_attempts"] = 1  # what fails, fails at once
        chosen["exposure"] = random.choice(("all", "search"))
        chosen["prefix"] = random.choice(("auto", "auto", "always", "never"))
        if random.random() < 0.6:
            chosen["names"] = "strict"
        if random.random() < 0.2:
            chosen["limit_agent"], chosen["limit_tool"] = "40/3600", "6/3600"
        return chosen

    def _sets(self, servers: list[str], shown: list[str]) -> dict[str, list[str]]:
        secret = [key for key in servers if key not in shown]
        return {"mix": [shown[0], secret[0]], "secret": secret, "open": [*shown]}

    # -- what they offer

    def _visible_items(self, shown: list[str]) -> list[Item]:
        random = self.random
        items = []
        for key in shown:
            for kind, most in ((TOOLS, 4), (PROMPTS, 2), (RESOURCES, 2), (TEMPLATES, 1)):
                for _ in range(random.randint(kind == TOOLS, most)):
                    items.append(self._item(kind, key, self._name(kind), self._words()))
        unique = {(i.kind, i.server, i.name): i for i in items}
        return list(unique.values())

    def _hidden_items(self, servers: list[str], wanted: list[Item]) -> list[Item]:
        """One more item of each kind, with a name that is made to get in the way."""
        return [self._hidden_item(kind, servers, wanted) for kind in (TOOLS, *KINDS)]

    def _hidden_item(self, kind: str, servers: list[str], wanted: list[Item]) -> Item:
        random = self.random
        server = random.choice(servers)
        alike = [item for item in wanted if item.kind == kind]
        name = self._name(kind)
        if alike and random.random() < 0.8:
            model = random.choice(alike)
            name, server = self._like(model, server, servers)
        return self._item(kind, server, name, self._words())

    def _like(self, model: Item, server: str, servers: list[str]) -> tuple[str, str]:
        """A name that is like one that is shown, and whose it is."""
        random, name = self.random, model.name
        pair = Pair(model.server, name)
        others = [key for key in servers if key != model.server] or [server]
        choices = [
            (name, random.choice(others)),
            (f"{name}s", server),
            (name[:-1] or name, server),
            (f"{name}x", model.server),
            (STRICT.hashed(STRICT.spell(pair), pair), server),
            (f"{name}_{self._digits(8)}", server),
            (f"{model.server}.{name}", server),
            (f"{model.server}__{name}", random.choice(others)),
        ]
        for key in others:  # the two run together in a spelling
            if model.server.startswith(f"{key}__"):
                choices += [(f"{model.server[len(key) + 2 :]}__{name}", key)] * 8
        return random.choice(choices)

    def _name(self, kind: str) -> str:
        random = self.random
        word, noun = random.choice(WORDS), random.choice(NOUNS)
        if kind == RESOURCES:
            return f"{random.choice(('note', 'mem', 'zoo'))}://{word}/{noun}"
        if kind == TEMPLATES:
            return f"{random.choice(('note', 'cave', 'zoo'))}://{word}/{{{noun}}}"
        forms = (word, f"{word}_{noun}", f"{word}-{noun}", f"{noun}.{word}", f"y__{word}")
        special = (f"{word}_{self._digits(8)}", "find_tools", f"delete_{noun}", f"{noun}/{word}")
        return random.choice(forms if random.random() < 0.8 else special)

    def _words(self) -> str:
        chosen = [self.random.choice((WORDS, NOUNS)) for _ in range(self.random.randint(2, 8))]
        return " ".join(self.random.choice(words) for words in chosen)

    def _digits(self, count: int) -> str:
        return "".join(self.random.choice(DIGITS) for _ in range(count))

    @staticmethod
    def _item(kind: str, server: str, name: str, words: str) -> Item:
        if kind == TOOLS:
            schema = {"type": "object", "properties": {words.split()[0]: {"type": "string"}}}
            made = {"name": name, "description": words, "inputSchema": schema}
        elif kind == PROMPTS:
            made = {"name": name, "description": words, "arguments": [{"name": "who"}]}
        elif kind == RESOURCES:
            made = {"uri": name, "name": words}
        else:
            made = {"uriTemplate": name, "name": words}
        return Item(kind, server, name, made)

    # -- grants

    def _grants(self, wanted: list[Item], items: list[Item]) -> tuple[PlannedGrant, ...]:
        random = self.random
        grants = [self._grant_for(item) for item in wanted]
        for item in random.sample(items, min(4, len(items))):  # of no use: expired, other kinds
            grants.append(replace(self._grant_for(item), is_live=False))
            kind = RESOURCES if item.kind == TEMPLATES else item.kind
            kinds = tuple(k for k in (TOOLS, PROMPTS, RESOURCES) if k != kind)
            grants.append(PlannedGrant(item.server, item.name, kinds))
        if random.random() < 0.3:
            grants.append(PlannedGrant("*", f"{random.choice(WORDS)}*", (TOOLS, PROMPTS)))
        if random.random() < 0.3:
            grants.append(PlannedGrant("*", "note://*", (RESOURCES,)))
        random.shuffle(grants)
        unique = {(one.server, one.pattern, frozenset(one.kinds)): one for one in grants}
        return tuple(unique.values())  # the same again would be the same grant, and replace it

    def _grant_for(self, item: Item) -> PlannedGrant:
        random, name = self.random, item.name
        kind = RESOURCES if item.kind == TEMPLATES else item.kind
        kinds = (kind,) if random.random() < 0.8 else (TOOLS, PROMPTS, RESOURCES)
        server = item.server if random.random() < 0.6 else "*"
        at = random.randrange(len(name))
        patterns = [name] * 5 + [f"{name[:at]}?{name[at + 1 :]}", f"{name[: max(2, at)]}*"]
        calls = random.randint(1, 5) if random.random() < 0.15 else None
        mode = random.choice((TokenMode.NONE, TokenMode.NONE, TokenMode.WINDOW, TokenMode.PRESENT))
        return PlannedGrant(server, random.choice(patterns), kinds, calls=calls, token_mode=mode)

    # -- canaries

    def _marked(self, world: World) -> World:
        """The world with canaries in all that is hidden: also in the names of some."""
        items = [item if world.is_visible(item) else self._mark(item) for item in world.items]
        marked = replace(world, items=tuple(items))
        if set(marked.visible) != set(world.visible):  # a pattern covers a name with a canary
            items = [i if world.is_visible(i) else self._mark(i, named=False) for i in world.items]
            marked = replace(world, items=tuple(items))
        shown = marked.known_servers  # a pattern for all servers may cover something of any
        return replace(marked, canaries=tuple(c for c in self.canaries if c not in shown))

    def canary(self) -> str:
        made = f"cnry{self._digits(10)}"
        self.canaries.append(made)
        return made

    def _mark(self, item: Item, *, named: bool = True) -> Item:
        name, told = item.name, dict(item.definition)
        if named and self.random.random() < 0.3:
            name = f"{name}{self.canary()}" if item.kind != RESOURCES else f"{name}/{self.canary()}"
        told[{RESOURCES: "uri", TEMPLATES: "uriTemplate"}.get(item.kind, "name")] = name
        told["title"] = self.canary()
        told["description"] = f"{told.get('description', '')} {self.canary()}"
        told["icons"] = [{"src": f"https://icons.example/{self.canary()}.png"}]
        told["_meta"] = {"x": self.canary()}
        if item.kind == TOOLS:
            extra = {self.canary(): {"type": "string", "description": self.canary()}}
            told["inputSchema"] = {"type": "object", "properties": extra}
            told["annotations"] = {"title": self.canary()}
        return Item(item.kind, item.server, name, told)
