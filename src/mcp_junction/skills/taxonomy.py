"""Taxonomy: the skills we begin with. An operator may change all of them."""

from __future__ import annotations

from importlib import resources

import msgspec


class Skill(msgspec.Struct, frozen=True):
    """Something that tools can be good for."""

    id: str
    name: str
    description: str


def taxonomy() -> list[Skill]:
    """The skills that come with the program."""
    file = resources.files("mcp_junction.skills").joinpath("taxonomy.json")
    return msgspec.json.decode(file.read_bytes(), type=list[Skill])
