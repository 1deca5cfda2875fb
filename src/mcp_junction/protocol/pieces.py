"""Pieces: bytes that come in parts, kept at little more than their size however small these are.

Whoever sends can cut as it likes: a body in chunks of two bytes would take twenty times its size in
a list. Readers keep a list, and have small parts merged whenever it has grown by MANY.
"""

from __future__ import annotations

from typing import Final

MANY: Final = 64
"""After how many parts to look; a power of two, so that a mask tells when."""
_SMALL: Final = 64 * 1024


def merge_small(parts: list[bytes], joint: bytes = b"") -> None:
    """Make the last MANY parts one, unless they are large; ``joint`` is what stands between."""
    last = parts[-MANY:]
    if sum(map(len, last)) < _SMALL:
        parts[-MANY:] = [joint.join(last)]
