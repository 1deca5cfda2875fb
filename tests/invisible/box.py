"""Box: a server over HTTP that offers what a world says, and can be made to misbehave."""

import asyncio
import json
from typing import Any

from tests.http.origin import Origin, Visit
from tests.invisible.worlds import PROMPTS, RESOURCES, TEMPLATES, TOOLS, World

LISTS = {
    "tools/list": (TOOLS, "tools"),
    "prompts/list": (PROMPTS, "prompts"),
    "resources/list": (RESOURCES, "resources"),
    "resources/templates/list": (TEMPLATES, "resourceTemplates"),
}
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
}


class Box(Origin):
    """One server of a world."""

    def __init__(self, world: World, key: str, instructions: str) -> None:
        super().__init__(self._handle_visit)
        self.key = key
        self.offers = {kind: world.of(key, kind) for kind, _ in LISTS.values()}
        self.instructions = instructions
        self.is_failing = False
        self.failing: set[str] = set()
        """The tools that fail when they are called."""
        self.standing: list[Visit] = []

    def say(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification that belongs to no call."""
        for visit in self.standing:
            if not visit.gone.is_set():
                visit.event({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def _handle_visit(self, visit: Visit) -> None:
        if visit.method == "GET":
            visit.stream()
            visit.chunk(b": here\n\n")
            self.standing.append(visit)
        elif visit.method != "POST":
            visit.answer(200)
        elif self.is_failing:
            visit.answer(500)
        elif "id" not in visit.message:
            visit.accepted()
        elif visit.rpc == "tools/call" and visit.message["params"]["name"] in self.failing:
            visit.answer(500)
        else:
            answer = self._answer(visit.rpc, visit.message.get("params") or {})
            answer = {"jsonrpc": "2.0", "id": visit.message["id"], **answer}
            visit.json(answer, mcp_session_id="s")

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return {
                "result": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": CAPABILITIES,
                    "serverInfo": {"name": self.key, "version": "1"},
                    "instructions": self.instructions,
                }
            }
        if method in LISTS:
            kind, member = LISTS[method]
            return {"result": {member: self.offers[kind]}}
        if method in ("ping", "resources/subscribe", "resources/unsubscribe"):
            return {"result": {}}
        if method == "tools/call":
            text = json.dumps(params.get("arguments") or {})
            return {"result": {"content": [{"type": "text", "text": text}]}}
        if method == "prompts/get":
            return {"result": {"messages": []}}
        if method == "resources/read":
            return {"result": {"contents": [{"uri": params["uri"], "text": "read"}]}}
        if method == "completion/complete":
            return {"result": {"completion": {"values": ["done"]}}}
        return {"error": {"code": -32601, "message": "no such method"}}

    async def restart(self) -> None:
        """End and come back, as a program that crashes."""
        await self.close()
        self.standing.clear()
        await asyncio.sleep(0)
        await self.listen()
