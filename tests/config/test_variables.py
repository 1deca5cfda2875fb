"""Variables: each form, one pass, and every missing one named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.config.variables import expand, read_dotenv

ENV = {"HOME": "/home/me", "EMPTY": "", "lower": "l", "MY-VAR": "dash", "A_1": "one", "X": "$HOME"}


@pytest.mark.req("FR-002", "J-ENV-FORMS")
@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$HOME/x", "/home/me/x"),
        ("${HOME}x", "/home/mex"),
        ("$HOME$A_1", "/home/meone"),
        ("a${env:HOME}b", "a/home/meb"),
        ("${lower}", "l"),
        ("${MY-VAR}", "dash"),
        ("$EMPTY.", "."),
        ("${NOT_SET:-default}", "default"),
        ("${NOT_SET:-}", ""),
        ("${EMPTY:-default}", "default"),
        ("${HOME:-default}", "/home/me"),
        ("${env:NOT_SET:-d:-e}", "d:-e"),
        ("$$HOME", "$HOME"),
        ("$$$HOME", "$/home/me"),
        ("$${HOME}", "${HOME}"),
        ("$lower $1 $ 5$", "$lower $1 $ 5$"),
        ("${HOME", "${HOME"),
        ("no variables", "no variables"),
        ("$X ${X}", "$HOME $HOME"),
        ("${NOT_SET:-$HOME}", "$HOME"),
    ],
)
def test_every_form_is_expanded_once(text, expanded):
    assert expand(text, ENV) == (expanded, [])


@pytest.mark.req("FR-002", "US1-5")
def test_every_variable_that_is_not_set_is_named_and_left():
    text, missing = expand("$ONE ${two} ${env:THREE} $HOME $$FOUR", ENV)
    assert missing == ["ONE", "two", "THREE"]
    assert text == "$ONE ${two} ${env:THREE} /home/me $FOUR"


@pytest.mark.req("J-ENV-FORMS")
@given(st.text(), st.text())
def test_what_a_variable_holds_is_never_expanded(before, value):
    prefix = before.replace("$", "$$")
    assert expand(f"{prefix}${{V}}", {"V": value}) == (before + value, [])


@given(st.text(alphabet="${}:-AaB_ env"))
def test_any_text_can_be_expanded(text):
    expanded, missing = expand(text, {})
    assert isinstance(expanded, str)
    assert all(name is not None for name in missing)
    if "$" not in text:
        assert expanded == text


def test_a_dotenv_file_holds_assignments(tmp_path):
    file = tmp_path / ".env"
    file.write_bytes(
        b"\xef\xbb\xbfPLAIN=value\n"
        b"export EXPORTED = spaced \n"
        b"# COMMENT=no\n"
        b"   # INDENTED=no\n"
        b'QUOTED="with # and spaces  "\n'
        b"SINGLE='$HOME'\r\n"
        b"TRAILING=value # why\n"
        b'BEHIND="a # b" # why\n'
        b"SAID='a b'  # it's \"why\"\n"
        b'INSIDE="a"b"\n'
        b'OPEN="a b # why\n'
        b"EMPTY=\n"
        b"EQUALS=a=b=c\n"
        b"not an assignment\n"
        b"HASH=a#b\n"
        b"BYTES=\xff\n"
    )
    assert read_dotenv(file) == {
        "PLAIN": "value",
        "EXPORTED": "spaced",
        "QUOTED": "with # and spaces  ",
        "SINGLE": "$HOME",
        "TRAILING": "value",
        "BEHIND": "a # b",
        "SAID": "a b",
        "INSIDE": 'a"b',
        "OPEN": '"a b',
        "EMPTY": "",
        "EQUALS": "a=b=c",
        "HASH": "a#b",
        "BYTES": "\udcff",
    }


def test_a_dotenv_that_is_not_there_or_a_folder_holds_nothing(tmp_path):
    assert read_dotenv(tmp_path / ".env") == {}
    (tmp_path / ".env").mkdir()
    assert read_dotenv(tmp_path / ".env") == {}
    (tmp_path / "file").touch()
    assert read_dotenv(tmp_path / "file" / ".env") == {}


def test_a_dotenv_that_cannot_be_read_is_left_out_with_a_warning(tmp_path, caplog):
    assert read_dotenv(tmp_path / ("x" * 300) / ".env") == {}
    assert "is left out: File name too long" in caplog.text
