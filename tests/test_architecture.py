"""The shape of the source: rules that a reader relies on and no other tool checks."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_junction

SOURCE = Path(mcp_junction.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
TEXTS = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in MODULES}
FAKES = {
    f"tests/fakes/{path.name}": path.read_text("utf-8")
    for path in Path(__file__).with_name("fakes").glob("*.py")
}
"""Programs and servers of the tests, which keep to the same rules."""
LONGEST = 400
EMPTY_WORDS = {"manager", "managers", "utils", "util", "helpers", "helper", "common", "misc"}
SPAWNS = re.compile(r"\b(create_task|ensure_future)\(")
MADE_TASK = re.compile(r"asyncio\.(create_task|ensure_future)\(")
# Awaited where they are made, so they cannot outlive their owner.
MAY_SPAWN = {"tasks.py": 3}


def imported_by(program: str) -> set[str]:
    """The names of the modules that a fresh interpreter loads for ``program``."""
    report = (
        f"import json, sys\nbefore = set(sys.modules)\n{program}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, check=True, timeout=60
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def begins_with_a_sentence(docstring: str) -> bool:
    first = docstring.partition("\n\n")[0].rstrip()
    return (first[0].isupper() or first[0] == "`") and first.endswith((".", ":"))


def test_a_module_says_what_it_is():
    texts = (TEXTS | FAKES).items()
    docstrings = {place: ast.get_docstring(ast.parse(text)) for place, text in texts}
    assert [place for place, text in docstrings.items() if not text] == []
    assert [place for place, text in docstrings.items() if not begins_with_a_sentence(text)] == []


def test_a_module_can_be_read_in_one_sitting():
    lengths = {place: len(text.splitlines()) for place, text in (TEXTS | FAKES).items()}
    assert {place: lines for place, lines in lengths.items() if lines > LONGEST} == {}


def test_no_module_has_a_name_that_says_nothing():
    assert [path for path in MODULES if {path.stem, path.parent.name} & EMPTY_WORDS] == []


def test_tasks_are_spawned_by_their_owner_only():
    spawning = {place: len(SPAWNS.findall(text)) for place, text in (TEXTS | FAKES).items()}
    assert {place: count for place, count in spawning.items() if count} == MAY_SPAWN
    allowed = {place: text.count("noqa: TID251") for place, text in TEXTS.items()}
    made = {place: len(MADE_TASK.findall(text)) for place, text in TEXTS.items()}
    assert allowed == made


def test_single_requests_are_made_by_fetch_alone():
    """Whoever makes an exchange of its own keeps its own rules on redirects, size and time."""
    deriving = [place for place, text in TEXTS.items() if "(HttpExchange):" in text]
    assert [place for place in deriving if not place.startswith("upstream/http/")] == []


def test_help_loads_only_what_parsing_needs():
    program = (
        "from mcp_junction.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0"
    )
    loaded = imported_by(program)
    assert not packages(loaded) & {"rich", "asyncio", "uvloop", "mcp", "mcp_types", "pydantic"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("mcp_junction.")}
    assert rooms <= {"cli", "config", "errors", "protocol", "upstream"}
    assert "mcp_junction.upstream.upstream" not in loaded


def test_the_program_stands_on_few_shoulders():
    """The data path knows msgspec and the standard library: no SDK, no models, no framework."""
    loaded = packages(imported_by("import mcp_junction.app, mcp_junction.listener.stdio"))
    ours = {"mcp_junction", "msgspec", "typing_extensions"}
    assert {name for name in loaded - ours - sys.stdlib_module_names if name[0] != "_"} == set()


@pytest.mark.parametrize("room", ["listener", "calls", "catalog", "upstream", "sessions"])
def test_the_data_plane_never_imports_the_fakes(room):
    texts = [path.read_text("utf-8") for path in (SOURCE / room).rglob("*.py")]
    assert not [text for text in texts if "mcp_junction.testing" in text]


def test_the_error_tree_is_drawn_in_its_docstring():
    from mcp_junction import errors

    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__)) | {"JunctionError"}
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.JunctionError)
    }
    assert drawn == raised


def test_stdio_mode_does_not_load_what_only_the_service_keeps():
    loaded = imported_by("import mcp_junction.app, mcp_junction.cli.stdio")
    rooms = {name.split(".")[1] for name in loaded if name.startswith("mcp_junction.")}
    assert not rooms & {"store", "vault", "audit", "search", "skills"}
    assert not packages(loaded) & {"sqlite3", "asyncpg", "cryptography", "rich"}


def test_servers_are_started_before_anything_heavy_is_loaded(tmp_path):
    """What stands between the command line and the first child is the start-up time of all."""
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"one": {"command": "true", "junction": {"tools": {}}}}}')
    program = (
        "import sys, mcp_junction.upstream.headstart as early\n"
        "def started(config, environ, warden):\n"
        "    warden.dismiss()\n"
        "    assert [server.key for server in config.servers] == ['one']\n"
        "    sys.exit(3)\n"
        "early.head_start = started\n"
        "from mcp_junction.cli.main import main\n"
        f"try: main(['--config', {str(config)!r}])\n"
        "except SystemExit as end: assert end.code == 3"
    )
    loaded = imported_by(program)
    heavy = {"asyncio", "inspect", "msgspec", "pathlib", "shutil", "ssl", "typing_extensions"}
    assert not packages(loaded) & heavy
    rooms = {name.split(".")[1] for name in loaded if name.startswith("mcp_junction.")}
    assert rooms == {"cli", "config", "errors", "protocol", "upstream"}


def test_the_warden_loads_only_what_it_cannot_do_without():
    """No server can start before it has. Ours is nothing of it, nor what could be done by hand."""
    isolated = [sys.executable, "-I", "-S", "-X", "importtime", "-c"]
    path = str(SOURCE / "upstream")
    program = f"import sys; sys.path.append({path!r}); import warden_main"
    done = subprocess.run([*isolated, program], capture_output=True, check=True, timeout=60)
    loaded = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
    assert "warden_main" in loaded
    assert not loaded & {"json", "mcp_junction", "re", "subprocess", "threading", "typing"}


STDIO_MODE = (
    "import mcp_junction.cli.stdio, mcp_junction.upstream.headstart, mcp_junction.cli.runner\n"
    "import mcp_junction.app, mcp_junction.listener.pipe, mcp_junction.listener.stdio"
)


def test_stdio_mode_loads_no_more_than_it_needs_to_serve():
    loaded = imported_by(STDIO_MODE)
    service = {"api", "audit", "bus", "health", "identity", "registry", "service", "store", "vault"}
    service |= {"search", "skills", "web"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("mcp_junction.")}
    assert not rooms & service
    assert not {name for name in loaded if name.startswith("mcp_junction.listener.http")}
    assert not {name for name in loaded if name.startswith("mcp_junction.upstream.http")}
    others = {"cryptography", "httptools", "numpy", "rich", "sqlite3", "uvicorn"}
    stdlib = {"dataclasses", "email", "http", "pathlib", "shutil", "tempfile", "urllib", "zipfile"}
    assert not packages(loaded) & (others | stdlib)
    assert "importlib.metadata" not in loaded


def test_a_sqlite_store_does_not_load_the_other_database_or_any_cipher():
    loaded = imported_by("import mcp_junction.cli.storage, mcp_junction.store.sqlite")
    assert not packages(loaded) & {"asyncpg", "cryptography", "uvicorn", "rich"}


def test_importing_the_service_loads_neither_the_framework_of_its_rest_api_nor_the_model():
    loaded = imported_by(
        "import mcp_junction.service, mcp_junction.api.context, mcp_junction.cli.serve"
    )
    assert "mcp_junction.api.front" in loaded
    assert not packages(loaded) & {"httpx", "rich"}
    assert not packages(loaded) & {"numpy"}
    assert "mcp_junction.api.app" not in loaded


def _loops_for_ever(function: ast.AsyncFunctionDef) -> bool:
    """Whether a coroutine is a loop without an end: nothing in it leaves the loop."""
    for loop in ast.walk(function):
        if isinstance(loop, ast.While) and getattr(loop.test, "value", None) is True:
            leaves = (ast.Return, ast.Break, ast.Yield)
            return not any(isinstance(node, leaves) for node in ast.walk(loop))
    return False


@pytest.mark.req("R-SUPERVISE")
def test_what_runs_for_ever_is_supervised():
    nodes = [
        node
        for place, text in TEXTS.items()
        if not place.startswith("testing/") and ("while True" in text or ".spawn(" in text)
        for node in ast.walk(ast.parse(text))
    ]
    endless = {
        node.name
        for node in nodes
        if isinstance(node, ast.AsyncFunctionDef) and _loops_for_ever(node)
    }
    assert {"_watch_keys", "_store_all_statuses", "run", "_run"} <= endless, "the test finds them"
    spawned = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "spawn"
        and isinstance(node.args[0] if node.args else None, ast.Call)
        and ast.unparse(node.args[0].func).rpartition(".")[2] in endless
    ]
    assert [call for call in spawned if "_Supervised" not in call] == []


def test_the_rest_api_loads_no_package_but_those_of_the_service():
    loaded = imported_by("from mcp_junction.api.app import make_app; make_app(object())")
    assert "mcp_junction.web.application" in loaded
    assert not packages(loaded) & {"attr", "numpy", "pydantic", "rich", "uvicorn", "yaml"}


def test_what_a_reader_stumbles_over_is_not_there():
    """Counted by the script that also measures the size of the source."""
    script = SOURCE.parent.parent / "benchmarks" / "code_size.py"
    done = subprocess.run(
        [sys.executable, str(script), str(SOURCE), "--json"], capture_output=True, check=True
    )
    figures = json.loads(done.stdout)["all"]
    assert figures["files"] == len(MODULES)
    for none in ("class names used twice", "import cycles, run time"):
        assert figures[none] == 0, none
    assert figures["functions of complexity > 10"] == figures["functions > 50 lines"] == 0
    assert figures["import cycles, with typing"] <= 2
