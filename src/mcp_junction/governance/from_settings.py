"""Derives from the settings what governs calls: retry, breaker, tokens, decisions, limits.

Settings have the units of their environment variables (milliseconds, seconds, minutes); everything
here is in seconds.
"""

from __future__ import annotations

from mcp_junction.config.merge import parse_rate
from mcp_junction.config.settings import Settings
from mcp_junction.resilience.breaker import BreakerSettings
from mcp_junction.resilience.buckets import Buckets
from mcp_junction.resilience.retry import RetryPolicy


def retry_policy_of(settings: Settings) -> RetryPolicy:
    """Return how often and after how long a call is tried again."""
    return RetryPolicy(
        max_attempts=settings.retry_max_attempts,
        base=settings.retry_base_ms / 1000,
        factor=settings.retry_factor,
        max_delay=settings.retry_max_delay_ms / 1000,
    )


def breaker_settings_of(settings: Settings) -> BreakerSettings:
    """Return when circuits open, for how long, and how many calls test them."""
    return BreakerSettings(
        threshold=settings.circuit_failure_threshold,
        cooldown=float(settings.circuit_cooldown),
        half_open_max=settings.circuit_half_open_max,
    )


def token_ttl_of(settings: Settings) -> float:
    """Return the seconds that a token is good for, unless its grant says otherwise."""
    return settings.token_ttl_minutes * 60.0


def cache_ttl_of(settings: Settings) -> float:
    """Return the seconds that a decision about a call is remembered; 0 is not at all."""
    return settings.auth_cache_ttl * 60.0


def buckets_of(rate: str) -> Buckets | None:
    """Make the buckets of ``limit_agent``, ``limit_server`` or ``limit_tool``; None is no limit.

    100/60 allows a hundred at once, and then one each 0.6 seconds.
    """
    limit = parse_rate(rate)
    return None if limit is None else Buckets(limit.calls / limit.seconds, limit.calls)
