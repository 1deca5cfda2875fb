"""The requirements manifest: what must be shown, what claims to show it, and what did.

`requirements.toml` lists the ids. Tests claim them with `@pytest.mark.req(...)`, benchmark cases
with `@case("name", ..., req=(...))`; both are read from the source, so that nothing has to run for
the page in `docs/`. Which tests passed is in the report that `plugin_requirements.py` leaves.

    python tests/manifest.py --check    compare all of these; list every problem, exit 1 if any
    python tests/manifest.py --write    make docs/requirements.md

This is not a test runner, and it knows nothing about the program.
"""

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("tests/requirements.toml")
REPORT = Path(".reports/requirements.json")
PAGE = Path("docs/requirements.md")
FIELDS = {"behaviour", "source", "status", "both_stores"}
LONGEST = 180
OVER_HTTP = "tests/api/"
LITERAL = "call the mark with the requirement ids as literal strings"


class ManifestError(Exception):
    """The list itself is not usable; `args[0]` holds every reason."""


@dataclass(frozen=True)
class Requirement:
    id: str
    behaviour: str
    source: str
    family: str
    planned: bool
    both_stores: bool = False  # one test shows it over HTTP, on SQLite and on PostgreSQL


@dataclass(frozen=True)
class Manifest:
    sources: Mapping[str, str]
    families: Mapping[str, str]  # prefix of an id -> title
    requirements: Mapping[str, Requirement]


@dataclass(frozen=True)
class Claim:
    """Some source text says that it shows a requirement."""

    id: str
    place: str  # a test file, or the name of a benchmark case
    line: str  # path:line, for messages
    by_benchmark: bool = False


@dataclass(frozen=True)
class Claims:
    found: Sequence[Claim]
    unreadable: Sequence[str]  # marks whose ids cannot be known without running

    def by_id(self) -> dict[str, list[Claim]]:
        grouped: dict[str, list[Claim]] = {}
        for claim in self.found:
            grouped.setdefault(claim.id, []).append(claim)
        return grouped


# --- the list ---------------------------------------------------------------------------------


def load(path: Path) -> Manifest:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError([f"{path.name}: {error}"]) from error
    return read(document)


def read(document: Mapping[str, Any]) -> Manifest:
    sources = document.get("source", {})
    families = document.get("family", {})
    strangers = document.keys() - {"source", "family", "req"}
    problems = [f"unknown table {name}" for name in sorted(strangers)]
    requirements = {}
    for id_, entry in document.get("req", {}).items():
        prefixes = [prefix for prefix in families if id_.startswith(prefix)]
        wrong = list(_entry_problems(entry, sources, prefixes))
        problems += [f"{id_}: {what}" for what in wrong]
        if not wrong:
            requirements[id_] = Requirement(
                id=id_,
                behaviour=entry["behaviour"],
                source=entry["source"],
                family=prefixes[0],
                planned="status" in entry,
                both_stores=entry.get("both_stores", False),
            )
    if not requirements:
        problems.append("no requirements listed")
    if problems:
        raise ManifestError(problems)
    return Manifest(sources, families, requirements)


def _entry_problems(
    entry: Mapping[str, Any], sources: Mapping[str, str], prefixes: Sequence[str]
) -> Iterator[str]:
    for field in sorted(entry.keys() - FIELDS):
        yield f"unknown field {field}"
    behaviour = entry.get("behaviour")
    if not isinstance(behaviour, str) or not behaviour.endswith("."):
        yield "behaviour must be a sentence"
    elif len(behaviour) > LONGEST or "\n" in behaviour or "|" in behaviour:
        yield f"behaviour must be one line of at most {LONGEST} characters, without '|'"
    if entry.get("source") not in sources:
        yield f"source {entry.get('source')!r} is not in [source]"
    if entry.get("status", "planned") != "planned":
        yield 'status is "planned" or left out'
    if not isinstance(entry.get("both_stores", True), bool):
        yield "both_stores is true or left out"
    if len(prefixes) != 1:
        yield f"belongs to {len(prefixes)} families, not 1"


