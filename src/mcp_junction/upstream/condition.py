"""Condition: why a connected server counts as CONNECTED or as DEGRADED. Not who finds that out."""

from __future__ import annotations

from mcp_junction.upstream.state import ServerState


class Condition:
    """What is known of a server whose link is up, beside that it is."""

    __slots__ = ("is_well", "reaches", "shortfall")

    def __init__(self) -> None:
        self.is_well = True
        """What its checks and its calls say."""
        self.shortfall = ""
        """Which of its lists were not read to the end, and why; empty when all were."""

        self.reaches: frozenset[str] = frozenset()
        """The Junctions that its lists lead to."""

    @property
    def state(self) -> ServerState:
        """The state that follows from it while the link is up."""
        has_all = self.is_well and not self.shortfall
        return ServerState.CONNECTED if has_all else ServerState.DEGRADED
