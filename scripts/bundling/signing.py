"""Detached signatures in minisign's form (Ed25519 over BLAKE2b-512), by a key
that `minisign -G` made.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from forge.errors import SetupError

Signer = Callable[["bytes | BinaryIO"], bytes]


def signer(key: Path, password_file: Path | None, comment: str) -> Signer:
    """Reads the key, asking for its password where it has one. `comment` is
    covered by each signature.
    """
    import minisign

    try:
        secret = minisign.SecretKey.from_file(key)
    except OSError as error:
        raise SetupError(f"{key}, named by SIGNING_KEY, cannot be read ({error.strerror}): mend the path.") from error
    except minisign.Error as error:
        raise SetupError(f"{key}, named by SIGNING_KEY, is no minisign secret key ({error}): name another.") from error
    if secret.is_encrypted():
        try:
            secret.decrypt(_password(key, password_file))
        except minisign.Error as error:
            raise SetupError(f"The password of {key} is not that of the key ({error}): run again.") from error
    return lambda data: bytes(secret.sign(data, trusted_comment=comment)) + b"\n"


def _password(key: Path, file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise SetupError(f"{file}, named by SIGNING_PASSWORD_FILE, cannot be read ({error.strerror}).") from error
    if not sys.stdin.isatty():
        raise SetupError(f"{key} has a password: name a file that holds it in SIGNING_PASSWORD_FILE, then run again.")
    return getpass.getpass(f"Password of {key}: ")
