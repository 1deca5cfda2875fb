"""Sealing: what the vault promises of a value, and where its key comes from."""

import base64
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.errors import MissingKey, UsageError, VaultError
from mcp_junction.vault.key_file import FILE, VARIABLE, KeyFile, VaultKeys
from mcp_junction.vault.vault import Vault

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


def read_keys(environ, data_dir) -> list[bytes]:
    return list(KeyFile(environ, data_dir).read().active)


@given(plain=st.binary(max_size=200), identity=st.text(max_size=30))
def test_what_is_sealed_opens_for_its_own_row_and_no_other(plain, identity):
    vault = Vault([ONE])
    sealed = vault.seal(plain, identity)
    assert vault.open(sealed, identity) == plain
    assert sealed != vault.seal(plain, identity)
    with pytest.raises(VaultError):
        vault.open(sealed, identity + "x")


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_one_bit_that_differs_is_noticed(place, bit):
    sealed = bytearray(Vault([ONE]).seal(b"secret", "row"))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(VaultError) as refused:
        Vault([ONE]).open(bytes(sealed), "row")
    assert "secret" not in str(refused.value)


def test_a_new_key_seals_and_the_old_one_still_opens():
    old = Vault([ONE]).seal(b"x", "row")
    both = Vault([TWO, ONE])
    assert both.open(old, "row") == b"x"
    new = both.seal(b"y", "row")
    assert Vault([TWO]).open(new, "row") == b"y"
    for stranger, sealed in ((Vault([TWO]), old), (Vault([ONE]), new)):
        with pytest.raises(VaultError, match="a key that is not here"):
            stranger.open(sealed, "row")
    with pytest.raises(VaultError, match="not sealed"):
        both.open(b"plain text", "row")


def test_derived_keys_differ_by_purpose_and_key_and_nothing_shows_them():
    vault = Vault([TWO, ONE])
    assert vault.derive_keys("audit") == [
        *Vault([TWO]).derive_keys("audit"),
        *Vault([ONE]).derive_keys("audit"),
    ]
    assert vault.derive_keys("audit")[0] != vault.derive_keys("other")[0] != TWO
    assert TWO.hex() not in repr(vault)
    assert vault.key_id == Vault([TWO]).key_id


@pytest.mark.parametrize(
    "text",
    [ONE.hex(), base64.b64encode(ONE).decode(), f" {base64.urlsafe_b64encode(ONE).decode()}\n"],
)
def test_the_key_may_come_from_the_environment(tmp_path, text):
    assert read_keys({VARIABLE: text}, tmp_path) == [ONE]
    assert read_keys({VARIABLE: f"{text},{TWO.hex()}"}, tmp_path) == [ONE, TWO]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["canary", "00" * 31, base64.b64encode(ONE[1:]).decode(), "é"])
def test_a_key_that_is_none_is_refused_without_showing_it(tmp_path, text):
    with pytest.raises(UsageError, match="32 bytes in base64 or hex") as refused:
        read_keys({VARIABLE: text}, tmp_path)
    assert text not in str(refused.value)


def test_without_one_a_key_file_is_made_once_for_its_owner_only(tmp_path):
    folder = tmp_path / "new"
    first = read_keys({}, folder)
    path = folder / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in folder.iterdir()] == [FILE]
    path.chmod(0o644)
    assert read_keys({}, folder) == first
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("")
    with pytest.raises(UsageError, match="holds no usable key"):
        read_keys({}, folder)


def test_a_key_that_the_file_has_got_since_is_found_when_it_is_met(tmp_path):
    running = Vault.from_environment({}, tmp_path)
    old = running.seal(b"x", "row")
    file = KeyFile({}, tmp_path)
    file.write(VaultKeys((TWO, *file.read().active)))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    other = Vault.from_environment({}, tmp_path)
    assert running.key_id != other.key_id
    assert running.open(other.seal(b"y", "row"), "row") == b"y"
    assert running.key_id == other.key_id, "it seals with the new one from now on"
    file.write(VaultKeys((b"t" * 32, *file.read().active)))
    assert running.seal(b"z", "row")[1:5] == Vault([b"t" * 32]).seal(b"", "")[1:5]
    other.refresh()
    assert running.verify(b"m", other.sign(b"m", "p"), "p")
    assert running.open(old, "row") == b"x"
    assert not running.refresh()


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    writer, read_text = KeyFile({}, tmp_path), Path.read_text
    old = writer.read()

    def read_then_replace(path, *args, **options):
        text = read_text(path, *args, **options)
        monkeypatch.setattr(Path, "read_text", read_text)
        writer.write(VaultKeys((TWO, *old.active)))
        return text

    monkeypatch.setattr(Path, "read_text", read_then_replace)
    running = Vault.from_environment({}, tmp_path)
    assert running.seal(b"x", "row")[1:5] == Vault([TWO]).seal(b"", "")[1:5]


def test_keys_that_cannot_be_written_leave_no_copy_of_themselves(tmp_path):
    file = KeyFile({}, tmp_path)
    (file.path / "in the way").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be written"):
        file.write(VaultKeys((ONE,)))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_retired_key_opens_and_verifies_nothing_but_is_there_for_the_audit(tmp_path):
    old = Vault([ONE])
    text = f"{TWO.hex()} retired:{ONE.hex()}"
    vault = Vault.from_environment({VARIABLE: text}, tmp_path)
    with pytest.raises(MissingKey):
        vault.open(old.seal(b"x", "row"), "row")
    assert not vault.verify(b"m", old.sign(b"m", "p"), "p")
    assert vault.derive_keys("audit")[1:] == old.derive_keys("audit")
    assert (vault.key_ids, vault.retired_ids) == ([Vault([TWO]).key_id], [old.key_id])


def test_a_file_that_cannot_be_read_any_more_leaves_the_keys_as_they_are(tmp_path, caplog):
    vault = Vault.from_environment({}, tmp_path)
    sealed = vault.seal(b"x", "row")
    (tmp_path / FILE).write_text("nonsense", "utf-8")
    assert not vault.refresh()
    assert "cannot be read again" in caplog.text
    assert vault.open(sealed, "row") == b"x"
    (tmp_path / FILE).unlink()
    assert vault.open(sealed, "row") == b"x"


def test_only_retired_keys_are_no_keys(tmp_path):
    with pytest.raises(UsageError, match="no usable key"):
        read_keys({VARIABLE: f"retired:{ONE.hex()}"}, tmp_path)
