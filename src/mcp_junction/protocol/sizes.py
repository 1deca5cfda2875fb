"""Sizes: how long a line, a page of a list, ``clientInfo`` and ``capabilities`` may be."""

from __future__ import annotations

from typing import Final

DEFAULT_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one line."""
MAX_CLIENT_INFO: Final = 16 * 1024
"""Bytes of ``clientInfo``, and of a client's ``capabilities``."""
DEFAULT_PAGE_SIZE: Final = 10_000
"""Items of one page."""
