"""The image, the composition and what nginx is told: that they agree with the
sources and with one another. Run by `make test-deploy`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from loopback_only import TAKES_ROOT, USER, Plan, seen_apart
from nginx_conf import directives, seconds, size
from rust_sources import ROOT, cargo_version, constant, default, error_codes, read, settings, text_defaults
from tiny_replica import BINARY, MODEL

try:
    import tomllib
except ImportError:
    import tomli as tomllib

DEPLOY = ROOT / "deploy"


# --- the image -----------------------------------------------------------------


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of every stage of the Containerfile, `FROM` first; what stands before the first is under ''."""
    found: dict[str, list[tuple[str, str]]] = {"": []}
    stage = ""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", read("deploy/Containerfile"), flags=re.MULTILINE))
    for line in filter(str.strip, text.splitlines()):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            stage = rest.split(" AS ")[1]
            found[stage] = []
        found[stage].append((word, rest))
    return found


def test_the_only_image_to_start_from_must_be_chosen() -> None:
    assert stages()[""] == [("ARG", "BASE")], "a default would be built on without a look"
    sources = [rest.split(" AS ")[0] for stage in stages().values() for word, rest in stage if word == "FROM"]
    assert sources == ["${BASE}", "scratch", "server"]
    toolchain = tomllib.loads(read("rust-toolchain.toml"))["toolchain"]["channel"]
    versions = set(re.findall(r"rust:([\d.]+)-", read("deploy/Containerfile")))
    assert versions == {toolchain}, "another version would make rustup fetch this one"


def test_what_runs_has_no_shell_no_root_and_nothing_to_run_one_with() -> None:
    server = dict(stages()["server"])
    assert server["USER"] == f"{USER}:{USER}"
    words = [word for name in ("server", "full") for word, _ in stages()[name]]
    assert not set(words) & {"RUN", "SHELL", "ADD", "HEALTHCHECK", "VOLUME"}
    assert server["ENTRYPOINT"] == '["/opt/dichroic/bin/dichroic"]'
    assert server["WORKDIR"] == "/opt/dichroic"
    assert server["EXPOSE"] == "8080"
    # The variables of an image would win over a mounted file.
    assert "ENV" not in words
    copies = [rest for word, rest in stages()["full"] if word == "COPY"]
    assert copies == [
        "--from=build /image-models /opt/dichroic/models",
        "--from=build /image-about /usr/share/doc/dichroic",
    ]


def test_everything_that_is_copied_in_exists_and_is_let_through() -> None:
    copied = [path for word, rest in stages()["build"] if word == "COPY" for path in rest.split()[:-1]]
    assert copied
    patterns = [line for line in read(".dockerignore").splitlines() if line and not line.startswith("#")]
    assert patterns[0] == "*"
    for path in copied:
        assert (ROOT / path).exists(), path
        assert f"!{path}" in patterns, f"{path} is not let through"
    # Everything that cargo and the set-up read is among them.
    needed = ["Cargo.toml", "Cargo.lock", "src", "benches", "scripts", "models", "Makefile", "LICENSE", "licences"]
    assert set(needed) <= set(copied)
    assert "models/*/build" in patterns, "built models would be taken along, of another machine"


