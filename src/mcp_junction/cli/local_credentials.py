"""LocalCredentials: credentials of the stdio mode and of commands that start servers themselves.

The store in the data directory is opened when a server first asks for a sign-in; several processes
share it. The pages are on a port of this machine that is open only while somebody may sign in, and
their links hold a word that only this process knows.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote

from mcp_junction.config.load import Config
from mcp_junction.credentials.credentials import Credentials
from mcp_junction.credentials.kinds import StoredSource
from mcp_junction.credentials.sign_ins import SignIns
from mcp_junction.credentials.source import CredentialSource
from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.store.credentials import CredentialTables

if TYPE_CHECKING:
    from mcp_junction.listener.http.sign_in_pages import SignInPages

_LOOK: Final = 1.0
_OPEN_FOR: Final = 600.0
_MAX_HEAD: Final = 16_384
_HERE: Final = "127.0.0.1"


class LocalCredentials(Credentials):
    """Credentials whose pages are on a port of this machine."""

    def __init__(self, config: Config, stack: AsyncExitStack, data_dir: str | None = None) -> None:
        super().__init__(self._open_store, config.settings.name)
        self._stack = stack
        self._data_dir = data_dir
        self._opening = asyncio.Lock()
        self._pages: SignInPages | None = None
        self._word = secrets.token_urlsafe(16)
        self._listening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        definitions = [one for one in config.servers if one.transport != "stdio"]
        self.sign_ins = SignIns(self, lambda: definitions)

    async def _open_store(self) -> CredentialTables:
        async with self._opening:
            if self._tables is None:
                from mcp_junction.cli.storage import open_storage  # late: it loads a lot

                given = argparse.Namespace(data_dir=self._data_dir, store=None, config=None)
                storage = await self._stack.enter_async_context(open_storage(given))
                self._tables = storage.store.credentials
        return self._tables

    def link_for(self, source: CredentialSource) -> str:
        """Open the port for the pages, if it is closed, and make the link."""
        if isinstance(source, StoredSource):
            self._listen()
        link = super().link_for(source)
        return f"{link}?t={self._word}" if link else ""

    def note_state(self, source: CredentialSource) -> None:
        super().note_state(source)
        if source.is_signed_out and (self._watching is None or self._watching.done()):
            self._watching = self.tasks.spawn(self._watch())

    async def _watch(self) -> None:
        """Take over what other processes store, while somebody has to sign in."""
        while waiting := [one for one in self._sources.values() if one.is_signed_out]:
            await asyncio.sleep(_LOOK)
            for source in waiting:
                await source.reload()

    async def close(self) -> None:
        for task in (self._listening, self._watching):
            if task is not None:
                task.cancel()
        await super().close()

    # -- the pages

    def _listen(self) -> None:
        if self._listening is not None and not self._listening.done():
            return
        listener = socket.create_server((_HERE, 0))
        self.public_url = f"http://{_HERE}:{listener.getsockname()[1]}"
        self._listening = self.tasks.spawn(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        from mcp_junction.listener.http.pages import PageSessions
        from mcp_junction.listener.http.sign_in_pages import SignInPages

        url = self.public_url
        sessions = PageSessions(self._identify, None, _NoSessions(), lambda: url)
        name = self.client_name
        self._pages = SignInPages(self.sign_ins, sessions, name, is_link_secret=True)
        server = await asyncio.start_server(self._answer, sock=listener, limit=_MAX_HEAD)
        async with server:
            await asyncio.sleep(_OPEN_FOR)
        self.public_url = ""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a browser, and close."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            pairs = (line.partition(":") for line in head[1:] if line)
            headers = [(name.lower().encode(), value.strip().encode()) for name, _, value in pairs]
            if dict(headers).get(b"host") == self.public_url.removeprefix("http://").encode():
                path, _, query = target.partition("?")
                scope = {
                    "path": unquote(path), "method": method, "headers": headers,
                    "query_string": query.encode(),
                }  # fmt: skip
                assert self._pages is not None, "it is made before we listen"
                await self._pages(scope, _receive_nothing, _sender(writer))
            await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever it was is gone, or no browser
        finally:
            writer.close()

    def _identify(self, headers: dict[bytes, bytes], scope: dict[str, Any]) -> Principal | None:
        """Whoever has the link is the owner: it is shown to nobody else."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("t", [""])[0]
        return LOCAL_OWNER if hmac.compare_digest(given.encode(), self._word.encode()) else None


class _NoSessions:
    """Signs nothing: the pages of this process know nobody but the owner."""

    def sign(self, message: bytes, purpose: str) -> bytes:
        return b""

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool:
        return False


async def _receive_nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b""}


def _sender(writer: asyncio.StreamWriter) -> Callable[[dict[str, Any]], Any]:
    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            lines = [b"HTTP/1.1 %d X" % message["status"], b"connection: close"]
            lines += [name + b": " + value for name, value in message["headers"]]
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        else:
            writer.write(message.get("body", b""))

    return send


@asynccontextmanager
async def open_local_credentials(
    config: Config, data_dir: str | None = None
) -> AsyncIterator[LocalCredentials]:
    """Make the credentials for the servers of a config; what they open is closed with them."""
    async with AsyncExitStack() as stack:
        credentials = LocalCredentials(config, stack, data_dir)
        try:
            yield credentials
        finally:
            await credentials.close()
