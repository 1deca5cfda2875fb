"""`mcp-junction settings`: what a `serve` with the same options would use, and why."""

import json
import subprocess

import pytest
from tests.plugin_journeys import PROGRAM, own_environment

from mcp_junction.config.settings import DEFAULTS, VARIABLE_NAMES, Settings

pytestmark = pytest.mark.preloaded
PASSWORD = "correct-horse-7351"


@pytest.fixture
def shown(program, tmp_path):
    """Run the command; return the settings by name."""

    def run(*words, **how):
        ended = program("settings", "--json", "--data-dir", tmp_path / "data", *words, **how)
        assert ended.returncode == 0, ended.stderr
        return {one["name"]: one for one in json.loads(ended.stdout)}

    return run


def test_every_setting_is_shown_with_its_default(shown):
    found = shown()
    assert tuple(found) == Settings._fields
    for name, one in found.items():
        default = getattr(DEFAULTS, name)
        default = list(default) if isinstance(default, tuple) else default
        assert (one["value"], one["default"], one["source"]) == (default, default, "default")
        assert one["needs_restart"] is True
    assert found["limit_agent"]["note"] == "counted in each process by itself"
    assert found["retry_factor"]["allowed"] == "1 to 100"


def test_each_value_is_shown_with_its_source(shown, config, tmp_path):
    file = config({}, page_size=7, drain_ms=7, circuit_cooldown=7, prefix="auto")
    (tmp_path / ".env").write_text("JUNCTION_DRAIN_MS=8\nMCP_CIRCUIT_COOLDOWN=8\n")
    environ = {"MCP_CIRCUIT_COOLDOWN": "9", "JUNCTION_PREFIX": "never"}
    found = shown("--config", file, "--prefix", "always", "--changed", env=environ)
    assert {name: (one["value"], one["source"], one["place"]) for name, one in found.items()} == {
        "page_size": (7, "file", "junction.page_size"),
        "drain_ms": (8, ".env", "JUNCTION_DRAIN_MS"),
        "circuit_cooldown": (9, "environment", "MCP_CIRCUIT_COOLDOWN"),
        "prefix": ("always", "command line", "--prefix"),
    }


def test_without_a_file_the_dotenv_is_that_of_the_data_directory(shown, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".env").write_text("MCP_TOKEN_TTL_MINUTES=2\n")
    found = shown("--changed")
    assert found.keys() == {"token_ttl_minutes"}
    assert found["token_ttl_minutes"]["source"] == ".env"


def test_the_table_is_for_people_and_can_be_narrowed(program, tmp_path):
    ended = program("settings", "circuit", "limit", "--data-dir", tmp_path)
    assert ended.returncode == 0
    assert "circuit_cooldown" in ended.stdout
    assert "retry_factor" not in ended.stdout
    assert "restart it to apply a change" in ended.stdout
    assert "limit_agent, limit_server, limit_tool: counted in each process" in ended.stdout
    none = program("settings", "--changed", "--data-dir", tmp_path)
    assert "No setting differs from its default" in none.stdout


def test_the_password_of_the_store_is_masked(program, tmp_path):
    url = f"postgresql://me:{PASSWORD}@db.example/j"
    for words, environ in ((["--store", url], {}), ([], {"JUNCTION_STORE": url})):
        for form in ([], ["--json"]):
            how = ["settings", "store", *form, "--data-dir", tmp_path, *words]
            ended = program(*how, env=environ)
            assert "db.ex" in ended.stdout
            assert PASSWORD not in ended.stdout + ended.stderr


@pytest.mark.parametrize("name", ["embedding_base_url", "vector_store", "otlp_endpoint"])
def test_credentials_in_the_address_of_another_service_are_masked(shown, name):
    for url in (f"https://me:{PASSWORD}@peer.example/v1", f"https://peer.example/?key={PASSWORD}"):
        value = shown(name, env={f"JUNCTION_{name.upper()}": url})[name]["value"]
        assert "peer.example" in value
        assert PASSWORD not in value


def test_what_clients_are_listed_can_be_chosen_by_size(shown):
    assert shown("--exposure", "auto")["exposure"]["value"] == "auto"


@pytest.mark.req("REQ-MCP-CONFIG")
@pytest.mark.parametrize("variable", VARIABLE_NAMES.values())
def test_neither_this_nor_serve_accepts_a_number_out_of_range(program, tmp_path, variable):
    for command in ("settings", "serve"):
        said = program.refused(command, "--data-dir", tmp_path, env={variable: "1000000000000"})
        assert f"environment {variable}: must be a" in said
        assert " from " in said
        assert "1000000000000" not in said


def test_a_service_takes_its_keys_and_store_from_the_dotenv_of_its_directory(program, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    key = "jct_given_" + "k" * 30
    store = tmp_path / "elsewhere.db"
    (data / ".env").write_text(f"JUNCTION_ADMIN_KEY={key}\nJUNCTION_STORE=sqlite:///{store}\n")
    process = subprocess.Popen(
        [str(PROGRAM), "serve", "--port", "0", "--data-dir", str(data)],
        env=own_environment(),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        said = ""
        while "listening on" not in said:
            line = process.stderr.readline()
            assert line, f"it has ended:\n{said}"
            said += line
        assert "shown this once" not in said
        url = said.partition("listening on ")[2].partition("/mcp")[0]
        where = ["--running", "--url", url, "--data-dir", data]
        running = program("settings", "store", "--json", *where, "--key", key)
        assert running.returncode == 0, running.stderr
        found = next(one for one in json.loads(running.stdout) if one["name"] == "store")
        assert (found["source"], found["value"]) == (".env", f"sqlite:///{store}")
        assert program("keys", "list", "--json", "--data-dir", data).stdout.count("admin") >= 1
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert store.exists()
    assert not (data / "junction.db").exists()
