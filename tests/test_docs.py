"""The pages in `docs/` say what the program does: what is missing or outdated fails here."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from mcp_junction.cli.main import COMMANDS
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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_in_the_list_of_the_readme(command):
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    listed = readme.partition("## Commands")[2].partition("\n## ")[0]
    assert f"`{command}`" in listed


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        import_module(f"mcp_junction.cli.{command}").run(["--help"])
    assert not ended.value.code
    _, _, examples = capsys.readouterr().out.partition("example")
    assert "\n  mcp-junction" in examples


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_between_the_pages_lead_somewhere(path):
    text = path.read_text("utf-8")
    for page, anchor in re.findall(r"\]\(([\w.-]*\.md)?(?:#([\w-]+))?\)", text):
        target = path.parent / page if page else path
        assert target.exists(), page
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{page}#{anchor}"


def _anchor(heading: str) -> str:
    """The anchor that a heading gets."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


def test_each_route_of_governed_calls_is_in_the_table():
    from mcp_junction.api.app import make_app
    from mcp_junction.web.application import path_format

    text = (DOCS / "rest.md").read_text("utf-8").partition("## Governed calls")[2]
    told = {re.sub(r"\{\w+\}", "{}", path) for path in re.findall(r"(/[\w/{}-]+)", text)}
    paths = {
        re.sub(r"\{\w+\}", "{}", path_format(one).removeprefix("/api/v1/mcp"))
        for one in make_app(object()).operations
        if one.path.startswith("/api/v1/mcp/")
    }
    assert len(paths) >= 12
    missing = {path for path in paths if path not in told and f"{path}/reset" not in told}
    assert missing == set()
