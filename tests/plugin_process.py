"""A pytest plugin that makes the process that runs the tests cheap to run them in.

What was imported and collected stays until the end, so the collector of garbage need not look at it
again and again: many tests call it, and a worker that knows all tests has a million objects. And
nothing here talks to another machine: a client that reads the certificates of the authorities, as
each does when it is made, finds a folder without any.
"""

import gc
import os
from pathlib import Path


def pytest_configure() -> None:
    os.environ.setdefault("SSL_CERT_DIR", str(Path(__file__).parent))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
