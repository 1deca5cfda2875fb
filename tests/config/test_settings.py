"""Settings: command line over environment over file over default."""

import pytest

from mcp_junction.config.merge import RANGES, RATES, merge_settings, parse_rate
from mcp_junction.config.settings import DEFAULTS, VARIABLE_NAMES, Settings, variable_of
from mcp_junction.governance.governance import (
    breaker_settings_of,
    buckets_of,
    cache_ttl_of,
    retry_policy_of,
)
from mcp_junction.governance.policy_admin import token_ttl_of
from mcp_junction.policy.live_policy import DEFAULT_TTL as CACHE_TTL
from mcp_junction.policy.tokens import DEFAULT_TTL as TOKEN_TTL
from mcp_junction.resilience.breaker import BreakerSettings
from mcp_junction.resilience.retry import RetryPolicy

VALUES = {
    "name": ("file", "environment", "line"),
    "page_size": (1, 2, 3),
    "stdio_only": (True, False, True),
    "separator": (".", "/", "~"),
    "prefix": ("auto", "never", "always"),
}


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", VALUES)
def test_each_layer_covers_the_one_below(name):
    file, environment, line = VALUES[name]
    variable = {f"JUNCTION_{name.upper()}": as_text(environment)}
    assert merge_settings({}, {}, {}) == (DEFAULTS, {}, [])
    assert getattr(merge_settings({name: file}, {}, {})[0], name) == file
    assert getattr(merge_settings({name: file}, variable, {})[0], name) == environment
    assert getattr(merge_settings({name: file}, variable, {name: line})[0], name) == line
    assert getattr(merge_settings({name: file}, variable, {name: None})[0], name) == environment


def test_the_defaults_are_those_of_the_contract():
    assert (DEFAULTS.name, DEFAULTS.prefix, DEFAULTS.separator) == ("mcp-junction", "always", None)
    assert DEFAULTS.list_wait_ms == 30_000
    assert DEFAULTS.drain_ms == 5_000
    assert DEFAULTS.timeout == 0, "no deadline of our own on calls"
    assert DEFAULTS.max_line_bytes == 16 * 1024 * 1024
    flags = {DEFAULTS.restart, DEFAULTS.stdio_only, DEFAULTS.inherit_env}
    assert flags == {False}


@pytest.mark.parametrize("text", ["1", "true", "YES", "True"])
def test_a_flag_in_the_environment_may_be_written_in_many_ways(text):
    assert merge_settings({}, {"JUNCTION_RESTART": text}, {})[0].restart is True


@pytest.mark.parametrize("text", ["0", "false", "No"])
def test_a_flag_in_the_environment_may_be_taken_back(text):
    assert merge_settings({"restart": True}, {"JUNCTION_RESTART": text}, {})[0].restart is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_size", "10"),
        ("page_size", -1),
        ("page_size", True),
        ("page_size", 1.5),
        ("page_size", None),
        ("restart", 1),
        ("restart", "true"),
        ("name", 5),
        ("separator", None),
        ("prefix", "sometimes"),
    ],
)
def test_a_wrong_setting_in_the_file_is_reported_there(name, value):
    settings, _, (problem,) = merge_settings({name: value}, {}, {})
    assert problem.path == f"$.junction.{name}"
    assert settings == DEFAULTS


@pytest.mark.parametrize(
    ("name", "text"),
    [("page_size", "many"), ("page_size", "-1"), ("restart", "maybe"), ("prefix", "sometimes")],
)
def test_a_wrong_setting_in_the_environment_is_reported_there(name, text):
    _, _, (problem,) = merge_settings({}, {f"JUNCTION_{name.upper()}": text}, {})
    assert problem.path == f"environment JUNCTION_{name.upper()}"
    assert text not in problem.message or name == "prefix"


def test_settings_are_read_from_the_file_and_the_dotenv_beside_it(folder):
    (folder.path / ".env").write_text("JUNCTION_DRAIN_MS=7\n")
    config = folder.load({"mcpServers": {}, "junction": {"name": "hub", "drain_ms": 3}})
    assert config.settings == Settings(name="hub", drain_ms=7)


