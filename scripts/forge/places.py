"""Where things lie: the checkout, the cache, and the lock that keeps two
set-ups from writing to either at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import SetupError, from_os_error, human_size


def default_cache() -> Path:
    """`DICHROIC_CACHE`, else `dichroic` in the user's cache folder."""
    chosen = os.environ.get("DICHROIC_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "dichroic"


@dataclass(frozen=True)
class Places:
    """The two trees that set-up writes to."""

    root: Path
    cache: Path

    @classmethod
    def here(cls) -> Places:
        """The checkout that this file belongs to, and the user's cache."""
        return cls(Path(__file__).resolve().parents[2], default_cache())

    @property
    def scripts(self) -> Path:
        return self.root / "scripts"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def venv_python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def runtime(self) -> Path:
        return self.root / "runtime"

    @property
    def sources(self) -> Path:
        return self.cache / "sources"

    @property
    def built(self) -> Path:
        return self.cache / "built"

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Holds the cache and the checkout; says so when it has to wait.

        The lock is on the folders themselves: it leaves no file behind and the
        system drops it when the process ends, however it ends.
        """
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, self.cache) from error
        with ExitStack() as held:
            for folder in (self.cache, self.models):
                handle = os.open(folder, os.O_RDONLY)
                held.callback(os.close, handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say("another set-up is at work here; waiting for it")
                    fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def need_space(folder: Path, need: int, what: str) -> None:
    """Refuses to begin what the disk under `folder` cannot hold."""
    if need <= 0:
        return
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < need:
        raise SetupError(
            f"{what} needs {human_size(need)} of disk space in {folder}, where {human_size(free)} is"
            " free: free some space, name fewer MODELS, or use a larger disk (DICHROIC_CACHE moves the cache)."
        )


def remove(path: Path) -> None:
    """Deletes a file or a folder that may not be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
