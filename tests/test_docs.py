"""The pages in `docs/` say what the program does: what is missing or outdated fails here."""

import re
from pathlib import Path

import pytest

from mcp_junction.config.merge import CHOICES, RANGES
from mcp_junction.config.settings import DEFAULTS, Settings, variable_of

DOCS = Path(__file__).parent.parent / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "configuration.md").read_text("utf-8").splitlines()
    if line.startswith("|")
]


def row_of(name: str) -> list[str]:
    """Find the row that describes a setting, by its name and its variable."""
    pattern = re.compile(rf"`{name}`,? `{variable_of(name)}`")
    found = [row for row in ROWS if pattern.search(" ".join(row[:2]))]
    assert len(found) == 1, f"docs/configuration.md has {len(found)} rows for {name}"
    return found[0]


@pytest.mark.parametrize("name", Settings._fields)
def test_a_setting_is_documented_with_its_variable(name):
    assert row_of(name)[-1], "it says what the setting is for"


@pytest.mark.parametrize("name", [*RANGES, *CHOICES])
def test_its_default_and_range_are_documented(name):
    text = " | ".join(row_of(name))
    default = str(getattr(DEFAULTS, name))
    assert default in text.replace("`", "").replace(" | ", "|").split("|")
    if name in RANGES:
        assert "{:,} – {:,}".format(*RANGES[name]) in text
    else:
        for choice in set(CHOICES[name]) - {"off"}:
            assert f"`{choice}`" in text
