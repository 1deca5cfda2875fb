"""What is embedded: the text of a tool with its server's title, and the clauses of a query."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

_SPLIT: Final = re.compile(r"[_\-./:\s]+|(?<=[a-z0-9])(?=[A-Z])")
_CLAUSE: Final = re.compile(r"[.;!?,\n]+|\b(?:and|then|but|also)\b", re.IGNORECASE)
_SHORTEST: Final = 3
"""Words of a clause, at least."""
MOST_CLAUSES: Final = 24
_NAME: Final = 300
_TITLE: Final = 120
_READ: Final = 200
"""Characters of a description that are embedded."""


def split_name(name: str) -> str:
    """Split a name into words: ``createNewIssue`` and ``create_new_issue`` alike."""
    return " ".join(part for part in _SPLIT.split(name[:_NAME]) if part)


def tool_text(title: str, name: str, description: str) -> str:
    """Return the text that is embedded for a tool."""
    about = f"{split_name(name)}. {description[:_READ]}"
    return f"{title[:_TITLE]}: {about}" if title else about


def split_clauses(query: str) -> list[str]:
    """Split a query into its needs; those of fewer than three words are left out."""
    parts = (part.strip() for part in _CLAUSE.split(query))
    return [part for part in parts if len(part.split()) >= _SHORTEST][:MOST_CLAUSES]


def text_hash(text: str) -> str:
    """Return a short hash of a text."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