@pytest.mark.parametrize("given", [["10.0.0.7", "fd00::/8"], "10.0.0.7, fd00::/8"])
def test_proxies_are_an_array_or_words(given):
    wanted = ("10.0.0.7", "fd00::/8")
    assert merge_settings({"trusted_proxies": given}, {}, {})[0].trusted_proxies == wanted
    words = "10.0.0.7 fd00::/8"
    environ = {"JUNCTION_TRUSTED_PROXIES": words}
    assert merge_settings({}, environ, {})[0].trusted_proxies == wanted
    assert merge_settings({}, {}, {"trusted_proxies": words})[0].trusted_proxies == wanted
    assert merge_settings({}, environ, {"trusted_proxies": "::1"})[0].trusted_proxies == ("::1",)


@pytest.mark.parametrize("given", ["proxy.example", "10.0.0.0/64", ["*"], [7], {}, None, True, 7])
def test_a_proxy_is_an_address_or_a_network(given):
    settings, _, (problem,) = merge_settings({"trusted_proxies": given}, {}, {})
    assert problem.path == "$.junction.trusted_proxies"
    assert settings == DEFAULTS


# -- the eleven of the integration seed

SEED = {
    "MCP_RETRY_MAX_ATTEMPTS": (3, "5"),
    "MCP_RETRY_BASE_MS": (500, "50"),
    "MCP_RETRY_FACTOR": (2.0, "1.5"),
    "MCP_RETRY_MAX_DELAY_MS": (30_000, "1000"),
    "MCP_CIRCUIT_FAILURE_THRESHOLD": (5, "7"),
    "MCP_CIRCUIT_COOLDOWN": (60, "5"),
    "MCP_CIRCUIT_HALF_OPEN_MAX": (3, "1"),
    "MCP_TOKEN_TTL_MINUTES": (15, "1"),
    "MCP_AUTH_CACHE_TTL": (5, "0"),
    "MCP_INVOCATION_TIMEOUT_MS": (30_000, "250"),
    "MCP_AUDIT_RETENTION_DAYS": (90, "7"),
}


def test_the_seeds_settings_are_eleven_with_its_defaults():
    assert set(VARIABLE_NAMES.values()) == set(SEED)
    for name, variable in VARIABLE_NAMES.items():
        assert getattr(DEFAULTS, name) == SEED[variable][0]


@pytest.mark.parametrize("variable", SEED)
def test_each_is_read_from_its_variable_and_from_the_file(variable):
    name = variable.removeprefix("MCP_").lower()
    _, text = SEED[variable]
    wanted = type(getattr(DEFAULTS, name))(float(text))
    settings, sources, problems = merge_settings({}, {variable: text}, {})
    assert (getattr(settings, name), problems) == (wanted, [])
    assert sources == {name: f"environment {variable}"}
    settings, sources, problems = merge_settings({name: wanted}, {}, {})
    assert (getattr(settings, name), problems) == (wanted, [])
    assert sources == {name: f"$.junction.{name}"}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_out_of_range_is_an_error_that_names_variable_and_range(name):
    least, most = RANGES[name]
    for edge in (least, most):
        merged = merge_settings({}, {variable_of(name): str(edge)}, {})
        assert (merged.problems, getattr(merged.settings, name)) == ([], edge)
    for value in (least - 1, most + 1):
        for given, place in (
            (({name: value}, {}), f"$.junction.{name}"),
            (({}, {variable_of(name): str(value)}), f"environment {variable_of(name)}"),
        ):
            settings, _, (problem,) = merge_settings(*given, {})
            assert problem.path == place
            assert f"from {least:,} to {most:,}" in problem.message
            assert settings == DEFAULTS


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e3", "", "two", "1,5"])
def test_a_factor_is_a_number_in_its_range(text):
    _, _, (problem,) = merge_settings({}, {"MCP_RETRY_FACTOR": text}, {})
    assert problem.path == "environment MCP_RETRY_FACTOR"
    assert problem.message == "must be a number from 1 to 100"


def test_an_integer_does_for_a_factor():
    assert merge_settings({"retry_factor": 3}, {}, {}).settings.retry_factor == 3.0


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("text", ["100", "0/60", "1/0", "-1/60", "1.5/60", "1/nan", "1/inf", "a/b"])
def test_a_rate_that_makes_no_sense_is_an_error(name, text):
    settings, _, (problem,) = merge_settings({name: text}, {}, {})
    assert problem.path == f"$.junction.{name}"
    assert problem.message.startswith("must be CALLS/SECONDS like 100/60")
    assert settings == DEFAULTS


