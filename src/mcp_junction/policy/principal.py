"""Principal: on whose behalf a call is made. Not how that was found out."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Role(StrEnum):
    OWNER = "owner"
    ADMIN = "admin"
    ORCHESTRATOR = "orchestrator"
    AGENT = "agent"
    VIEWER = "viewer"


class Principal(msgspec.Struct, frozen=True):
    """Someone a call is made for."""

    id: str
    role: Role
    key: str = ""
    """The id of the key that was shown: what was opened with one key ends with it."""

    def is_same(self, other: Principal) -> bool:
        """Whether both are one principal, whichever keys were shown."""
        return self is other or (self.id == other.id and self.role is other.role)


LOCAL_OWNER: Final = Principal("local-owner", Role.OWNER)
"""The person who started the process: everything it can reach is theirs already."""
