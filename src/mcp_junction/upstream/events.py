"""ServerChanged: the one event for a change of a server; and ServerListeners: who hears of servers.

Sinks are plain functions, listed where the program is put together and passed to what emits. They
run one after the other in the step that made the change, so the catalog is never behind the set of
servers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from mcp_junction.protocol.frames import Frame
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.state import ServerState

if TYPE_CHECKING:
    from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.telemetry")


class ServerChange(StrEnum):
    """What has changed about a server."""

    ADDED = "added"  # it is in the set, after the others, and not started
    STARTING = "starting"  # it is about to be connected to
    STATE = "state"  # its ServerState
    LISTS = "lists"  # it announces other lists, by ``method``
    RENEWED = "renewed"  # it lost its log level and subscriptions, and has to be told them again
    REDEFINED = "redefined"  # a setting that needs no new connection
    RENAMED = "renamed"  # its key, which was ``previous``
    REPLACED = "replaced"  # it is reached another way: ``server`` is a new Upstream
    STOPPING = "stopping"  # it takes no more calls, and is disconnected when those it has are done
    STOPPED = "stopped"  # it is disconnected, and nobody connects to it again
    TOOLS = "tools"  # other tools of it may be shown than before
    REMOVED = "removed"  # it is in the set no more


class ServerChanged(msgspec.Struct, frozen=True):
    """A server has changed."""

    server: Upstream
    change: ServerChange
    state: ServerState
    detail: str = ""
    """What is wrong with it, in words."""
    method: str | None = None
    previous: str = ""
    source: Upstream | None = None
    """The link that it is about, where that may be one of the server's extra links."""


ServerSink = Callable[[ServerChanged], None]
ConnectStep = Callable[["Upstream"], Awaitable[None]]


class Inbox(Protocol):
    """Takes what servers say that belongs to no call."""

    def receive(self, upstream: Upstream, frame: Frame) -> None:
        """Take a notification."""

    async def ask(self, upstream: Upstream, frame: Frame) -> Outcome:
        """Answer a request of the server's."""

    def count_unattributed(self, method: str) -> None:
        """Count a message that was dropped or refused, because its session is unknown."""


class ServerListeners(NamedTuple):
    """Who hears of a server. Its extra links have the same."""

    sink: ServerSink
    """Is shown every change."""
    steps: tuple[ConnectStep, ...]
    """Are run in this order once a server has greeted us; then it is CONNECTED. They may raise
    ServerError."""
    inbox: Inbox


def log_change(event: ServerChanged) -> None:
    """Write a change of state to the log, for whoever has it hold everything."""
    if event.change is ServerChange.STATE:
        more = f": {event.detail}" if event.detail else ""
        log.debug("server %r is %s%s", event.server.key, event.state, more)
