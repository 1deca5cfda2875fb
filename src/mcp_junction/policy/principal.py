"""Principal: on whose behalf a call is made. Not how that was found out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone a call is made for."""

    id: str
    role: Role


LOCAL_OWNER: Final = Principal("local-owner", Role.OWNER)
"""The person who started the process: everything it can reach is theirs already."""
