"""`tools show` and `tools set`: what holds for a tool of a running service."""

import json

import pytest
from tests.cli.serving import serve_demo

pytestmark = pytest.mark.preloaded


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with serve_demo(tmp_path_factory.mktemp("tools")) as served:
        yield served


@pytest.fixture
def ask(demo, program):
    def run(*words, fails=False):
        ended = program("tools", *words, "--url", demo.url, "--data-dir", demo.folder)
        assert (ended.returncode != 0) is fails, (ended.stdout, ended.stderr)
        return ended

    return run


def test_a_tool_is_shown_with_its_risk_and_why(ask):
    shown = ask("show", "notes.delete").stdout
    for words in ("notes.delete", "high", "delete", "CLOSED"):
        assert words in shown
    found = json.loads(ask("show", "clock.now", "--json").stdout)
    assert (found["server_id"], found["tool_name"], found["risk"]) == ("clock", "now", "low")


def test_what_is_set_holds_until_it_is_unset(ask):
    pairs = ["idempotent=true", "timeout_ms=5000", "risk=high", "fallbacks=clock.convert,notes.x"]
    said = ask("set", "clock.now", *pairs).stdout
    assert "clock.convert" in said
    found = json.loads(ask("show", "clock.now", "--json").stdout)
    assert found["risk"] == "high"
    chosen = found["settings"]
    assert (chosen["idempotent"], chosen["timeout_ms"]) == (True, 5000)
    assert [one["tool_name"] for one in chosen["fallbacks"]] == ["convert", "x"]
    assert "set: idempotent" in ask("show", "clock.now").stdout
    assert (
        "Nothing is set" in ask("set", "clock.now", *(f"{p.split('=')[0]}=" for p in pairs)).stdout
    )


def test_settings_that_name_no_known_tool_are_set_with_a_warning(ask):
    said = ask("set", "clock.nwo", "enabled=false")
    assert "false" in said.stdout
    assert "warning: no known tool of 'clock' is named 'nwo' (near: now)" in said.stderr
    said = ask("set", "clock.now", "fallbacks=notes.x", "--json")
    (warning,) = json.loads(said.stdout)["warnings"]
    assert warning == "no known tool of 'notes' is named 'x'; as a fallback it is passed over"
    assert warning in said.stderr
    for words in (("clock.nwo", "enabled="), ("clock.now", "fallbacks=")):
        said = ask("set", *words)
        assert "Nothing is set" in said.stdout
        assert "warning" not in said.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "clock.now", "colour=red"), "with a key of enabled"),
        (("set", "clock.now", "idempotent"), "must be KEY=VALUE"),
        (("set", "clock.now", "idempotent=perhaps"), "idempotent must be true or false"),
        (("set", "clock.now", "timeout_ms=1.5"), "timeout_ms must be a whole number"),
        (("set", "clock.now", "timeout_ms=0"), "timeout_ms"),
        (("set", "clock.now", "fallbacks=nowhere.x"), "'nowhere.x' names no known server"),
        (("set", "nowhere.now", "risk=low"), "names no known server"),
        (("set", "clock.now", "risk=medium"), "'risk=medium': risk must be high or low"),
        (("set", "clock.*", "risk=high"), "tool_name must name one tool"),
        (("show", "clock.*"), "no known tool of 'clock' is named '*'"),
        (("show", "clock.nwo"), "no known tool of 'clock' is named 'nwo' (near: now)"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(ask, words, told):
    assert told in ask(*words, fails=True).stderr
