"""The program that tries to compile conditions, in a process of its own with little to spend.

``condition_compiler.py`` starts it with the path of the CEL extension module, by this file's path:
it imports nothing of ours. It reads a JSON list of sources and writes ``true`` or ``false`` for
each, one line at a time: if it dies, the source after the last line is what killed it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import resource
import sys

MEMORY = 512 * 1024 * 1024
SECONDS = 1


def main(library: str) -> None:
    """Compile each source, and evaluate it once over nothing."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    loader = importlib.machinery.ExtensionFileLoader("cel", library)
    spec = importlib.util.spec_from_loader("cel", loader)
    assert spec is not None
    cel = importlib.util.module_from_spec(spec)
    loader.exec_module(cel)
    for source in json.load(sys.stdin):
        used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS + 1, used + SECONDS + 1))
        try:
            program = cel.compile(source)
            is_compiled = True
            program.execute({})
        except (MemoryError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of the library
            is_compiled = not isinstance(error, ValueError)
        print(json.dumps(is_compiled), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
