"""Seals: makes and checks the MACs of audit pages, and the tags of their rows.

A page is what one flush stores, a row per line. A row has a tag: 16 bytes of keyed BLAKE2b over its
line and all lines before it in the page. The page's MAC is HMAC-SHA-256 over the MAC of the page
before it, its place and its last tag; the first page follows the *genesis* of its writer. So an
edit shows in the tag of its row; a deletion or a reordering shows in the page after.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Final

import msgspec

from mcp_junction.store.records import AuditPage

TAG: Final = 16
_encode = msgspec.json.Encoder().encode


class Seals:
    """Makes and checks the MACs of pages and the tags of rows with one key.

    HMAC by hand: the hash states that depend on the key alone are computed once, then copied.
    """

    __slots__ = ("_inner", "_outer", "_tag")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))
        self._tag = blake2b(key=key, digest_size=TAG, person=b"junction row")

    def digest(self, *parts: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        for part in parts:
            inner.update(part)
        outer.update(inner.digest())
        return outer.digest()

    def genesis(self, writer: str) -> bytes:
        """Return the MAC that the first page of a writer follows."""
        return self.digest(b"genesis/" + writer.encode())

    def mac(self, before: bytes, page: AuditPage) -> bytes:
        place = (page.writer, page.first_seq, page.last_seq, page.first_at, page.last_at)
        return self.digest(before, _encode(place), page.tags[-TAG:])

    def new_tag_hash(self) -> blake2b:
        """Return the hash from which the tags of a page's rows are taken, before its first row."""
        return self._tag.copy()

    def tags(self, lines: Sequence[bytes]) -> bytes:
        """Make the tags of a page's rows: each covers its line and all lines before it."""
        state = self.new_tag_hash()
        tags = []
        for line in lines:
            state.update(line)
            tags.append(state.digest())
        return b"".join(tags)

    def is_next(self, before: bytes, page: AuditPage) -> bool:
        """Whether a page is unchanged and follows the one with the MAC ``before``."""
        if not compare_digest(self.mac(before, page), page.mac):
            return False
        return compare_digest(self.tags(page.lines), page.tags)

    def is_intact(self, page: AuditPage) -> bool:
        """Whether the rows of a page are unchanged since they were written with this key."""
        return self.first_bad_row(page) is None

    def first_bad_row(self, page: AuditPage) -> int | None:
        """Find the first row of a page that was changed, moved or removed."""
        lines = page.lines
        tags = self.tags(lines)
        for index, seq in enumerate(range(page.first_seq, page.last_seq + 1)):
            here = slice(index * TAG, (index + 1) * TAG)
            if index >= len(lines) or not compare_digest(tags[here], page.tags[here]):
                return seq
            if msgspec.json.decode(lines[index])[:2] != [page.writer, seq]:
                return seq
        return None if len(tags) == len(page.tags) else page.last_seq + 1
