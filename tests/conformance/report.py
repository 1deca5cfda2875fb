"""The page `docs/conformance.md`: what the official suite found, from the results of a test run.

    python tests/conformance/report.py --check    compare the page with the last run's results
    python tests/conformance/report.py --write    make the page from them

`test_conformance.py` leaves the results in `.reports/conformance/`, one file per column; the tests
of the four cells leave theirs in `cells/` there, one file per test. Only facts of the run are on
the page: no dates, no paths, no ports, so that the same results make the same page. This runs
nothing itself.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(".reports/conformance")
CELL_RESULTS = RESULTS / "cells"
PAGE = Path("docs/conformance.md")
PINS = Path("tests/peers/package.json")
SUITE = "@modelcontextprotocol/conformance"

ABSENT = "–"  # the scenario is not one of that version


@dataclass(frozen=True)
class Row:
    """What one scenario came to: its checks, and in words what went wrong."""

    scenario: str
    passed: int
    failed: int
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failed and not self.problems

    def cell(self) -> str:
        counted = f"{self.passed}/{self.passed + self.failed}"
        return counted if self.ok else f"**{counted} failed**"


@dataclass(frozen=True)
class Column:
    """One run of the suite's scenarios for a server or for a client, which the gateway is then."""

    role: str  # "server", "client" or "authorization", where it is a client that signs in
    version: str
    upstream: str  # the transport to the server behind the gateway
    era: str = "both"  # what that server speaks: the version's own era alone, or both

    @property
    def key(self) -> str:
        both = "-both" if self.role == "server" and self.era == "both" else ""
        return f"{self.role}-{self.version}-{self.upstream}{both}"

    @property
    def title(self) -> str:
        if self.role == "authorization":
            return self.version
        transport = {"http": "HTTP", "stdio": "stdio"}[self.upstream]
        both = " of both eras" if self.role == "server" and self.era == "both" else ""
        return f"{self.version}, {transport} upstream{both}"


COLUMNS = (
    Column("server", "2025-11-25", "http", "old"),
    Column("server", "2025-11-25", "stdio", "old"),
    Column("server", "2025-11-25", "http", "both"),
    Column("server", "2026-07-28", "http", "new"),
    Column("server", "2026-07-28", "stdio", "new"),
    Column("server", "2026-07-28", "http", "both"),
    Column("client", "2025-11-25", "http"),
    Column("client", "2026-07-28", "http"),
    Column("authorization", "2025-03-26", "http"),
    Column("authorization", "2025-11-25", "http"),
    Column("authorization", "2026-07-28", "http"),
    Column("authorization", "extension", "http"),
)
AUTH_COLUMNS = {column.version: column for column in COLUMNS if column.role == "authorization"}
AUTH_LEFT_OUT = {
    "auth/2025-03-26-oauth-endpoint-fallback": "guesses endpoints, so that PKCE cannot be verified",
    "auth/enterprise-managed-authorization": "needs the ID token of the person at our door",
    "auth/dpop": "a proof for each request costs more than a call",
    "auth/dpop-nonce": "a proof for each request costs more than a call",
}
SECTIONS = {
    "server": (
        "As a server",
        "The suite is the client; behind the gateway is one server, "
        "`tests/conformance/fixture.py`, which passes them all by itself. It speaks the era of "
        "the column's version alone, or both.",
    ),
    "client": (
        "As a client",
        "The suite is the server behind the gateway; in front is a client of the official Python "
        "SDK.",
    ),
    "authorization": (
        "As a client that signs in",
        "The suite is the server and its authorization server; somebody signs in through the "
        "gateway, by its pages. Left out: "
        + "; ".join(f"`{name}` ({why})" for name, why in AUTH_LEFT_OUT.items())
        + ".",
    ),
}

Results = Mapping[str, Sequence[Row]]  # by the key of a column

FEATURES = (
    "elicitation",
    "sampling",
    "roots",
    "progress",
    "cancellation",
    "logging",
    "list_changed",
    "subscriptions",
    "completions",
    "pagination",
)
# The client's era and the server's, in the order of the columns.
CELLS = {
    ("old", "old"): "old → old",
    ("new", "new"): "new → new",
    ("old", "new"): "old client → new server",
    ("new", "old"): "new client → old server",
}
IMPOSSIBLE: Mapping[tuple[str, str, str], str] = {}  # feature, client, server: the reason
LEFT_OUT = (
    "An older server over stdio does not say to which call a question or a log message belongs. "
    "Once two principals have used its process, or while calls of two clients are under way there, "
    "its question is refused rather than put to the wrong one, and its log message dropped; "
    '`"isolation": "per-session"` gives each client a process of its own.',
    "A server of the older era may ask outside any call. A client of 2026-07-28 can only be asked "
    "in the answer to a call of its own, so such a question is refused.",
    "Only `tools/call`, `prompts/get` and `resources/read` may be answered with a question in "
    "2026-07-28; what an older server asks during any other request is refused for a new client.",
    "Logs that an older server sends outside any call have no request that asked for them, so a "
    "client of 2026-07-28 never gets them. Over stdio no log says which call it is about: what "
    "comes while several calls are under way at one process is not passed on to such clients, "
    "either.",
    'Where an older server is kept apart with `"isolation": "per-session"`, changes are heard of '
    "from the process whose lists are read; what a new client's own process announces reaches no "
    "`subscriptions/listen`.",
    "2026-07-28 has no event ids: an old client can resume its stream to the gateway, but a call "
    "whose stream to a new server broke is lost.",
    "2026-07-28 has no `notifications/roots/list_changed`: a server of that era asks again.",
)
Cells = Mapping[tuple[str, str, str], Sequence[bool]]  # feature, client, server: what was found


