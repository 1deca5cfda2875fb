"""One file per topic; importing this package registers every case, in the order of the report."""

from cases import calls, payloads, startup, lists, footprint, http, sessions  # noqa: F401, I001
from cases import eras, platform, search, rest_search, neighbours, memory, tail  # noqa: F401
from cases import governed, scopes, warmup, audit, door, conditions  # noqa: F401
