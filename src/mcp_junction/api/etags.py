"""ETags: the version of what is shown; and If-Match, which says what was read before a change."""

from __future__ import annotations

from typing import Annotated

from litestar.params import HeaderParameter

from mcp_junction.api.errors import wrong

IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=100,
        description="The ETag that was read: the change is made only if it is still the one.",
    ),
]


def etag(version: int) -> dict[str, str]:
    """The header that tells a version."""
    return {"etag": f'"{version}"'}


def version_in(if_match: str | None) -> int | None:
    """The version in an If-Match; None where any will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    bare = if_match.strip().removeprefix('"').removesuffix('"')
    if not (bare.isascii() and bare.isdecimal() and len(bare) < 18):
        raise wrong("If-Match", "must be one ETag of what is to be changed, or *")
    return int(bare)
