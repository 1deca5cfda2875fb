"""Strategies for JSON as text: not values, but every way in which they can be written.

What is drawn is valid JSON with odd spellings: numbers as nobody writes them, escapes that need not
be, white space of every kind between tokens, members that stand twice.
"""

from hypothesis import strategies as st

SPACES = ("", "", "", " ", "\t", "\n", "\r", "\r\n", "  \n ")
ODD_NUMBERS = ("1.0", "1e5", "-0", "-0.0", "1E+02", "0.10", "1e-7", str(10**400), "1" * 4300)

numbers = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,10})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
_escapes = st.sampled_from(
    [
        "\\n",
        "\\r",
        "\\t",
        "\\b",
        "\\f",
        "\\/",
        '\\"',
        "\\\\",
        "\\u00e9",
        "\\u0041",
        "\\ud83d\\ude00",
    ]
)
_plain = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\')
_brackets = st.sampled_from(["[", "]", "{", "}", "\u2028", "\u2029", "é", "😀", "\x7f"])
strings = st.lists(st.one_of(_plain, _brackets, _escapes), max_size=8).map(
    lambda pieces: f'"{"".join(pieces)}"'
)
spaces = st.sampled_from(SPACES)
scalars = st.one_of(st.sampled_from(["null", "true", "false"]), numbers, strings)


def _joined(brackets: str, pieces: list[str], space: str, other: str) -> str:
    """Pieces between brackets, with white space around each, or instead of them."""
    inside = ",".join(f"{space}{piece}{other}" for piece in pieces)
    return brackets[0] + (inside or space) + brackets[1]


def objects(
    values: st.SearchStrategy[str],
    names: st.SearchStrategy[str] = strings,
    spaces: st.SearchStrategy[str] = spaces,
) -> st.SearchStrategy[str]:
    """Objects as text; ``names`` are JSON strings, quotes and all."""
    members = st.builds("{1}{0}:{0}{2}".format, spaces, names, values)
    return st.builds(_joined, st.just("{}"), st.lists(members, max_size=4), spaces, spaces)


def arrays(
    values: st.SearchStrategy[str], spaces: st.SearchStrategy[str] = spaces
) -> st.SearchStrategy[str]:
    return st.builds(_joined, st.just("[]"), st.lists(values, max_size=4), spaces, spaces)


def texts(spaces: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Any value, with this white space between its tokens."""
    return st.recursive(
        scalars,
        lambda inner: objects(inner, spaces=spaces) | arrays(inner, spaces),
        max_leaves=8,
    )


_in_line = st.sampled_from(["", "", " ", "\t"])
values = texts(spaces)
payloads = objects(values)
payloads_in_line = objects(texts(_in_line), spaces=_in_line)
