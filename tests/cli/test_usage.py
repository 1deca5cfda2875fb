"""The program called wrongly says what is wrong and how to go on, and exits with 2."""

import subprocess

import pytest
from tests.journeys.client import BOUND
from tests.plugin_journeys import scripted

from mcp_junction import __version__

COMMANDS = ["stdio", "inspect", "call", "demo"]
SHARED = ["--config", "--separator", "--prefix", "--stdio-only", "--restart", "--inherit-env"]
SHARED += ["--debug", "--log-file", "--help"]
OPTIONS = {
    (): [*SHARED, "--name", "--version"],
    ("stdio",): [*SHARED, "--name", "--version"],
    ("inspect",): [*SHARED, "--json"],
    ("call",): [*SHARED, "--json", "NAME", "JSON"],
    ("demo",): ["--help", "arithmetic", "clock", "notes"],
}


@pytest.mark.req("US1-2", "SC-005", "J-CLI")
@pytest.mark.parametrize("command", [(), ("stdio",), ("inspect",), ("call", "one:echo")])
def test_without_a_config_it_names_the_argument(program, command):
    said = program.refused(*command)
    assert "--config FILE is needed" in said


@pytest.mark.parametrize("command", [(), ("stdio",), ("inspect",), ("call", "one:echo")])
def test_a_config_argument_without_a_path_is_named(program, command):
    assert "--config" in program.refused(*command, "--config")


@pytest.mark.parametrize("command", [(), *([name] for name in COMMANDS)])
def test_an_unknown_flag_is_named_with_the_way_to_help(program, command):
    said = program.refused(*command, *(["clock"] if command == ["demo"] else []), "--sparkle")
    assert "--sparkle" in said or "NAME" in said
    assert "--help" in said


@pytest.mark.parametrize(
    "wrong",
    [["--prefix", "sometimes"], ["--separator"], ["--debug=1"], ["surplus"], ["--conf", "x"]],
)
def test_a_flag_used_wrongly_is_named(program, wrong):
    assert wrong[0].partition("=")[0] in program.refused(*wrong)


def test_a_word_that_is_no_command_is_said_to_be_none(program):
    said = program.refused("severs", "list")
    assert "there is no command 'severs'" in said
    assert "--help" in said


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "http", "1e3"])
@pytest.mark.parametrize(
    "command", [("serve", "--demo"), ("settings",), ("servers", "login", "crm")]
)
def test_a_port_that_is_none_is_refused(program, tmp_path, command, port):
    said = program.refused(*command, "--data-dir", tmp_path, f"--port={port}")
    assert f"argument --port: {port!r} is no port: 0 to 65535" in said


def test_an_address_of_another_machine_is_not_said_to_be_taken(program, tmp_path):
    program("keys", "create", "--role", "viewer", "--data-dir", tmp_path)
    said = program.refused("serve", "--port=0", "--host=192.0.2.1", "--data-dir", tmp_path)
    assert "cannot listen on 192.0.2.1:0, for the reason above" in said
    assert "is something else there" not in said


def test_settings_that_no_word_names_are_said_to_be_none(program, tmp_path):
    said = program("settings", "sparkle", "--data-dir", tmp_path).stdout
    assert said == "No setting matches; without WORD and --changed all are shown.\n"


def test_as_many_rows_of_the_audit_are_shown_as_were_asked_for(program, tmp_path):
    program("keys", "create", "--role", "admin", "--data-dir", tmp_path)
    assert program("audit", "tail", "-n", "0", "--data-dir", tmp_path).stdout == ""
    said = program.refused("audit", "tail", "-n=-1", "--data-dir", tmp_path)
    assert "argument -n: '-1' is no number of rows" in said


@pytest.mark.req("J-NAMES-SEPARATOR")
@pytest.mark.parametrize("command", [(), ("inspect",), ("call", "one:echo")])
def test_a_separator_is_at_least_one_character(program, config, command):
    path = config({"one": scripted("echo")})
    said = program.refused(*command, "--config", path, "--separator", "")
    assert "--separator: must be one character or more, such as ':' or '__'" in said


@pytest.mark.parametrize("option", ["--name", "--version", "--separator"])
def test_what_clients_are_shown_must_be_text(executable, config, option):
    words = [*executable, "--config", str(config({"one": scripted("echo")})), option, b"a\xff"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert f"{option}: must be text in UTF-8" in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr


def test_a_log_file_that_cannot_be_written_is_named(program, config, tmp_path):
    path = tmp_path / "no" / "such" / "folder.log"
    said = program.refused("--config", config({"one": scripted("echo")}), "--log-file", path)
    assert f"--log-file {path}: No such file or directory" in said


@pytest.mark.req("J-CLI")
@pytest.mark.parametrize("command", OPTIONS, ids=lambda command: " ".join(command) or "bare")
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_tells_of_every_option(program, command, flag):
    shown = program(*command, flag)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("usage: mcp-junction")
    for option in OPTIONS[command]:
        assert option in shown.stdout


@pytest.mark.req("J-CLI")
def test_the_help_of_the_program_tells_of_every_command(program):
    shown = program("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in shown


@pytest.mark.req("J-CLI")
@pytest.mark.parametrize("command", [(), ("stdio",)])
def test_version_alone_prints_the_programs_own(program, command):
    shown = program(*command, "--version")
    assert (shown.returncode, shown.stdout) == (0, f"mcp-junction {__version__}\n")
    assert shown.stderr == ""