def test_the_image_knows_its_user_and_its_settings() -> None:
    image = tomllib.loads(read("deploy/container/dichroic.toml"))
    assert set(image) <= set(settings())
    assert image == {"listen": "0.0.0.0:8080", "keys_file": "/run/dichroic/keys.json"}
    layout = read("deploy/container/root")
    assert f"dichroic:x:{USER}:{USER}:" in layout
    assert "$image/opt/dichroic/bin/dichroic" in layout
    assert f"$image/opt/dichroic/{text_defaults()['runtime_library']}" in layout
    assert f"$image/opt/dichroic/{text_defaults()['models_dir']}" in layout


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A checkout with one small model."""
    folder = tmp_path / "checkout"
    component = folder / "models/beta-3-haiku/build/text"
    component.mkdir(parents=True)
    (component / "manifest.json").write_text("{}", encoding="utf-8")
    (component / ".checked.json").write_text("{}", encoding="utf-8")
    (component / "model.onnx").symlink_to(ROOT / "LICENSE")
    (component / "gamma-1.5-flash").mkdir()
    for name in ("manifest.json", "model.onnx"):
        (component / "gamma-1.5-flash" / name).write_text("of what judges beside it", encoding="utf-8")
    for name in ("README.md", "NOTICE", "ITS_TERMS_OF_USE.txt"):
        (folder / "models/beta-3-haiku" / name).write_text(name, encoding="utf-8")
    (folder / "models/gamma-1.5-flash").mkdir()
    (folder / "models/gamma-1.5-flash/NOTICE").write_text("of what is not built", encoding="utf-8")
    for name in ("LICENSE", "deploy"):
        (folder / name).symlink_to(ROOT / name)
    yield folder
    # A root with the server in it is large, and pytest keeps its folders for a while.
    shutil.rmtree(folder)


def lay_out(checkout: Path, binary: Path, library: Path) -> subprocess.CompletedProcess[str]:
    command = ["deploy/container/root", str(checkout / "image"), str(binary), str(library)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=60)


def test_the_root_holds_each_library_that_is_asked_for_and_the_models_alone(checkout: Path) -> None:
    """With nginx in the server's place: a program of many libraries."""
    nginx = Path(sys.executable).with_name("nginx").resolve()
    listed = subprocess.run(["ldd", nginx], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(/\S+)", listed)
    runtime = next(path for path in libraries if "libz" in path)
    done = lay_out(checkout, nginx, Path(runtime))
    assert done.returncode == 0, done.stderr
    image = checkout / "image"
    for library in libraries:
        if library != runtime:
            copied = image / library.lstrip("/")
            assert copied.is_file() and not copied.is_symlink(), library
    assert (image / "opt/dichroic/bin/dichroic").read_bytes() == nginx.read_bytes()
    assert (image / "opt/dichroic/runtime/libonnxruntime.so").read_bytes() == Path(runtime).read_bytes()
    assert (image / "usr/share/doc/dichroic/LICENSE").is_file()
    programs = [
        path for path in image.rglob("*") if path.is_file() and os.access(path, os.X_OK) and ".so" not in path.name
    ]
    assert [path.relative_to(image).as_posix() for path in programs] == ["opt/dichroic/bin/dichroic"]
    models = checkout / "image-models"
    files = sorted(path.relative_to(models).as_posix() for path in models.rglob("*") if path.is_file())
    assert files == [
        "beta-3-haiku/ITS_TERMS_OF_USE.txt",
        "beta-3-haiku/NOTICE",
        "beta-3-haiku/build/text/gamma-1.5-flash/manifest.json",
        "beta-3-haiku/build/text/gamma-1.5-flash/model.onnx",
        "beta-3-haiku/build/text/manifest.json",
        "beta-3-haiku/build/text/model.onnx",
    ]
    # A link would lead out of the image.
    assert not any(path.is_symlink() for folder in (image, models) for path in folder.rglob("*"))
    assert all(path.stat().st_mode & 0o222 == 0o200 for path in image.rglob("*"))


def test_a_library_that_is_missing_fails_the_build(checkout: Path) -> None:
    nginx = Path(sys.executable).with_name("nginx").resolve()
    broken = checkout / "broken"
    broken.write_bytes(nginx.read_bytes().replace(b"libz.so.1\0", b"libz.so.9\0"))
    broken.chmod(0o755)
    done = lay_out(checkout, broken, nginx)
    assert done.returncode != 0 and "libz.so.9 => not found" in done.stderr


def test_the_image_says_what_others_made_of_it_with_every_licence(tmp_path: Path) -> None:
    """By the commands of the build stage, from what is copied into it, in its order."""
    place = tmp_path / "src"
    place.mkdir()
    # What the set-up and the compiler leave there.
    made = [".venv", "runtime"]
    for name in [*(path for word, rest in stages()["build"] if word == "COPY" for path in rest.split()[:-1]), *made]:
        if name == "scripts":
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("tests", "train", "node_modules"))
        elif not (place / name).exists():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).symlink_to(ROOT / name)
    (command,) = [rest for word, rest in stages()["build"] if word == "RUN" and "scripts/bundle" in rest]
    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("/image", f"{tmp_path}/image")],
        cwd=place,
        env={**os.environ, "SOURCE_DATE_EPOCH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for about, models in ((tmp_path / "image/usr/share/doc/dichroic", False), (tmp_path / "image-about", True)):
        notices = (about / "THIRD_PARTY.md").read_text(encoding="utf-8")
        named = re.findall(r"`(licences/.+)`", notices)
        assert len(named) > 200
        for folder in named:
            assert any(path.stat().st_size for path in (about / folder).rglob("*") if path.is_file()), folder
        assert any(name.startswith("licences/models/") for name in named) == models
        assert (about / "licences/onnxruntime/ThirdPartyNotices.txt").is_file()
        bill = json.loads((about / "sbom.cdx.json").read_text(encoding="utf-8"))
        assert ("machine-learning-model" in {part["type"] for part in bill["components"]}) == models
        # Nobody hands a moment on: it is that of the build.
        assert not bill["metadata"]["timestamp"].startswith("1980")


@pytest.mark.skipif(os.geteuid() != 0, reason=TAKES_ROOT)
def test_the_root_is_all_that_the_server_needs(checkout: Path) -> None:
    """Started as the image starts it, with a small model and nothing else of this machine."""
    assert BINARY.is_file(), f"{BINARY} is missing: run `cargo build` (make test-deploy does)"
    component = checkout / "models" / MODEL / "build/text"
    shutil.rmtree(component)
    shutil.copytree(ROOT / "tests/fixtures/tiny-text", component)
    done = lay_out(checkout, BINARY, ROOT / "runtime/libonnxruntime.so")
    assert done.returncode == 0, done.stderr
    server = dict(stages()["server"])
    entry = json.loads(server["ENTRYPOINT"])
    text = {"text": "the train leaves at nine", "model": MODEL}
    plan = Plan(
        [*entry, *json.loads(server["CMD"])],
        server["WORKDIR"],
        [{"path": "/v1/guardians/text", "body": text}],
        root=str(checkout / "image"),
        mounts={"/opt/dichroic/models": str(checkout / "image-models")},
        tried=["/bin/sh", *entry],
    )
    seen = seen_apart(plan, timeout=400)
    assert [status for status, _ in seen["answers"]] == [200], seen["log"]
    assert seen["exit_code"] == 0, seen["log"]
    assert (seen["user"], int(seen["capabilities"], 16), seen["writable"]) == ([str(USER)] * 4, 0, [])
    assert seen["interfaces"] == ["lo"]
    assert seen["started"] == entry, "there is a shell"


# --- the composition -------------------------------------------------------------


def compose() -> dict[str, Any]:
    return yaml.safe_load(read("deploy/compose.yaml"))


def replicas() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if name.startswith("dichroic-")}