# The results of a run


def save(root: Path, column: Column, rows: Iterable[Row]) -> None:
    folder = root / RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in rows], indent=1)
    (folder / f"{column.key}.json").write_text(text + "\n", encoding="utf-8")


def load(root: Path) -> dict[str, list[Row]]:
    """The results there are; a run of some of the tests leaves some."""
    found = {}
    for column in COLUMNS:
        path = root / RESULTS / f"{column.key}.json"
        if path.exists():
            rows = json.loads(path.read_text("utf-8"))
            found[column.key] = [Row(**{**row, "problems": tuple(row["problems"])}) for row in rows]
    return found


def load_cells(root: Path) -> dict[tuple[str, str, str], list[bool]]:
    """What each test of the four cells found."""
    found: dict[tuple[str, str, str], list[bool]] = {}
    for path in sorted((root / CELL_RESULTS).glob("*.json")):
        row = json.loads(path.read_text("utf-8"))
        for feature in row["features"]:
            key = feature, row["client"], row["server"]
            found.setdefault(key, []).append(row["passed"])
    return found


def missing_cells(cells: Cells) -> list[str]:
    """The cells with neither a result nor a reason."""
    return [
        f"{feature}, {title}"
        for feature in FEATURES
        for (client, server), title in CELLS.items()
        if (feature, client, server) not in {**cells, **IMPOSSIBLE}
    ]


# The page


def render(results: Results, cells: Cells, pinned: str) -> str:
    lines = [
        "<!-- Made by `python tests/conformance/report.py --write` from a run of the tests. -->",
        "# Conformance",
        "",
        f"What the official suite, `{SUITE}` {pinned}, finds through the gateway, started with "
        "`mcp-junction serve --prefix never` in front of one server. A cell has the checks that "
        "passed, of those that apply; a warning counts as a failure.",
    ]
    for role, (title, explanation) in SECTIONS.items():
        columns = [column for column in COLUMNS if column.role == role]
        lines += ["", f"## {title}", "", explanation, "", *_table(columns, results)]
    lines += ["", "## Four cells", "", *_cells(cells)]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[Column], results: Results) -> list[str]:
    by_column = [{row.scenario: row for row in results[column.key]} for column in columns]
    names = dict.fromkeys(name for rows in by_column for name in rows)  # the suite's own order
    return [
        _line("scenario", *(column.title for column in columns)),
        _line(*["---"] * (len(columns) + 1)),
        *(
            _line(
                f"`{name}`", *(rows[name].cell() if name in rows else ABSENT for rows in by_column)
            )
            for name in names
        ),
        _line("**passed**", *(_total(rows.values()) for rows in by_column)),
    ]


def _cells(found: Cells) -> list[str]:
    def cell(feature: str, client: str, server: str) -> str:
        key = feature, client, server
        if key in IMPOSSIBLE:
            return IMPOSSIBLE[key]
        counted = f"{sum(found[key])}/{len(found[key])}"
        return counted if all(found[key]) else f"**{counted} failed**"

    return [
        "A client of either era in front of a server of either era alone, the older being "
        "2025-11-25 and the newer 2026-07-28. The clients are those of the official Python SDK and "
        "of the TypeScript SDK, 1.x and 2.x; the gateway is asked over HTTP and over stdio, and so "
        "is the server, `tests/journeys_eras/server.py`. A cell has the journeys that passed.",
        "",
        _line("feature", *CELLS.values()),
        _line(*["---"] * (len(CELLS) + 1)),
        *(
            _line(feature, *(cell(feature, client, server) for client, server in CELLS))
            for feature in FEATURES
        ),
        "",
        "What the protocol itself leaves out between the eras:",
        "",
        *(f"- {words}" for words in LEFT_OUT),
    ]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _total(rows: Iterable[Row]) -> str:
    outcomes = [row.ok for row in rows]
    return f"**{sum(outcomes)} of {len(outcomes)}**"


def pinned_version(root: Path) -> str:
    pins = json.loads((root / PINS).read_text("utf-8"))
    return pins["dependencies"][SUITE]


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The page about conformance.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="exit 1 if the page is not current")
    action.add_argument("--write", action="store_true", help=f"make {PAGE}")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    options = parser.parse_args(arguments)
    results = load(options.root)
    cells = load_cells(options.root)
    missing = [column.key for column in COLUMNS if column.key not in results]
    missing += missing_cells(cells)
    if missing:
        # Without the suite, or after a part of the tests, there is nothing to go by.
        print(f"conformance: {PAGE} not compared: no results of {', '.join(missing)}")
        return 1 if options.write else 0
    page = render(results, cells, pinned_version(options.root))
    return _write(options.root, page) if options.write else _check(options.root, page)


def _write(root: Path, page: str) -> int:
    (root / PAGE).write_text(page, encoding="utf-8")
    return 0


def _check(root: Path, page: str) -> int:
    path = root / PAGE
    if not path.exists() or path.read_text("utf-8") != page:
        command = "python tests/conformance/report.py --write"
        print(f"conformance: {PAGE} is not what the tests found; run `{command}`", file=sys.stderr)
        return 1
    print(f"conformance: {PAGE} is current")
    return 0


if __name__ == "__main__":
    sys.exit(main())
