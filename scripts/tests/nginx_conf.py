"""Reading nginx's configuration, for the tests of deploy/nginx.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crossplane


def directives(path: Path) -> list[dict[str, Any]]:
    """Every directive with the names of the blocks around it, as `http/upstream dichroic/server`."""
    parsed = crossplane.parse(str(path), check_ctx=False, check_args=False)
    assert parsed["status"] == "ok", parsed["errors"]
    return list(_flat(parsed["config"][0]["parsed"], ""))


def _flat(block: list[dict[str, Any]], above: str) -> Iterator[dict[str, Any]]:
    for item in block:
        if "block" in item:
            name = " ".join([item["directive"], *item["args"]])
            yield from _flat(item["block"], f"{above}{name}/")
        else:
            yield {"path": f"{above}{item['directive']}", "args": item["args"]}


def seconds(text: str) -> float:
    """A time as nginx and Compose write it."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60}[unit]


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([kmg]?)", text.lower()).groups()
    return int(number) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[unit]
