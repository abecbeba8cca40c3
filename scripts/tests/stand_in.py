"""A program of scripts/ as a module, and a server that stands in for ours while a test runs."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

SCRIPTS = Path(__file__).resolve().parents[1]
AnyServer = TypeVar("AnyServer", bound=ThreadingHTTPServer)


def load_script(name: str) -> Any:
    loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
