"""One file per topic; importing this package registers every case, in the order of the report."""

from cases import calls, payloads, startup, lists, footprint, http, sessions, eras, platform, search  # noqa: F401, I001
