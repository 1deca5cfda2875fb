"""HistoryWriter: writes connection history to the store in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from mcp_junction.errors import NotFound, StoreUnavailable
from mcp_junction.store.records import HistoryEvent
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.registry")

_PAUSE: Final = 0.05
_RETRY: Final = 0.5
_MOST: Final = 10_000


class HistoryWriter:
    """The one writer of history and standing."""

    def __init__(self, store: Store, tasks: TaskScope) -> None:
        self._store = store
        self._history: deque[tuple[str, HistoryEvent, dict[str, Any]]] = deque(maxlen=_MOST)
        self._standing: dict[str, dict[str, Any]] = {}
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks = tasks

    def begin(self) -> None:
        self._tasks.supervise("history", self._run)

    def tell(self, server_id: str, event: HistoryEvent, details: Mapping[str, Any]) -> None:
        """Something has happened to a server's connection."""
        self._history.append((server_id, event, dict(details)))
        self._more.set()

    def note(self, server_id: str, standing: Mapping[str, Any]) -> None:
        """How a server stands now."""
        self._standing.setdefault(server_id, {}).update(standing)
        self._more.set()

    async def flush(self, limit: float = 3.0) -> None:
        """Wait until all is written, but not for ever."""
        self._idle.clear()
        self._more.set()
        try:
            await asyncio.wait_for(self._idle.wait(), limit)
        except TimeoutError:
            log.warning("the store does not take what happened to servers")

    async def _run(self) -> None:
        self._more.set()  # there may be something left that this task failed with before
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                await self._write()
                if not (self._history or self._standing):
                    self._idle.set()
            except StoreUnavailable:
                self._more.set()
                await asyncio.sleep(_RETRY)
            await asyncio.sleep(_PAUSE)

    async def _write(self) -> None:
        while self._history:
            server_id, event, details = self._history[0]
            try:
                await self._store.history.add(server_id, event, details)
            except StoreUnavailable:
                raise
            except NotFound:
                pass  # the server has been removed meanwhile, and its history with it
            except Exception:  # one row that cannot be written must not keep back the others
                log.exception("a row of history is lost")
            self._history.popleft()
        standing, self._standing = self._standing, {}
        if standing:
            try:
                await self._store.servers.note(standing)
            except StoreUnavailable:
                self._standing = standing | self._standing
                raise
            except Exception:  # it is noted again when it changes
                log.exception("how servers stand cannot be stored")