# --- the claims -------------------------------------------------------------------------------


def claims_of_tree(root: Path) -> Claims:
    """What the tests and benchmarks of this checkout claim."""
    found: list[Claim] = []
    unreadable: list[str] = []
    for folder, reader in (("tests", claims_of_tests), ("benchmarks", claims_of_benchmarks)):
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            claims = reader(path.read_text(encoding="utf-8"), name)
            found += claims.found
            unreadable += claims.unreadable
    return Claims(found, unreadable)


def claims_of_tests(source: str, name: str) -> Claims:
    """The ids in every `pytest.mark.req(...)` of one file, wherever the mark stands."""
    found: list[Claim] = []
    unreadable: list[str] = []
    nodes = list(ast.walk(ast.parse(source)))
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "req" and _name(node.value) == "mark":
            line = f"{name}:{node.lineno}"
            call = called.get(id(node))
            ids = _texts(call.args) if call else []
            found += [Claim(id_, name, line) for id_ in ids]
            if not ids:
                unreadable.append(f"{line}: {LITERAL}")
    return Claims(found, unreadable)


def claims_of_benchmarks(source: str, name: str) -> Claims:
    """The ids in the `req=` of every `case(...)` of one file."""
    found: list[Claim] = []
    unreadable: list[str] = []
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and _name(call.func) == "case"):
            continue
        options = {keyword.arg: keyword.value for keyword in call.keywords}
        if "req" not in options:
            continue
        line = f"{name}:{call.lineno}"
        value = options["req"]
        ids = _texts(value.elts if isinstance(value, ast.Tuple | ast.List) else [value])
        (case,) = _texts([*call.args, *filter(None, [options.get("name")])][:1]) or [line]
        found += [Claim(id_, case, line, by_benchmark=True) for id_ in ids]
        if not ids:
            unreadable.append(f"{line}: {LITERAL}")
    return Claims(found, unreadable)


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    """The values of string literals; none at all if any of the nodes is something else."""
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    texts = [value for value in values if isinstance(value, str)]
    return texts if len(texts) == len(nodes) else []


# --- the checks -------------------------------------------------------------------------------


def problems_of_claims(manifest: Manifest, claims: Claims) -> list[str]:
    """What can be wrong without running anything."""
    problems = list(claims.unreadable)
    for claim in claims.found:
        requirement = manifest.requirements.get(claim.id)
        if requirement is None:
            problems.append(f"{claim.line}: {claim.id} is not in {LIST}")
        elif requirement.planned:
            problems.append(f"{claim.line}: {claim.id} is planned; remove its status in {LIST}")
    return problems


def problems_of_run(
    manifest: Manifest, claims: Claims, passed: Mapping[str, Sequence[str]]
) -> list[str]:
    """What a run has shown against what it should have: `passed` maps ids to passing tests."""
    problems = []
    for id_, tests in passed.items():
        requirement = manifest.requirements.get(id_)
        if tests and (requirement is None or requirement.planned):
            what = "planned" if requirement else f"not in {LIST}"
            problems.append(f"{id_}: is {what}, but {tests[0]} shows it")
    by_id = claims.by_id()
    for id_, requirement in manifest.requirements.items():
        if requirement.planned or passed.get(id_):
            continue
        claimed = by_id.get(id_, [])
        if any(claim.by_benchmark for claim in claimed):
            continue
        why = f"none of its tests passed ({_places(claimed)})" if claimed else "nothing shows it"
        problems.append(f"{id_}: {why}: {requirement.behaviour}")
    return problems + problems_of_stores(manifest, passed)


