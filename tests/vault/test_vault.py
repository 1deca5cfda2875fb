"""Sealing: what the vault promises of a value, and where its key comes from."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.errors import UsageError, VaultError
from mcp_junction.vault.vault import FILE, VARIABLE, Vault, read_keys

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


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