def test_two_replicas_nginx_redis_and_prometheus_with_no_more_rights_than_they_need() -> None:
    services = compose()["services"]
    assert set(services) == {"dichroic-1", "dichroic-2", "nginx", "redis", "prometheus"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service and not service.get("user", "1").startswith("0")
        # Reached from this machine alone, until somebody decides otherwise.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for replica in replicas().values():
        assert replica["user"] == f"{USER}:{USER}"
        assert "ports" not in replica
        assert list(replica["networks"]) == ["inside", "limits"]
        assert seconds(replica["stop_grace_period"]) * 1000 >= default("shutdown_grace_ms") + 3000
    for network in ("inside", "limits"):
        assert compose()["networks"][network]["internal"] is True


def test_nobody_but_the_replicas_reaches_redis_and_all_of_them_are_counted() -> None:
    services = compose()["services"]
    assert {name for name, service in services.items() if "limits" in service["networks"]} == {*replicas(), "redis"}
    assert services["redis"]["networks"] == ["limits"] and "ports" not in services["redis"]
    for replica in replicas().values():
        environment = replica["environment"]
        assert set(environment) <= {setting.variable for setting in settings().values()}
        assert environment["DICHROIC_REDIS_URL"] == "redis://redis:6379"
        assert environment["DICHROIC_REPLICAS"] == str(len(replicas()))
    # Nothing is kept on disk; the full buckets go first.
    command = services["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "volatile-ttl"
    assert command[command.index("--save") + 1] == "" and command[command.index("--appendonly") + 1] == "no"


def test_whoever_installs_lets_the_containers_users_read_what_is_mounted() -> None:
    volumes = [volume for service in compose()["services"].values() for volume in service.get("volumes", [])]
    mounted = {f"deploy/{volume[2:].split(':')[0]}" for volume in volumes if volume.startswith("./")}
    for page in ("deploy/compose.yaml", "docs/operations.md"):
        # The keys belong to the server's user.
        [told] = re.findall(r"chmod a\+r (.*?)(?: +#.*)?$", read(page), re.MULTILINE)
        assert set(told.split()) == mounted - {"deploy/keys"}, page


def test_replicas_have_the_names_and_addresses_that_nginx_and_prometheus_use() -> None:
    listening = tomllib.loads(read("deploy/container/dichroic.toml"))["listen"].rsplit(":", 1)[1]
    wanted = sorted(f"{name}:{listening}" for name in replicas())
    assert sorted(upstream()) == wanted
    (job,) = yaml.safe_load(read("deploy/prometheus.yml"))["scrape_configs"]
    assert sorted(job["static_configs"][0]["targets"]) == wanted
    addresses = {name: replica["networks"]["inside"]["ipv4_address"] for name, replica in replicas().items()}
    nginx = compose()["services"]["nginx"]
    assert dict(host.split(":") for host in nginx["extra_hosts"]) == addresses
    (subnet,) = compose()["networks"]["inside"]["ipam"]["config"]
    assert all(
        ipaddress.ip_address(address) in ipaddress.ip_network(subnet["subnet"]) for address in addresses.values()
    )
    asked = re.findall(r"http://(\S+?)/readyz", str(nginx["healthcheck"]["test"]))
    assert sorted(asked) == wanted
    assert nginx["ports"][0].endswith(f":{listens()}")


@pytest.mark.parametrize(("down", "healthy"), [("none", True), ("-1:", True), ("-2:", True), ("dichroic", False)])
def test_every_replica_is_asked_for_its_health_and_one_is_enough(tmp_path: Path, down: str, healthy: bool) -> None:
    (tmp_path / "wget").write_text(f'#!/bin/sh\necho "$@"\ncase "$*" in *{down}*) exit 1;; esac\n', encoding="utf-8")
    (tmp_path / "wget").chmod(0o755)
    _, command = compose()["services"]["nginx"]["healthcheck"]["test"]
    # Compose reads $$ as $.
    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("$$", "$")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == healthy and len(done.stdout.splitlines()) == len(replicas())


def test_what_is_mounted_is_there_and_cannot_be_written() -> None:
    for _name, service in compose()["services"].items():
        for volume in service.get("volumes", []):
            source, _target, *mode = volume.split(":")
            if not source.startswith("."):
                assert source in compose()["volumes"]
                continue
            assert mode == ["ro"], volume
            # The operator makes the folder of the keys.
            assert source == "./keys" or (DEPLOY / source).is_file(), volume
    # The folder, not the file: the reloaded file is a new one under the old name.
    for replica in replicas().values():
        image = tomllib.loads(read("deploy/container/dichroic.toml"))
        assert replica["volumes"] == [f"./keys:{Path(image['keys_file']).parent}:ro"]
    assert {"/deploy/keys/", "/deploy/.env"} <= set(read(".gitignore").split())
    mounted = [volume.split(":")[1] for volume in compose()["services"]["prometheus"]["volumes"]]
    assert set(yaml.safe_load(read("deploy/prometheus.yml"))["rule_files"]) <= set(mounted)


def test_images_must_be_chosen_and_the_example_names_each() -> None:
    wanted = {re.match(r"\$\{(\w+):\?", service["image"])[1] for service in compose()["services"].values()}
    example = dict(line.split("=", 1) for line in read("deploy/compose.env.example").splitlines() if "=" in line)
    assert set(example) == wanted
    for name, image in example.items():
        assert name == "DICHROIC_IMAGE" or image.endswith("@sha256:<digest>")
    assert example["DICHROIC_IMAGE"] == f"dichroic:{cargo_version()}"


def test_prometheus_reads_the_configuration_that_is_mounted() -> None:
    mounted = {volume.split(":")[1] for volume in compose()["services"]["prometheus"]["volumes"]}
    assert "/etc/prometheus/prometheus.yml" in mounted, "the image's own command names this file"


# --- nginx: what it says ----------------------------------------------------------


def nginx_conf() -> list[dict[str, Any]]:
    return directives(DEPLOY / "nginx.conf")


def one(path: str) -> list[str]:
    (found,) = [item["args"] for item in nginx_conf() if item["path"] == path]
    return found


def upstream() -> list[str]:
    return [item["args"][0] for item in nginx_conf() if item["path"] == "http/upstream dichroic/server"]


def listens() -> str:
    return one("http/server/listen")[0]


def test_nginx_refuses_no_body_that_the_server_takes() -> None:
    assert size(one("http/server/client_max_body_size")[0]) == constant("http/extract.rs", "IMAGE_BODY_BYTES")


def test_nginx_waits_longer_than_the_server_works() -> None:
    timeout = default("request_timeout_ms") / 1000
    assert seconds(one("http/server/proxy_read_timeout")[0]) > timeout
    assert seconds(one("http/server/proxy_send_timeout")[0]) > timeout
    # A second attempt must still have time: the caller's patience began with the first.
    assert seconds(one("http/server/proxy_next_upstream_timeout")[0]) < timeout


def test_nginx_lets_go_of_idle_connections_before_the_server_does() -> None:
    assert seconds(one("http/upstream dichroic/keepalive_timeout")[0]) * 1000 < default("header_timeout_ms")
    assert one("http/server/proxy_http_version") == ["1.1"]
    # Two balancers' worth of kept connections still leaves seats for probes and scrapes.
    assert int(one("http/upstream dichroic/keepalive")[0]) * 2 < default("max_connections")


def test_nginx_asks_another_replica_once_and_never_after_an_answer() -> None:
    assert set(one("http/server/proxy_next_upstream")) == {"error", "timeout", "non_idempotent"}
    assert one("http/server/proxy_next_upstream_tries") == ["2"]


def test_nginx_stops_more_slowly_than_its_longest_request() -> None:
    nginx = compose()["services"]["nginx"]
    assert nginx["stop_signal"] == "SIGQUIT"
    assert seconds(nginx["stop_grace_period"]) > seconds(one("http/server/proxy_read_timeout")[0])


def test_nginx_writes_only_where_it_may() -> None:
    written = [item["args"][0] for item in nginx_conf() if item["path"].endswith("_temp_path") or item["path"] == "pid"]
    (tmpfs,) = compose()["services"]["nginx"]["tmpfs"]
    assert written and all(path.startswith(tmpfs.split(":")[0] + "/") for path in written)
    logs = [item["args"][0] for item in nginx_conf() if item["path"].split("/")[-1] in ("error_log", "access_log")]
    assert set(logs) == {"/dev/stderr", "/dev/stdout", "off"}


def test_bodies_of_one_caller_do_not_fill_the_place_where_they_wait() -> None:
    (tmpfs,) = compose()["services"]["nginx"]["tmpfs"]
    room = size(re.search(r"size=(\w+)", tmpfs)[1])
    zone, most = one("http/server/location /v1//limit_conn")
    assert f"zone={zone}:" in one("http/limit_conn_zone")[1]
    assert int(most) * size(one("http/server/client_max_body_size")[0]) <= room


def test_nginx_logs_neither_headers_nor_queries() -> None:
    (log,) = [item["args"] for item in nginx_conf() if item["path"] == "http/log_format"]
    used = set(re.findall(r"\$(\w+)", "".join(log)))
    assert not {name for name in used if name.startswith(("http_", "arg", "request_body", "query", "request_uri"))}
    assert "request" not in used, "$request holds the query"


def test_nginx_answers_in_the_words_of_the_server() -> None:
    codes = error_codes()
    answers = [
        item["args"]
        for item in nginx_conf()
        if item["path"].startswith("http/server/location @") and item["path"].endswith("/return")
    ]
    assert len(answers) == 5
    for status, body in answers:
        error = yaml.safe_load(body.replace("$own_answer_id", "id"))["error"]
        assert set(error) == {"type", "code", "message", "param", "request_id"}
        assert codes[error["code"]] == (int(status), error["type"])


def test_every_path_of_the_interface_is_passed_on_and_none_of_the_inside() -> None:
    operation = read("src/domain/operation.rs")
    paths = re.findall(r'=> "(/v1/[^"]+)"', operation)
    assert len(paths) >= 5
    passed = {
        item["path"].split("location ")[1].split("/proxy_pass")[0]
        for item in nginx_conf()
        if item["path"].endswith("/proxy_pass")
    }
    assert passed == {"/v1/", "/docs", "= /openapi.json"}
    assert all(path.startswith("/v1/") for path in paths)
