"""Settings: command line over environment over file over default."""

import pytest

from mcp_junction.config.settings import DEFAULTS, Settings, merge_settings

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
    assert merge_settings({}, {}, {}) == (DEFAULTS, [])
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
    settings, (problem,) = merge_settings({name: value}, {}, {})
    assert problem.path == f"$.junction.{name}"
    assert settings == DEFAULTS


@pytest.mark.parametrize(
    ("name", "text"),
    [("page_size", "many"), ("page_size", "-1"), ("restart", "maybe"), ("prefix", "sometimes")],
)
def test_a_wrong_setting_in_the_environment_is_reported_there(name, text):
    _, (problem,) = merge_settings({}, {f"JUNCTION_{name.upper()}": text}, {})
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
    settings, (problem,) = merge_settings({"trusted_proxies": given}, {}, {})
    assert problem.path == "$.junction.trusted_proxies"
    assert settings == DEFAULTS
