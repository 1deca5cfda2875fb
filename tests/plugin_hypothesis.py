"""A pytest plugin that settles how hypothesis runs here: the same examples every time, no clock.

A search for new examples is `--hypothesis-profile explore`; what it finds becomes an `@example`.
"""

from hypothesis import HealthCheck, settings

_QUIET = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)

settings.register_profile("settled", derandomize=True, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(
    "explore", max_examples=2000, deadline=None, database=None, suppress_health_check=_QUIET
)


def pytest_configure(config) -> None:
    settings.load_profile(config.getoption("--hypothesis-profile") or "settled")