def test_a_rate_is_read_and_nothing_is_no_limit():
    assert parse_rate("100/60") == (100, 60.0)
    assert parse_rate("1/1.5") == (1, 1.5)
    assert parse_rate("") is None
    assert buckets_of("") is None
    buckets = buckets_of("100/50")
    assert (buckets.rate, buckets.burst) == (2.0, 100)


def test_the_former_name_of_a_setting_is_the_same_setting():
    assert merge_settings({"audit_days": 3}, {}, {}).settings.audit_retention_days == 3
    former = {"JUNCTION_AUDIT_DAYS": "4"}
    assert merge_settings({"audit_days": 3}, former, {}).settings.audit_retention_days == 4
    both = {"JUNCTION_AUDIT_DAYS": "5", "MCP_AUDIT_RETENTION_DAYS": "5"}
    assert merge_settings({}, both, {}).settings.audit_retention_days == 5
    newer = {"MCP_AUDIT_RETENTION_DAYS": "6"}
    assert merge_settings({"audit_days": 3}, newer, {}).settings.audit_retention_days == 6


def test_two_names_of_one_setting_that_disagree_are_an_error():
    both = {"JUNCTION_AUDIT_DAYS": "5", "MCP_AUDIT_RETENTION_DAYS": "6"}
    for given, former, newer in (
        (({}, both), "environment JUNCTION_AUDIT_DAYS", "environment MCP_AUDIT_RETENTION_DAYS"),
        (
            ({"audit_days": 5, "audit_retention_days": 6}, {}),
            "$.junction.audit_days",
            "$.junction.audit_retention_days",
        ),
    ):
        (problem,) = merge_settings(*given, {}).problems
        assert problem.path == former
        assert newer in problem.message
        assert "remove one of them" in problem.message


def test_each_place_is_named_as_the_source_of_what_it_gives():
    file = {"name": "a", "prefix": "auto", "page_size": 1, "drain_ms": 1}
    dotenv = {"JUNCTION_PREFIX": "never", "JUNCTION_PAGE_SIZE": "2", "JUNCTION_DRAIN_MS": "2"}
    environ = {"JUNCTION_PAGE_SIZE": "3", "JUNCTION_DRAIN_MS": "3"}
    merged = merge_settings(file, environ, {"drain_ms": 4}, dotenv)
    assert merged.sources == {
        "name": "$.junction.name",
        "prefix": ".env JUNCTION_PREFIX",
        "page_size": "environment JUNCTION_PAGE_SIZE",
        "drain_ms": "--drain-ms",
    }
    assert merged.settings == Settings(name="a", prefix="never", page_size=3, drain_ms=4)


def test_what_governs_calls_is_derived_in_seconds():
    assert retry_policy_of(DEFAULTS) == RetryPolicy()
    assert breaker_settings_of(DEFAULTS) == BreakerSettings()
    assert token_ttl_of(DEFAULTS) == TOKEN_TTL
    assert cache_ttl_of(DEFAULTS) == CACHE_TTL
    chosen = merge_settings({}, {name: text for name, (_, text) in SEED.items()}, {}).settings
    assert retry_policy_of(chosen) == RetryPolicy(5, 0.05, 1.5, 1.0)
    assert breaker_settings_of(chosen) == BreakerSettings(7, 5.0, 1)
    assert (token_ttl_of(chosen), cache_ttl_of(chosen)) == (60.0, 0.0)


@pytest.mark.parametrize(
    "text", ["junction.example", "https://j.example/?a=1", "https://j.example/#x", "https://u:p@j"]
)
def test_a_public_url_that_clients_cannot_use_is_an_error(text):
    _, _, (problem,) = merge_settings({"public_url": text}, {}, {})
    assert problem.path == "$.junction.public_url"


def test_a_public_url_has_no_slash_at_its_end():
    settings = merge_settings({}, {"JUNCTION_PUBLIC_URL": "https://j.example/a/"}, {}).settings
    assert settings.public_url == "https://j.example/a"
