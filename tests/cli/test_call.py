"""`mcp-junction call`: one tool, called as a client would."""

import json
import subprocess

import pytest
from tests.journeys.client import BOUND
from tests.plugin_journeys import python_server, scripted

pytestmark = pytest.mark.preloaded


@pytest.fixture
def call(program, config):
    def run(*words, **how):
        servers = {"one": scripted(), "bad": scripted(last_words="no")}
        options = ["--config", how.pop("path", None) or config(servers)]
        return program("call", *options, *words, **how)

    return run


@pytest.mark.req("US3-1")
def test_the_text_of_a_result_is_printed(call):
    shown = call("one:count")
    assert (shown.returncode, shown.stdout) == (0, "1\n")


def test_a_failed_server_is_told_of_where_its_tool_may_be_meant(call):
    shown = call("other:count")
    assert shown.returncode == 1
    assert "server 'bad' failed" in shown.stderr


def test_servers_that_are_not_called_are_not_waited_for(program, config):
    servers = {"mute": python_server("silent"), "one": scripted("count")}
    path = config(servers, list_wait_ms=3_600_000)
    shown = program("call", "--config", path, "one:count")
    assert (shown.returncode, shown.stdout) == (0, "1\n")


@pytest.mark.req("J-LENIENT")
def test_a_missing_variable_of_another_server_does_not_keep_a_call_away(program, config):
    unset = {**scripted("count"), "env": {"KEY": "${JUNCTION_TEST_UNSET}"}}
    path = config({"bad": unset, "one": scripted("count")})
    shown = program("call", "--config", path, "one:count")
    assert (shown.returncode, shown.stdout) == (0, "1\n")
    failed = program("call", "--config", path, "bad:count")
    assert failed.returncode == 1
    assert "the environment variable JUNCTION_TEST_UNSET is not set" in failed.stderr


@pytest.mark.req("FR-007")
def test_arguments_reach_the_server_as_they_were_written(call):
    arguments = '{"a": 1.0, "b":1e5,"c":12345678901234567890123, "d": "é"}'
    shown = call("one:echo", arguments)
    assert f'"arguments":{arguments}' in shown.stdout


def test_arguments_can_come_from_stdin_and_be_long(call):
    arguments = json.dumps({"text": "x" * 300_000, "lines": ["a\nb"]}, indent=2)
    shown = call("one:echo", "-", stdin=arguments)
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["params"]["arguments"] == json.loads(arguments)


