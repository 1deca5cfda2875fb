"""Stands in for an LLM: answers as OpenAI-compatible servers or Anthropic do, well or badly."""

import asyncio
import json
from typing import Any

SKILL = "finance"
"""What a good answer says of every tool; offline nobody would."""


class LLMServer:
    """One endpoint. ``moods`` has the mood of each request, the last one goes on."""

    def __init__(self, provider: str, *moods: str) -> None:
        self.provider = provider
        self.moods = list(moods or ("good",))
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.underway = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> "LLMServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.gate.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.underway += 1
        self.most = max(self.most, self.underway)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.requests.append((first, headers, body))
            mood = self.moods.pop(0) if len(self.moods) > 1 else self.moods[0]
            await self.gate.wait()
            await asyncio.sleep(0)
            writer.write(await self._answer(mood, body))
            await writer.drain()
        finally:
            self.underway -= 1
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, mood: str, body: dict[str, Any]) -> bytes:
        if mood == "silent":
            await asyncio.Event().wait()
        if mood == "refuses":
            return _page(b'{"error": "the secret is sk-test-0123456789"}', "429 Too Many")
        if mood == "redirects":
            return b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
        if mood == "garbage":
            return _page(b"\xff not json")
        return _page(json.dumps(self._wrap(_verdicts(mood, body))).encode())

    def _wrap(self, said: Any) -> dict[str, Any]:
        if self.provider == "openai":
            text = said if isinstance(said, str) else json.dumps(said)
            return {"choices": [{"message": {"role": "assistant", "content": text}}]}
        return {"content": [{"type": "tool_use", "name": "record_skills", "input": said}]}


def _verdicts(mood: str, body: dict[str, Any]) -> Any:
    asked = next(one for one in body["messages"] if one["role"] == "user")["content"]
    tools = json.loads(asked)["tools"]
    if mood == "prose":
        return "Sure! Here are the skills of your tools."
    skill = "no-such-skill" if mood == "unknown skills" else SKILL
    shift = 1000 if mood == "wrong ids" else 0
    given = [
        {"id": one["id"] + shift, "skills": [{"id": skill, "confidence": 0.8}]} for one in tools
    ]
    if mood == "too sure":
        given = [{**one, "skills": [{"id": SKILL, "confidence": 7}]} for one in given]
    return {"tools": given[:-1] if mood == "one missing" else given}


def _page(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