def problems_of_stores(manifest: Manifest, passed: Mapping[str, Sequence[str]]) -> list[str]:
    """Which requirements were not shown over HTTP on each kind of store by the same test.

    Where there is no PostgreSQL, its tests were skipped, and nothing is asked of them.
    """
    everything = [test for tests in passed.values() for test in tests]
    stores = ("sqlite", "postgres") if _names_on("postgres", everything) else ("sqlite",)
    problems = []
    for id_, requirement in manifest.requirements.items():
        shown = [test for test in passed.get(id_, ()) if test.startswith(OVER_HTTP)]
        on_all = set.intersection(*(_names_on(store, shown) for store in stores))
        if requirement.both_stores and not requirement.planned and not on_all:
            problems.append(f"{id_}: no test of {OVER_HTTP} shows it on {' and '.join(stores)}")
    return problems


def _names_on(store: str, tests: Iterable[str]) -> set[str]:
    """The names, without parameters, of the tests that ran on a kind of store."""
    found = (test.partition("[") for test in tests)
    return {name for name, _, given in found if store in given.rstrip("]").split("-")}


def problems_of_page(root: Path, manifest: Manifest, claims: Claims) -> list[str]:
    page = root / PAGE
    if page.exists() and page.read_text(encoding="utf-8") == render(manifest, claims):
        return []
    return [f"{PAGE} is out of date: run python tests/manifest.py --write"]


def check(root: Path) -> list[str]:
    manifest = load(root / LIST)
    claims = claims_of_tree(root)
    problems = problems_of_claims(manifest, claims) + problems_of_page(root, manifest, claims)
    report = root / REPORT
    if not report.exists():
        return [*problems, f"{REPORT} is missing: run the tests first (make unit)"]
    return problems + problems_of_run(manifest, claims, json.loads(report.read_text("utf-8")))


# --- the page ---------------------------------------------------------------------------------


def render(manifest: Manifest, claims: Claims) -> str:
    by_id = claims.by_id()
    everything = manifest.requirements.values()
    built = sum(not requirement.planned for requirement in everything)
    lines = [
        "<!-- Made by `python tests/manifest.py --write` from tests/requirements.toml. -->",
        "# Requirements",
        "",
        f"{len(everything)} requirements: {built} built, {len(everything) - built} planned. "
        "A built one is shown by a test or benchmark that names its id; `make test` fails "
        "when it is not, and when a planned one is claimed.",
    ]
    for prefix, title in manifest.families.items():
        members = [one for one in everything if one.family == prefix]
        lines += ["", f"## {title}", ""]
        lines += ["| id | behaviour | source | status | shown by |", "|---|---|---|---|---|"]
        lines += [_row(one, by_id.get(one.id, [])) for one in members]
    lines += ["", "## Sources", "", "| source | what it is |", "|---|---|"]
    lines += [f"| {name} | {what} |" for name, what in manifest.sources.items()]
    return "\n".join(lines) + "\n"


def _row(requirement: Requirement, claims: Sequence[Claim]) -> str:
    status = "planned" if requirement.planned else "built"
    cells = (requirement.id, requirement.behaviour, requirement.source, status, _places(claims))
    return f"| {' | '.join(cells)} |"


def _places(claims: Iterable[Claim]) -> str:
    names = (f"{'benchmark ' * one.by_benchmark}`{one.place}`" for one in claims)
    return ", ".join(dict.fromkeys(names))


# --- the command ------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Requirements against what shows them.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="list every problem; exit 1 if any")
    action.add_argument("--write", action="store_true", help=f"make {PAGE}")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    options = parser.parse_args(argv)
    try:
        return _write(options.root) if options.write else _check(options.root)
    except ManifestError as error:
        return _fail(error.args[0])


def _write(root: Path) -> int:
    page = root / PAGE
    page.parent.mkdir(exist_ok=True)
    page.write_text(render(load(root / LIST), claims_of_tree(root)), encoding="utf-8")
    return 0


def _check(root: Path) -> int:
    if problems := check(root):
        return _fail(problems)
    requirements = load(root / LIST).requirements.values()
    planned = sum(requirement.planned for requirement in requirements)
    print(f"requirements: {len(requirements) - planned} shown, {planned} planned")
    return 0


def _fail(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"requirements: {problem}", file=sys.stderr)
    print(f"requirements: {len(problems)} problems", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
