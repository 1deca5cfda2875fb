"""FileWatch: reloads the config file when it changes, or on request.

The file is polled: editors replace files in many ways, and its time, inode and size say enough. It
is read once it has stopped changing. A file that cannot be used changes nothing, and is reported in
the log and on the bus.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

import msgspec

from mcp_junction.config.load import Config
from mcp_junction.errors import ConfigError, JunctionError, StoreUnavailable
from mcp_junction.registry.config_file import Reloaded
from mcp_junction.registry.registry import Registry
from mcp_junction.tasks import wait_until_set
from mcp_junction.telemetry.bus import Bus

log = logging.getLogger("mcp_junction.registry")

POLL_EVERY: Final = 1.0

Fingerprint = tuple[int, int, int] | None


class FileWatch:
    """Watches one config file, and has the registry reload it. ``run`` is its task."""

    def __init__(
        self,
        registry: Registry,
        bus: Bus,
        path: str,
        read: Callable[[], Config],
        *,
        polls: bool = True,
        every: float = POLL_EVERY,
    ) -> None:
        self._registry = registry
        self._bus = bus
        self._path = path
        self._read = read
        self._polls = polls
        self._every = every
        self._requested = asyncio.Event()
        self._store_is_away = False
        """Whether the last reload failed because the store was away."""

    def reload_soon(self) -> None:
        """Have the file read again soon, changed or not."""
        self._requested.set()

    async def run(self) -> None:
        seen = self._fingerprint()
        while True:
            is_requested = await self._wait()
            fingerprint = self._fingerprint()
            if not is_requested and (fingerprint == seen or not self._polls):
                continue
            if not is_requested and fingerprint != await self._fingerprint_later():
                continue  # it is still being written
            seen = fingerprint
            if not await self._reload():
                self._requested.set()
                await asyncio.sleep(self._every)

    async def _reload(self) -> bool:
        """Reload the file, or report why not; returns whether to wait for the next change."""
        was_store_away, self._store_is_away = self._store_is_away, False
        try:
            config = await asyncio.to_thread(self._read)
            done = await self._registry.reload(config)
        except StoreUnavailable as error:
            self._store_is_away = True
            if not was_store_away:
                self._report_rejection(f"{error}; it is tried again")
            return False
        except ConfigError as error:
            log.error("%s\nnothing was changed", error)
            problems = [
                {"path": p.path, "code": p.code.value, "message": p.message} for p in error.problems
            ]
            self._bus.publish("config.rejected", {"problems": problems})
        except JunctionError as error:
            self._report_rejection(str(error))
        except Exception:  # whatever it was: the next file may be a better one
            log.exception("the config file met a fault of Junction's own")
            self._report_rejection("an internal error of Junction")
        else:
            _report(done)
        return True

    def _report_rejection(self, why: str) -> None:
        log.error("the config file was not taken over: %s", why)
        self._bus.publish("config.rejected", {"problems": [{"message": why}]})

    async def _wait(self) -> bool:
        """Wait for the next poll; returns whether a reload was requested."""
        is_requested = await wait_until_set(self._requested, self._every)
        self._requested.clear()
        return is_requested

    async def _fingerprint_later(self) -> Fingerprint:
        await asyncio.sleep(min(self._every, 0.1))
        return self._fingerprint()

    def _fingerprint(self) -> Fingerprint:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def _report(done: Reloaded) -> None:
    """Log what a new file changed, and which settings need a restart."""
    servers = msgspec.to_builtins(done)
    settings = servers.pop("needs_restart")
    log.warning("the config file was taken over: %s", msgspec.json.encode(servers).decode())
    if settings:
        log.warning(
            "settings that are read at the start only have changed in the config file: %s;"
            " restart Junction to apply them",
            ", ".join(settings),
        )
