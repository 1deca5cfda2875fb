"""Streams that are closed, full, or for letters of another kind: it says so, or makes do."""

import json
import os
import subprocess

import pytest
from tests.journeys.client import BOUND
from tests.plugin_journeys import PROGRAM, own_environment, scripted


@pytest.fixture
def shell(config):
    """Run the program as a shell does that was told where its streams go."""
    path = config({"one": scripted(), "ключ": scripted("count")})
    # What coverage opens would be in the place of a stream that is closed.
    untraced = {name: None for name in os.environ if name.startswith("COVERAGE_")}

    def run(redirected, *words, env=None, encoding="utf-8"):
        command = [word.replace("CONFIG", str(path)) for word in words]
        ended = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirected}', "sh", str(PROGRAM), *command],
            input=b"",
            env=own_environment({"COLUMNS": "200", **untraced, **(env or {})}),
            capture_output=True,
            timeout=BOUND,
        )
        said = ended.stderr.decode()
        assert "Traceback" not in said, said
        return ended.returncode, ended.stdout.decode(encoding), said

    return run


SERVE = ("--config", "CONFIG")
CALL = ("call", "--config", "CONFIG", "one:count")
INSPECT = ("inspect", "--config", "CONFIG")


@pytest.mark.parametrize(
    ("redirected", "name"), [("<&-", "stdin"), (">&- </dev/null", "stdout"), ("<&- >&-", "stdin")]
)
def test_a_stream_that_a_client_needs_must_be_open(shell, redirected, name):
    code, _, said = shell(redirected, *SERVE)
    assert code == 2
    assert said.splitlines() == [
        f"mcp-junction: {name} is closed: a client speaks to this program on stdin and stdout;"
        " start it with both, or use `mcp-junction serve`"
    ]


def test_stderr_need_not_be_open(shell):
    assert shell("2>&- </dev/null", *SERVE) == (0, "", "")
    assert shell("2>&-", *CALL) == (0, "1\n", "")


@pytest.mark.parametrize("words", [CALL, INSPECT, ("--version",)])
def test_what_is_only_printed_needs_no_reader(shell, words):
    assert shell(">&-", *words)[0] == 0
    assert shell("<&- >&- 2>&-", *words)[0] == 0


def test_without_stdin_there_are_no_arguments_on_it(shell):
    code, _, said = shell("<&-", *CALL, "-")
    assert (code, said) == (
        2,
        "mcp-junction: the arguments are not JSON: line 1, column 1: Expecting value\n",
    )


@pytest.mark.parametrize("words", [CALL, (*CALL, "--json"), INSPECT, ("--version",)])
def test_output_that_cannot_be_written_is_an_error_of_one_line(shell, words):
    code, _, said = shell(">/dev/full", *words)
    assert code == 1
    assert said == (
        "mcp-junction: the output cannot be written: No space left on device;"
        " make room, or send it elsewhere\n"
    )


def test_a_complaint_that_cannot_be_written_leaves_the_exit_code(shell):
    assert shell("2>/dev/full", "--nonsense")[0] == 2
    assert shell("2>/dev/full", *CALL, "[]")[0] == 2


def test_letters_that_the_output_does_not_have_are_escaped(shell):
    ascii = {"PYTHONIOENCODING": "ascii"}
    code, out, said = shell("", *INSPECT, env=ascii)
    assert (code, said) == (0, "")
    assert "\\u043a\\u043b\\u044e\\u0447:count" in out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_every_encoding(shell, encoding):
    result = json.dumps({"content": [{"type": "text", "text": "é ключ 😀"}]}, ensure_ascii=False)
    call = ("call", "--config", "CONFIG", "one:raw", json.dumps({"result": result}), "--json")
    code, out, _ = shell("", *call, env={"PYTHONIOENCODING": encoding}, encoding=encoding)
    assert code == 0
    assert json.loads(out) == json.loads(result)
