"""What set-up says while it works: one plain line an event, and on a terminal a
last line that moves while a download runs.
"""

from __future__ import annotations

import sys

from .errors import human_size


class Progress:
    """Writes to standard output; `quiet` keeps all but errors to itself."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._live = sys.stdout.isatty() and not quiet
        self._open = False

    def say(self, line: str) -> None:
        """One line that stays."""
        if self.quiet:
            return
        self.rest()
        print(line, flush=True)

    def move(self, label: str, done: int, total: int) -> None:
        """How far a download is; shown on a terminal only."""
        if not self._live:
            return
        done = min(done, total)  # A client may keep a second copy for a moment.
        share = done / total if total else 0.0
        bar = "#" * round(share * 24)
        print(f"\r\x1b[K  {label}  [{bar:<24}] {human_size(done)} of {human_size(total)}", end="", flush=True)
        self._open = True

    def rest(self) -> None:
        """Takes the moving line away."""
        if self._open:
            print("\r\x1b[K", end="")
            self._open = False
