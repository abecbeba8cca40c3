"""TLS of the running server: who gets an answer, and a certificate that is
renewed under open connections. Run by `make test-deploy`.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import issue, make_authority
from tiny_replica import ANSWER_SECONDS, Replica, eventually, make_key

# How a client learns that it is turned away. Silence is not among them.
REFUSED = (ssl.SSLError, ConnectionError)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and what it signed: two pairs of the server, and one of a client."""
    return signed(tmp_path_factory.mktemp("authority"), "old", "new", "client")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of clients alone."""
    return signed(tmp_path_factory.mktemp("clients"), "client")


def signed(folder: Path, *names: str) -> Path:
    make_authority(folder)
    for name in names:
        issue(folder, name)
    return folder


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make_key(tmp_path / "keys.json")


@pytest.fixture
def files(tmp_path: Path, authority: Path) -> dict[str, str]:
    """The settings of a server whose files hold the old pair."""
    write_pair(tmp_path, authority, "old")
    return {
        "DICHROIC_TLS_CERTIFICATE_FILE": str(tmp_path / "tls.crt"),
        "DICHROIC_TLS_KEY_FILE": str(tmp_path / "tls.key"),
    }


def write_pair(folder: Path, authority: Path, name: str) -> None:
    """One file, then the other, as a renewal does."""
    shutil.copyfile(authority / f"{name}.pem", folder / "tls.crt")
    shutil.copyfile(authority / f"{name}.key", folder / "tls.key")


@pytest.fixture
def replica(tmp_path: Path, key: str, files: dict[str, str], authority: Path) -> Iterator[Replica]:
    # An idle connection is kept for longer than the slowest of these tests takes.
    settings = {**files, "DICHROIC_HEADER_TIMEOUT_MS": "120000"}
    made = Replica(tmp_path / "tls", tmp_path / "keys.json", client(authority), **settings)
    yield made
    made.stop()


@pytest.fixture
def guarded(tmp_path: Path, key: str, files: dict[str, str], authority: Path, clients: Path) -> Iterator[Replica]:
    """Lets in clients of one authority alone, and is itself of another."""
    settings = {**files, "DICHROIC_TLS_CLIENT_CA_FILE": str(clients / "ca.pem")}
    made = Replica(tmp_path / "guarded", tmp_path / "keys.json", client(authority, clients), **settings)
    yield made
    made.stop()


def client(trusted: Path, own: Path | None = None) -> ssl.SSLContext:
    """Trusts one authority, and shows a certificate of its own or none."""
    context = ssl.create_default_context(cafile=str(trusted / "ca.pem"))
    # As Python itself does from 3.13 on.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if own is not None:
        context.load_cert_chain(own / "client.pem", own / "client.key")
    return context


def shown(connection: http.client.HTTPConnection) -> bytes:
    """The certificate of the other end of an open connection."""
    assert isinstance(connection.sock, ssl.SSLSocket), "the connection is closed"
    certificate = connection.sock.getpeercert(binary_form=True)
    assert certificate
    return certificate


def shown_to_the_next(replica: Replica) -> bytes:
    connection = replica.connect()
    try:
        connection.connect()
        return shown(connection)
    finally:
        connection.close()


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text(encoding="ascii"))


def test_https_is_answered_and_plain_http_on_that_port_is_not(replica: Replica, key: str) -> None:
    assert replica.ask(key).status == 200
    said = b""
    with socket.create_connection(("127.0.0.1", replica.port), timeout=ANSWER_SECONDS) as plain:
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        try:
            while part := plain.recv(4096):
                said += part
        except ConnectionResetError:
            pass
    assert b"HTTP" not in said and b"alive" not in said, said
    assert replica.ask(key).status == 200


def test_a_renewed_pair_is_shown_without_a_restart_and_open_connections_stay(
    replica: Replica, key: str, tmp_path: Path, authority: Path
) -> None:
    old, new = der(authority / "old.pem"), der(authority / "new.pem")
    kept = replica.connect()
    # One that is closed is to be an error, and not to be made anew.
    kept.connect()
    kept.auto_open = 0
    assert replica.ask(key, kept).status == 200
    assert shown(kept) == shown_to_the_next(replica) == old

    write_pair(tmp_path, authority, "new")
    # The server looks every two seconds, and has ten times that.
    eventually(lambda: shown_to_the_next(replica) == new, "the renewed certificate is not shown")
    assert replica.ask(key).status == 200
    assert replica.ask(key, kept).status == 200
    assert shown(kept) == old
    kept.close()
    assert replica.process.poll() is None, "another process answered"
    assert len(replica.logged("TLS certificate loaded")) == 2


def test_with_an_authority_of_clients_only_its_clients_get_in(
    guarded: Replica, key: str, authority: Path, clients: Path
) -> None:
    assert guarded.ask(key).status == 200
    # One without a certificate, and one with that of the server's authority.
    for context in (client(authority), client(authority, authority)):
        stranger = http.client.HTTPSConnection("127.0.0.1", guarded.port, timeout=ANSWER_SECONDS, context=context)
        with pytest.raises(REFUSED) as refusal:
            guarded.ask(key, stranger)
        assert not isinstance(refusal.value, ssl.SSLCertVerificationError), "the client refused the server"
        stranger.close()
    assert guarded.ask(key).status == 200
