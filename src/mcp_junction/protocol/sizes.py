"""Sizes: how long a line and a page of a list may be when nobody says otherwise."""

from __future__ import annotations

from typing import Final

DEFAULT_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one line."""
DEFAULT_PAGE_SIZE: Final = 10_000
"""Items of one page."""
