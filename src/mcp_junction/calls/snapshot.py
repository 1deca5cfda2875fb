"""Snapshot: what a call sees of the world. Immutable; a change makes the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_junction.catalog.view import Catalog
from mcp_junction.upstream.outcome import Outcome

if TYPE_CHECKING:
    from mcp_junction.calls.call import Call

Handler = Callable[["Call"], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One generation of everything the data plane reads."""

    catalog: Catalog
    handle: Handler

    @property
    def generation(self) -> int:
        return self.catalog.generation
