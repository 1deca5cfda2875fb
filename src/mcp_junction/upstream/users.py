"""LinkUsers: which principals have used one link since it was made: nobody, one, or several.

On a link whose messages do not say to which call they belong, what a server says may be about any
call that was ever made on it, also one that is over. So such a message is passed on only while one
principal alone has used the link. Which session gets the message is decided elsewhere.
"""

from __future__ import annotations

from mcp_junction.policy.principal import Principal


class LinkUsers:
    """Remembers the only principal of one link, or that there were several."""

    __slots__ = ("has_several", "only")

    def __init__(self) -> None:
        self.only: Principal | None = None
        """The one principal that has used the link; None when nobody has, or several have."""
        self.has_several = False

    def note(self, principal: Principal) -> None:
        """Note that a principal uses the link. Callers compare with ``only`` first: it is cheap."""
        only = self.only
        if only is None:
            if not self.has_several:
                self.only = principal
        elif not only.is_same(principal):
            self.only = None
            self.has_several = True