def test_json_prints_the_whole_result(call):
    result = {
        "content": [{"type": "text", "text": "é"}],
        "structuredContent": {"n": 1},
        "_meta": {"x": [None]},
    }
    shown = call("one:raw", json.dumps({"result": json.dumps(result)}), "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout) == result


def test_a_result_that_is_not_only_text_is_printed_whole(call):
    result = {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    shown = call("one:raw", json.dumps({"result": json.dumps(result)}))
    assert json.loads(shown.stdout) == result


@pytest.mark.parametrize(
    "result", ['{"structuredContent":{}}', '{"content":[]}', '{"content":[5]}', "[]"]
)
def test_a_result_of_another_shape_is_printed_as_it_is(call, result):
    shown = call("one:raw", json.dumps({"result": result}))
    assert shown.returncode == 0
    assert json.loads(shown.stdout) == json.loads(result)


@pytest.mark.req("US3-2")
def test_a_tool_that_says_it_failed_gives_exit_code_1(call):
    result = {"content": [{"type": "text", "text": "no such file"}], "isError": True}
    shown = call("one:raw", json.dumps({"result": json.dumps(result)}))
    assert (shown.returncode, shown.stdout) == (1, "no such file\n")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_error_of_the_server_gives_exit_code_1_and_its_words(call, options):
    error = {"code": -32602, "message": "expected a number", "data": {"at": "x"}}
    shown = call("one:refuse", json.dumps({"error": json.dumps(error)}), *options)
    assert shown.returncode == 1
    assert 'mcp-junction: expected a number (code -32602)\n  {"at": "x"}\n' in shown.stderr
    if options:
        assert json.loads(shown.stdout) == {"error": error}
    else:
        assert shown.stdout == ""


@pytest.mark.req("US3-4", "J-NOT-FOUND")
def test_an_unknown_name_gives_exit_code_1_and_the_nearest_names(call):
    shown = call("one:cuont")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "unknown tool: one:cuont; did you mean one:count" in shown.stderr


@pytest.mark.req("J-NAMES-ANY")
@pytest.mark.parametrize("name", ["one:count", "one.count", "one__count"])
def test_any_spelling_will_do(call, name):
    assert call(name).stdout == "1\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"a": nonsense}', "the arguments are not JSON: line 1, column 7"),
        ("", "the arguments are not JSON: line 1, column 1"),
        ("[1]", "must be a JSON object"),
        ("5", "must be a JSON object"),
        ('{"a": NaN}', "the arguments are not JSON"),
        ('{"a": "\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1"), None),
    ],
)
def test_arguments_that_are_not_json_are_refused_before_anything_starts(
    program, config, tmp_path, arguments, words
):
    starts = tmp_path / "starts"
    path = config({"one": scripted("echo", starts=str(starts))})
    if words is None:  # odd, but JSON
        assert program("call", "--config", path, "one:echo", arguments).returncode == 0
        return
    assert words in program.refused("call", "--config", path, "one:echo", arguments)
    assert words in program.refused("call", "--config", path, "one:echo", "-", stdin=arguments)
    assert not starts.exists()


@pytest.mark.parametrize("digits", [1000, 4300])
def test_a_number_may_be_as_long_as_in_a_frame(call, digits):
    arguments = '{"a": %s}' % ("7" * digits)
    shown = call("one:echo", arguments)
    assert f'"arguments":{arguments}' in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"a": %s}' % ("7" * 4301), "the arguments: a number has more than 4300 digits"),
        ('{"a": %s}' % ("[" * 64 + "]" * 64), "the arguments: nested deeper than 64 levels"),
        ('{"a": %s}' % ("[" * 9999 + "]" * 9999), "the arguments: nested deeper than 64 levels"),
        ('{"a":\n "b" 5}', "the arguments are not JSON: line 2, column 6"),
        (" ", "the arguments are not JSON: line 1, column 2: Expecting value"),
        (r'{"a": "\ud800"}', "the arguments: an escape such as \\ud800 is half a character"),
    ],
)
def test_arguments_have_the_limits_of_a_frame(call, arguments, words):
    for given in ({"path": None}, {"stdin": arguments}):
        shown = call("one:echo", "-" if "stdin" in given else arguments, **given)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert shown.stderr.startswith(f"mcp-junction: {words}")


def test_arguments_that_are_not_utf8_are_refused(executable, config):
    words = [*executable, "call", "--config", str(config({"one": scripted("echo")})), "one:echo"]
    bad = b'{"x":"\xff"}'
    for given, text in ((bad, b""), (b"-", bad)):
        ended = subprocess.run([*words, given], input=text, capture_output=True, timeout=BOUND)
        assert (ended.returncode, ended.stdout) == (2, b"")
        assert ended.stderr == b"mcp-junction: the arguments are not UTF-8: byte 6\n"


@pytest.mark.parametrize("number", ["1e400", "9" * 4300])
def test_numbers_that_nobody_can_hold_are_printed_as_they_are(call, number):
    result = '{"content":[{"type":"text","text":"x"}],"_meta":{"n":NUMBER}}'.replace(
        "NUMBER", number
    )
    shown = call("one:raw", json.dumps({"result": result}), "--json")
    assert shown.returncode == 0
    assert f'"n": {number}' in shown.stdout


def test_a_server_that_dies_on_the_call_gives_exit_code_1(call):
    shown = call("one:die", '{"code": 4}')
    assert shown.returncode == 1
    assert "the connection to server 'one' was lost: exited with code 4" in shown.stderr


def test_a_timeout_gives_exit_code_1(program, config):
    path = config({"one": {**scripted(), "timeout": 100}})
    shown = program("call", "--config", path, "one:hold")
    assert shown.returncode == 1
    assert "did not answer within 0.1 s" in shown.stderr
