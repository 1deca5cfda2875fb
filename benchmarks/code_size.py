"""Measures the source: its size, its shape, and what a reader stumbles over.

    python benchmarks/code_size.py [FOLDER] [--rooms] [--json]

Statements are counted in the syntax tree, so that neither comments nor the length of lines count.
Complexity is that of ruff's rule C901. Import cycles are counted as groups of modules that import
each other: at run time, and with the imports that only type checkers follow.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "mcp_junction"
LONG_FUNCTION = 50
COMPLEX = 10
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the source.")
    parser.add_argument("folder", nargs="?", type=Path, default=SOURCE)
    parser.add_argument("--rooms", action="store_true", help="one line for each room, too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    trees = {path: ast.parse(path.read_bytes()) for path in sorted(options.folder.rglob("*.py"))}
    figures = {"all": measure(trees, options.folder)}
    if options.rooms:
        for room in sorted({room_of(path, options.folder) for path in trees}):
            chosen = {p: tree for p, tree in trees.items() if room_of(p, options.folder) == room}
            figures[room] = measure(chosen, options.folder)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(figures)


def room_of(path: Path, folder: Path) -> str:
    """The folder directly under the package that a file is in; "." for none."""
    first, *rest = path.relative_to(folder).parts
    return first if rest else "."


def measure(trees: dict[Path, ast.Module], folder: Path) -> dict[str, float]:
    lines = sorted(len(path.read_bytes().splitlines()) for path in trees)
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return {
        "files": len(trees),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
        "lines": sum(lines),
        "median lines of a file": statistics.median(lines),
        "p90 lines of a file": lines[int(len(lines) * 0.9)],
        f"functions > {LONG_FUNCTION} lines": sum(
            (f.end_lineno or f.lineno) - f.lineno >= LONG_FUNCTION for f in functions
        ),
        f"functions of complexity > {COMPLEX}": count_complex(list(trees)),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "import cycles, run time": count_cycles(trees, folder, with_typing=False),
        "import cycles, with typing": count_cycles(trees, folder, with_typing=True),
        "broad excepts": sum(
            isinstance(node, ast.ExceptHandler) and catches_all(node.type) for node in nodes
        ),
    }


def catches_all(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(catches_all(one) for one in caught.elts)
    broad = ("Exception", "BaseException")
    return caught is None or (isinstance(caught, ast.Name) and caught.id in broad)


def count_complex(paths: list[Path]) -> int:
    """How many functions ruff finds too complex, whatever comments say."""
    rule = ["--isolated", "--ignore-noqa", "--select", "C901", "--output-format", "json"]
    limit = ["--config", f"lint.mccabe.max-complexity={COMPLEX}"]
    command = [sys.executable, "-m", "ruff", "check", *rule, *limit, *map(str, paths)]
    return len(json.loads(subprocess.run(command, capture_output=True, check=False).stdout))


def count_cycles(trees: dict[Path, ast.Module], folder: Path, *, with_typing: bool) -> int:
    """How many groups of modules import each other."""
    modules = {name_of(path, folder): tree for path, tree in trees.items()}
    imports = {
        name: {found for found in imported(tree, with_typing) if found in modules} - {name}
        for name, tree in modules.items()
    }
    reached = {name: reachable(name, imports) for name in imports}
    return len(
        {
            frozenset(other for other in found if name in reached[other])
            for name, found in reached.items()
            if name in found
        }
    )


def name_of(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, with_typing: bool) -> Iterator[str]:
    """What a module imports when it is loaded; not what its functions import late."""
    statements: list[ast.stmt] = list(tree.body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If):
            is_for_types = ast.unparse(node.test) == "TYPE_CHECKING"
            statements += node.orelse if is_for_types and not with_typing else node.body
        elif isinstance(node, ast.Try):
            statements += node.body


def reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name]
    return found


def print_table(figures: dict[str, dict[str, float]]) -> None:
    names = list(figures["all"])
    if len(figures) == 1:
        for name in names:
            print(f"{name:<34}{figures['all'][name]:>8g}")
        return
    width = max(map(len, figures))
    for number, name in enumerate(names, 1):
        print(f"{number:>3}  {name}")
    print(" " * width, "".join(f"{number:>8}" for number in range(1, len(names) + 1)))
    for room, row in figures.items():
        print(f"{room:<{width}}", "".join(f"{row[name]:>8g}" for name in names))


if __name__ == "__main__":
    main()
