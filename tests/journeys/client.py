"""The program as a client sees it: a process, JSON lines in, JSON lines out.

Every line is kept as it came, every wait has a bound, and whatever stands on stdout that is not a
frame fails the test.
"""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOUND = 30.0  # seconds; a wait this long has failed
LARGEST = 64 * 1024 * 1024
VERSION = "2025-11-25"

Message = dict[str, Any]


class Client:
    """A running program, and all it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[bytes] = []
        self.messages: list[Message] = []
        self.strays: list[bytes] = []
        self.errors = ""
        self._ids = itertools.count(1)
        self._read = 0
        self._news = asyncio.Event()
        self._readers = [
            asyncio.create_task(self._read_stdout()),
            asyncio.create_task(self._read_stderr()),
        ]
        for reader in self._readers:
            reader.add_done_callback(lambda _: self._news.set())

    @classmethod
    async def start(
        cls,
        command: list[str],
        env: dict[str, str],
        cwd: Path | None = None,
        stderr: int = asyncio.subprocess.PIPE,
    ) -> "Client":
        """Run a command; what it writes to a ``stderr`` of somebody else's is not read here."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=pipe,
            stdout=pipe,
            stderr=stderr,
            env=env,
            cwd=cwd,
            limit=LARGEST,
            start_new_session=True,
        )
        return cls(process)

    # -- what it says

    async def _read_stdout(self) -> None:
        while line := await self.process.stdout.readline():
            self.lines.append(line)
            try:
                message = json.loads(line)
                assert message["jsonrpc"] == "2.0"
                assert line.endswith(b"\n")
            except (ValueError, TypeError, KeyError, AssertionError):
                self.strays.append(line)
                message = {}
            self.messages.append(message)
            self._news.set()

    async def _read_stderr(self) -> None:
        while self.process.stderr and (data := await self.process.stderr.read(65536)):
            self.errors += data.decode("utf-8", "replace")
            self._news.set()

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until ``found()`` gives something, and give that back."""
        try:
            async with asyncio.timeout(BOUND):
                while not (thing := found()):
                    ended = all(reader.done() for reader in self._readers)
                    assert not ended, f"the program has ended; {self.account()}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"it did not come within {BOUND} s; {self.account()}") from None
        return thing

    def account(self) -> str:
        lines = b"".join(self.lines[-20:]).decode("utf-8", "replace")
        return f"stdout:\n{lines}\nstderr:\n{self.errors}"

    def first(self, matches: Callable[[Message], bool], start: int = 0) -> Message | None:
        return next((m for m in self.messages[start:] if matches(m)), None)

    # -- to it

    def send_line(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")

    def send(self, method: str, params: Any = None, **members: Any) -> None:
        message = {"jsonrpc": "2.0", **members, "method": method}
        if params is not None:
            message["params"] = params
        self.send_line(json.dumps(message, ensure_ascii=False).encode())

    def ask(self, method: str, params: Any = None) -> int:
        """Send a request without waiting; its id."""
        frame_id = next(self._ids)
        self.send(method, params, id=frame_id)
        return frame_id

    def ask_raw(self, method: str, params: bytes) -> int:
        frame_id = next(self._ids)
        frame = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}'
        self.send_line(frame % (frame_id, method.encode(), params))
        return frame_id

    def respond(self, question: Message, result: Any) -> None:
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        self.send_line(json.dumps(answer).encode())

    # -- from it

    async def answer(self, frame_id: Any) -> Message:
        """The answer to a request."""
        return await self.until(
            lambda: self.first(lambda m: "method" not in m and m.get("id") == frame_id)
        )

    async def answer_line(self, frame_id: Any) -> bytes:
        answer = await self.answer(frame_id)
        return self.lines[self.messages.index(answer)]

    async def heard(self, method: str, start: int = 0) -> Message:
        """A notification or a request of the program's, among the messages from ``start`` on."""
        return await self.until(lambda: self.first(lambda m: m.get("method") == method, start))

    def heard_so_far(self, method: str) -> list[Message]:
        return [m for m in self.messages if m.get("method") == method]

    async def complaint(self, words: str) -> str:
        """Wait until stderr holds these words."""
        return await self.until(lambda: self.errors if words in self.errors else None)

    async def request(self, method: str, params: Any = None) -> Message:
        return await self.answer(self.ask(method, params))

    async def result(self, method: str, params: Any = None) -> Any:
        answer = await self.request(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None) -> Message:
        answer = await self.request(method, params)
        assert "error" in answer, answer
        return answer["error"]

    # -- as MCP

    async def introduce(
        self, name: str = "a-test", capabilities: Message | None = None, version: str = VERSION
    ) -> Message:
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": name, "version": "1"},
        }
        result = await self.result("initialize", params)
        self.send("notifications/initialized")
        return result

    async def tools(self) -> dict[str, Message]:
        """Every tool by its name, in order, page after page."""
        found: dict[str, Message] = {}
        cursor: Message = {}
        while True:
            page = await self.result("tools/list", cursor)
            for tool in page["tools"]:
                assert tool["name"] not in found
                found[tool["name"]] = tool
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": page["nextCursor"]}

    def begin(self, tool: str, token: Any = None, **arguments: Any) -> int:
        """Call a tool without waiting; the id of the call."""
        params: Message = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.ask("tools/call", params)

    async def under_way(self, tool: str, **arguments: Any) -> int:
        """Call a tool that reports when it has begun, and wait for that."""
        token = f"under way {len(self.messages)} {next(self._ids)}"
        frame_id = self.begin(tool, token, **arguments)
        await self.until(
            lambda: self.first(lambda m: m.get("params", {}).get("progressToken") == token)
        )
        return frame_id

    async def up(self, tool: str) -> None:
        """Wait until a tool answers, however short the time the program gives its server."""
        async with asyncio.timeout(BOUND):
            while "error" in await self.answer(self.begin(tool)):
                pass

    async def told(self, tool: str, **arguments: Any) -> str:
        """The words a tool said."""
        answer = await self.answer(self.begin(tool, **arguments))
        assert "result" in answer, answer
        return answer["result"]["content"][0]["text"]

    async def read(self, tool: str, **arguments: Any) -> Any:
        """What a tool said, as JSON."""
        return json.loads(await self.told(tool, **arguments))

    async def refused(self, tool: str, **arguments: Any) -> Message:
        """The error a call ended with."""
        answer = await self.answer(self.begin(tool, **arguments))
        assert "error" in answer, answer
        return answer["error"]

    # -- its end

    def close_stdin(self) -> None:
        self.process.stdin.close()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    async def ended(self) -> int:
        """Wait for it; its exit status."""
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*self._readers)
            return await self.process.wait()

    async def end(self) -> int:
        """Close its input and wait for it."""
        self.close_stdin()
        return await self.ended()

    async def kill(self) -> None:
        """Whatever it does, it does no longer, nor does what it started in its own session."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.wait(self._readers)
