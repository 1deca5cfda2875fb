"""ServerIds: leads from a server's key in the catalog to the id that grants name it by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mcp_junction.upstream.upstream import Upstream


class ServerIds(Mapping[str, str]):
    """The id of every server, by its key, as they are now. A rename changes the key alone."""

    def __init__(self) -> None:
        self.servers: Mapping[str, Upstream] = {}
        """All servers; Junction sets it."""

    def __getitem__(self, key: str) -> str:
        return self.servers[key].definition.id

    def __iter__(self) -> Iterator[str]:
        return iter(self.servers)

    def __len__(self) -> int:
        return len(self.servers)
