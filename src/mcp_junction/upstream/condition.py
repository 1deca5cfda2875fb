"""Condition: the facts that make a connected server CONNECTED or DEGRADED.

It only keeps them: health checks and discovery set them.
"""

from __future__ import annotations

from mcp_junction.upstream.state import ServerState


class Condition:
    """What is known of a server while its link is up."""

    __slots__ = ("is_well", "reachable_junctions", "shortfall")

    def __init__(self) -> None:
        self.is_well = True
        """Whether it is healthy by its checks and its calls."""
        self.shortfall = ""
        """Which of its lists were not read to the end, and why; empty when all were."""
        self.reachable_junctions: frozenset[str] = frozenset()
        """The ids of the Junctions behind it, as its lists name them."""

    @property
    def state(self) -> ServerState:
        """The state that follows from it while the link is up."""
        has_all = self.is_well and not self.shortfall
        return ServerState.CONNECTED if has_all else ServerState.DEGRADED
