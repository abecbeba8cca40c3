"""What our server is told when it is measured: one place, so that all measurements are of the same server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def settings(folder: Path, models: Sequence[str], threads: int) -> dict[str, str]:
    """Its environment variables. Beside these, its defaults hold. What answers without working is off."""
    return {
        "DICHROIC_MODELS_DIR": str(folder),
        "DICHROIC_MODELS": ",".join(models),
        "DICHROIC_THREADS": str(threads),
        "DICHROIC_MODERATION_CACHE": "false",
        # A reply of the largest model, among requests of every kind, can take longer than the default on two cores.
        "DICHROIC_REQUEST_TIMEOUT_MS": "110000",
    }
