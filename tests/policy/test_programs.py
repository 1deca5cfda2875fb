"""Which programs may be run for a registered server."""

import pytest

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.policy.programs import AllowList, parse_allow_list, program_refusal

OPEN = AllowList()
FEW = parse_allow_list("npx, /opt/tools/server ,, uvx")


def asked(command: str, *, allow: AllowList = OPEN, found: str | None = None, **more: object):
    definition = ServerDefinition("s", "stdio", command=command, **more)
    return program_refusal(definition, allow, found or command)


def test_without_a_list_any_program_may_run():
    assert asked("npx", found="/usr/bin/npx") is None
    assert asked("/srv/my server/run") is None


@pytest.mark.parametrize(
    ("command", "found"),
    [("npx", "/usr/bin/npx"), ("uvx", "/home/x/uvx"), ("/opt/tools/server", "/opt/tools/server")],
)
def test_what_the_list_names_may_run(command, found):
    assert asked(command, allow=FEW, found=found) is None


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("node", "/usr/bin/node"),
        ("NPX", "/usr/bin/NPX"),
        ("./npx", "./npx"),
        ("/tmp/npx", "/tmp/npx"),
        ("/opt/tools/../evil/server", "/opt/tools/../evil/server"),
        ("server", "/opt/evil/server"),
        ("npx ", "npx "),
        ("", ""),
    ],
)
def test_what_it_does_not_name_may_not(command, found):
    assert "stdio_allow" in (asked(command, allow=FEW, found=found) or "")


@pytest.mark.parametrize("shell", ["sh", "/bin/bash", "zsh", "cmd.exe", "pwsh"])
def test_a_shell_runs_only_when_the_list_names_it(shell):
    assert "is a shell" in (asked(shell) or "")
    assert asked(shell, allow=parse_allow_list(shell)) is None


def test_a_name_that_turns_out_to_be_a_shell_is_one():
    assert "is a shell" in (asked("harmless", found="/bin/sh") or "")


@pytest.mark.parametrize("command", ["./run", "bin/run", "/opt/../bin/run", "../run"])
def test_a_command_is_a_name_or_a_full_path(command):
    assert "its command must" in (asked(command) or "")


@pytest.mark.parametrize("cwd", ["work", "./x", "/srv/../etc", ""])
def test_a_folder_is_a_full_path(cwd):
    assert "cwd" in (asked("npx", cwd=cwd) or "")
    assert asked("npx", cwd="/srv/work") is None


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "PATH", "Path", "NODE_OPTIONS", "PYTHONPATH", "HOME", "home", "USERPROFILE",
     "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "OPENSSL_CONF", "OPENSSL_MODULES", "SSL_CERT_FILE",
     "DOCKER_HOST", "DOCKER_CONFIG", "CONTAINER_HOST", "KUBECONFIG", "ZDOTDIR", "CURL_HOME",
     "HTTPS_PROXY", "TMPDIR", "BUN_INSTALL", "GOFLAGS", "GNUPGHOME", "GLIBC_TUNABLES"],
)  # fmt: skip
def test_the_environment_cannot_bend_a_listed_program(name):
    assert name in (asked("npx", allow=FEW, env={name: "x"}) or "")
    assert asked("npx", env={name: "x"}) is None, "without a list there is nothing to get around"


@pytest.mark.parametrize("name", ["API_KEY", "GOOGLE_API_KEY", "NPM_TOKEN", "LOG_LEVEL", "R2_KEY"])
def test_a_variable_that_bends_no_program_can_be_set(name):
    assert asked("npx", allow=FEW, env={name: "x"}) is None


def test_junctions_own_marks_cannot_be_set():
    assert "Junction's own" in (asked("npx", env={"MCP_JUNCTION_CHAIN": "x"}) or "")
