"""LinkUsers: which principals have used one link since it was made: nobody, one, or several.

On a link whose messages do not say to which call they belong, what a server says may be about any
call that was ever made on it, also one that is over. So such a message is passed on only while one
principal alone has used the link. Who that principal's message is handed to is decided elsewhere.
"""

from __future__ import annotations

from mcp_junction.policy.principal import Principal


class LinkUsers:
    """The memory of one link. It holds at most one principal, however many come."""

    __slots__ = ("are_several", "only")

    def __init__(self) -> None:
        self.only: Principal | None = None
        """The one principal that has used the link; None when nobody has, or several have."""
        self.are_several = False

    def note(self, principal: Principal) -> None:
        """A principal uses the link. Callers compare with ``only`` first, which costs nothing."""
        only = self.only
        if only is None:
            if not self.are_several:
                self.only = principal
        elif not only.is_same(principal):
            self.only = None
            self.are_several = True
