"""Certificates for the tests of deploy/, made by openssl as an operator makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPENSSL = Path(sys.executable).with_name("openssl")
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
# With what the strict check of RFC 5280 asks for, which Python makes from 3.13 on.
EXTENSIONS = "subjectAltName=IP:127.0.0.1\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


def openssl(folder: Path, *words: str) -> None:
    subprocess.run([OPENSSL, *words], cwd=folder, capture_output=True, check=True, timeout=60)


def make_authority(folder: Path) -> None:
    """One that signs: its certificate (ca.pem) and key (ca.key)."""
    files = ["-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Tests"]
    openssl(folder, "req", "-x509", *NEW_KEY, *files, "-addext", "keyUsage=critical,keyCertSign")
    (folder / "extensions").write_text(EXTENSIONS, encoding="utf-8")


def issue(folder: Path, name: str) -> None:
    """A certificate of the folder's authority for 127.0.0.1 (NAME.pem) and its key (NAME.key)."""
    openssl(folder, "req", *NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
