"""Settings as they are shown: each with its default and its source, secrets masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcp_junction.config.merge import CHOICES, RANGES, RATES
from mcp_junction.config.settings import DEFAULTS, Settings, variable_of
from mcp_junction.redaction.connections import mask_url
from mcp_junction.redaction.texts import MASK

DEFAULT: Final = "default"
_OUTGOING: Final = (
    "store", "vector_store", "embedding_base_url", "llm_base_url", "otlp_endpoint", "webhook_url",
)  # fmt: skip
"""Addresses that Junction connects to: they may hold a credential."""
_PER_PROCESS: Final = "counted in each process by itself"
_NOTES: Final = dict.fromkeys(RATES, _PER_PROCESS)


class ShownSetting(msgspec.Struct):
    """A setting: its value, its default, and where the value comes from."""

    name: str
    value: Any
    default: Any
    source: str
    """``default``, ``file``, ``.env``, ``environment`` or ``command line``."""
    place: str
    """The key, variable or option there that gives it; empty for a default."""
    variable: str
    """The environment variable by which it can be set."""
    allowed: str
    """Which values it may have, where there is a rule beyond its type."""
    needs_restart: bool = True
    """Whether a change takes effect at the next start only, as for all settings today."""
    note: str = ""


def show_settings(settings: Settings, sources: Mapping[str, str]) -> list[ShownSetting]:
    """Describe all settings; ``sources`` are those of ``merge_settings``."""
    return [
        ShownSetting(
            name,
            _mask(name, getattr(settings, name)),
            getattr(DEFAULTS, name),
            *_split_place(sources.get(name, "")),
            variable_of(name),
            _describe_allowed(name),
            note=_NOTES.get(name, ""),
        )
        for name in Settings._fields
    ]


def _mask(name: str, value: Any) -> Any:
    if (name == "webhook_secret" or name.endswith("_api_key")) and value:
        return MASK
    is_url = name in _OUTGOING and value and not value.startswith("sqlite")
    return mask_url(value) if is_url else value


def _split_place(place: str) -> tuple[str, str]:
    """Return the kind of a source, and what in it gives the value."""
    if not place:
        return DEFAULT, ""
    if place.startswith("$"):
        return "file", place.removeprefix("$.")
    if place.startswith("--"):
        return "command line", place
    kind, _, name = place.partition(" ")
    return kind, name


def _describe_allowed(name: str) -> str:
    if name in RANGES:
        return "{:,} to {:,}".format(*RANGES[name])
    return "CALLS/SECONDS" if name in RATES else ", ".join(CHOICES.get(name, ()))
