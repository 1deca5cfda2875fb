"""Which names stand for secrets, and whether a text has one."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.redaction.detect import SECRET_WORDS, is_secret_name, names_secret

PIECES = [*SECRET_WORDS, *(word[:-1] for word in SECRET_WORDS), *(w[1:] for w in SECRET_WORDS)]


@given(
    st.lists(st.sampled_from([*PIECES, "broken", "k", " ", "é", "İ"]), max_size=4), st.booleans()
)
def test_a_text_has_a_name_when_one_of_the_words_is_in_it_in_any_case(parts, shouted):
    text = "".join(parts).upper() if shouted else "".join(parts)
    plainly = any(word in text.lower() for word in SECRET_WORDS)
    assert names_secret(text) == plainly
    assert is_secret_name(text) >= plainly
