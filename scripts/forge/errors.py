"""The one error that set-up shows to a person: a sentence that names the thing
and its remedy. Also turns the errors of the system and of package clients into
such sentences, so that no caller has to read a traceback.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path


class SetupError(Exception):
    """A failure whose text is complete: what went wrong and what to do."""


_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Max retries exceeded|connection broken|Connection(?:Reset|Refused|Aborted)|Network is unreachable"
    r"|Temporary failure in name resolution|timed out"
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT|ERR_SOCKET",
    re.IGNORECASE,
)
_UNTRUSTED = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|SELF_SIGNED_CERT|UNABLE_TO_(?:GET_ISSUER|VERIFY)|self-signed certificate"
    r"|unable to get (?:local )?issuer",
    re.IGNORECASE,
)
_LOCKED_PROXY = re.compile(r"Proxy Authentication Required|Tunnel connection failed: 407|\bE407\b", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://\S+|host='[^']*'|\b[\w-]+(?:\.[\w-]+)*\.(?:org|com|net|io|dev)\b")

_MOVE_CACHE = "set DICHROIC_CACHE to"


def human_size(count: float) -> str:
    """Bytes as a person reads them, in powers of ten."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def from_os_error(error: OSError, place: Path, elsewhere: str = _MOVE_CACHE) -> SetupError:
    """What a failed write or read at `place` means to the user; `elsewhere` begins to name another folder."""
    path = Path(error.filename or place)

    def otherwise(path: Path, folder: str) -> str:
        return f"or {elsewhere} {folder}" if path.is_relative_to(place) else ""

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # Of a copy the second is what is written.
        full = Path(error.filename2 or path)
        moved = otherwise(full, "a folder on a larger disk")
        kept = " (finished downloads are kept)" if elsewhere == _MOVE_CACHE else ""
        return SetupError(f"The disk that holds {full} is full: free some space {moved}".rstrip() + f", then run again{kept}.")
    if error.filename is None:
        # Of what no file is named, a folder is not to blame.
        return SetupError(f"The system refused it ({error.strerror or error}): mend that, then run again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        moved = otherwise(path, "a folder that is") or "then run again"
        return SetupError(f"{path} cannot be written: make it writable for this user, {moved}.")
    moved = otherwise(path, "another folder") or "then run again"
    return SetupError(f"{path} cannot be used ({error.strerror or error}): make it usable, {moved}.")


def from_client(client: str, wanted: str, output: str) -> SetupError:
    """Why a package client could not bring `wanted`, judged by what it printed.

    Addresses are taken out: they say nothing about the remedy.
    """
    if "No space left on device" in output or "ENOSPC" in output:
        return SetupError(
            f"The disk is full while fetching {wanted}: free some space, where the checkout lies too, or set"
            " DICHROIC_CACHE to a folder on a larger disk, then run again (finished downloads are kept)."
        )
    if "Permission denied" in output or "Read-only file system" in output:
        return SetupError(
            f"{client} may not write {wanted}: make the checkout and the cache writable for this user, then run again."
        )
    if "DO NOT MATCH THE HASHES" in output:
        return SetupError(
            f"{client} got a file for {wanted} whose hash is not the pinned one, so nothing was"
            " installed: run again, and if it persists check the package index or mirror in use."
        )
    if _LOCKED_PROXY.search(output):
        return SetupError(
            f"{wanted} cannot be fetched because the proxy wants a name and a password from {client} (407): put them"
            " into HTTPS_PROXY before the proxy's host, as name:password@host, special characters percent-encoded, then"
            " run again (finished downloads are kept)."
        )
    if _UNTRUSTED.search(output):
        variable = "NODE_EXTRA_CA_CERTS" if client == "npm" else "PIP_CERT"
        return SetupError(
            f"{wanted} cannot be fetched because {client} does not trust the certificate that it is shown, as where a"
            f" proxy opens TLS: name a file with the certificate of its authority in {variable}, or add that to the"
            f" system's store if {client} reads it, then run again (finished downloads are kept)."
        )
    if _UNREACHABLE.search(output):
        return SetupError(
            f"{wanted} cannot be fetched because {client} reached no package index: connect this"
            f" machine to the network or configure a mirror for {client}, then run again"
            " (finished downloads are kept)."
        )
    if re.search(r"No matching distribution|E404|ETARGET|ENOVERSIONS|404 Not Found", output):
        return SetupError(
            f"The package index that {client} uses does not have {wanted}: configure {client} for"
            " a complete index or mirror, then run again."
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines or ["it printed nothing"]
    reason = _ADDRESS.sub("(address)", telling[0])[:300].rstrip(".")
    return SetupError(f"{client} could not fetch {wanted} ({reason}): mend that, then run again.")
