"""Trouble: what happens around hidden things while the agent asks and listens.

Only the gateway that has them is troubled. The agent must hear nothing of it, nor notice it after.
"""

from random import Random
from typing import Any

from tests.invisible.twins import AGENT, CHANGED, Gateway
from tests.invisible.worlds import KINDS, RESOURCES, TOOLS, Item
from tests.plugin_rest import CALL, SERVERS

SETTINGS = "/api/v1/mcp/tools"
FLOOD = 30


class Trouble:
    """Troubles one gateway."""

    def __init__(self, random: Random, gateway: Gateway) -> None:
        self.random = random
        self.gateway = gateway
        self.world = gateway.world
        known = self.world.known_servers
        self.hidden_keys = [key for key in self.world.servers if key not in known]
        self.canary = self.world.canaries[-1]

    async def all(self) -> None:
        """Do everything, in some order."""
        acts = [
            self.call_hidden,
            self.change_lists,
            self.change_what_is_disabled,
            self.flood,
            self.fail_and_return,
            self.register_and_remove,
            self.administer,
        ]
        self.random.shuffle(acts)
        for act in acts:
            await act()

    def _hidden(self, kind: str) -> list[Item]:
        return [item for item in self.world.hidden if item.kind == kind]

    async def call_hidden(self) -> None:
        """Others use what is hidden, and it fails again and again."""
        served = self.gateway.served
        for item in self._hidden(TOOLS)[:4]:
            self.gateway.boxes[item.server].failing.add(item.name)
            body = {"name": item.name, "server_id": item.server, "arguments": {}}
            for _ in range(7):
                await served.client("other").post(CALL, json=body)
            self.gateway.boxes[item.server].failing.discard(item.name)
            await served.client("admin").post(CALL, json=body)

    async def change_lists(self) -> None:
        """Hidden items change, go, and others come: the agent sees all that is left as it was."""
        visible = self.world.visible
        for key in self.world.servers:
            for kind in KINDS:
                shown = [i.definition for i in visible if i.server == key and i.kind == kind]
                kept = [one for one in self.gateway.boxes[key].offers[kind] if one not in shown]
                if not kept:
                    continue
                changed = [{**one, "description": f"other {self.canary}"} for one in kept[1:]]
                offers = _merge(self.gateway.boxes[key].offers[kind], shown, changed)
                await self.gateway.change(key, kind, offers)

    async def change_what_is_disabled(self) -> None:
        """A tool that nobody can use changes: its server says so, and no list differs."""
        items = [item for item in self._hidden(TOOLS) if "/" not in item.name]
        if not items:
            return
        item, served = self.random.choice(items), self.gateway.served
        path = f"{SETTINGS}/{item.server}/{item.name}"
        await served.client().patch(path, json={"enabled": False})
        offers = self.gateway.boxes[item.server].offers[TOOLS]
        changed = [
            {**one, "description": f"again {self.canary}"} if one["name"] == item.name else one
            for one in offers
        ]
        await self.gateway.change(item.server, TOOLS, changed)

    async def flood(self) -> None:
        """Hidden servers say more than anybody wants to know."""
        for key in self.hidden_keys:
            box = self.gateway.boxes[key]
            for _ in range(FLOOD):
                for kind in ("tools", "prompts", "resources"):
                    box.say(CHANGED.format(kind))
                box.say("notifications/message", {"level": "emergency", "data": self.canary})
            for item in self._hidden(RESOURCES):
                self.gateway.boxes[item.server].say(
                    "notifications/resources/updated", {"uri": item.name}
                )
            await self.gateway.announce(key, TOOLS)

    async def fail_and_return(self) -> None:
        """A hidden server fails, ends and comes back."""
        for key in self.hidden_keys[:1]:
            box, served = self.gateway.boxes[key], self.gateway.served
            box.is_failing = True
            await served.client("other").post(CALL, json={"name": "x", "server_id": key})
            box.is_failing = False
            await served.client().post(f"{SERVERS}/{key}/disconnect")
            await box.restart()
            await served.client().post(f"{SERVERS}/{key}/connect")
            await served.until(key, "CONNECTED")

    async def register_and_remove(self) -> None:
        """A server comes and goes."""
        served = self.gateway.served
        url = self.gateway.boxes[self.hidden_keys[0]].url
        body: dict[str, Any] = {"name": f"late{self.canary}", "transport_type": "HTTP"}
        body["connection_config"] = {"url": url}
        assert (await served.client().post(SERVERS, json=body)).status_code == 201
        await served.until(body["name"], "CONNECTED")
        await served.client().delete(f"{SERVERS}/{body['name']}")

    async def administer(self) -> None:
        """An administrator looks at hidden tools, classifies and refreshes them, and grants."""
        served = self.gateway.served
        for key in self.hidden_keys:
            await served.client().post(f"{SERVERS}/{key}/tools/classify")
            await served.client().post(f"{SERVERS}/{key}/tools/refresh")
        await served.registry.skills.classifier.wait_until_done()
        for role in ("admin", "other"):
            await served.client(role).post("/api/v1/search", json={"query": "penguin"})
            await served.client(role).get("/api/v1/aggregator/tools")
        governance = served.junction.governance
        assert governance is not None
        assert governance.sync is not None
        await governance.sync.refresh(AGENT, "other", "nobody")


def _merge(
    old: list[dict[str, Any]], shown: list[dict[str, Any]], changed: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What is shown in its order, and the rest before, between and after it."""
    places = iter(changed)
    found = []
    for one in old:
        if one in shown:
            found.append(one)
        else:
            found += [next(places, None)]
    return [one for one in found if one is not None]
