"""The systemd unit, the example settings and the documents: that they say what
the sources say. Run by `make test-deploy`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rust_sources import default, metrics, read, secrets, settings, text_defaults

try:
    import tomllib
except ImportError:
    import tomli as tomllib


# --- systemd -------------------------------------------------------------------


def unit() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in read("deploy/systemd/dichroic.service").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = {}
        elif line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found[section].setdefault(name, []).append(value)
    return found


def test_the_unit_takes_everything_away_that_the_server_does_not_need() -> None:
    service = unit()["Service"]
    assert service["User"] == ["dichroic"] and "DynamicUser" not in service
    for name in [
        "NoNewPrivileges",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateUsers",
        "PrivateIPC",
        "ProtectHome",
        "ProtectClock",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectControlGroups",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "RemoveIPC",
    ]:
        assert service[name] == ["yes"], name
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == [""]
    assert service["RestrictAddressFamilies"] == ["AF_INET AF_INET6"]
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]
    assert "ReadWritePaths" not in service


def test_the_unit_starts_the_server_with_files_that_it_explains() -> None:
    service = unit()["Service"]
    assert service["ExecStart"] == ["/opt/dichroic/bin/dichroic serve --config /etc/dichroic/dichroic.toml"]
    text = read("deploy/systemd/dichroic.service")
    for path in (
        "/opt/dichroic/bin/dichroic",
        "/opt/dichroic/runtime/libonnxruntime.so",
        "/etc/dichroic/dichroic.toml",
    ):
        assert f" {path}" in text.split("[Unit]")[0], f"nobody is told to put {path} there"
    for line in service["Environment"]:
        name, path = line.split("=", 1)
        assert name in {setting.variable for setting in settings().values()}
        # The only folder that the unit makes and lets it write to, for `dichroic keys`.
        assert path.startswith(f"/var/lib/{service['StateDirectory'][0]}/")
    assert service["WorkingDirectory"] == ["/opt/dichroic"]
    assert service["EnvironmentFile"][0].startswith("-")
    assert int(service["TimeoutStopSec"][0]) * 1000 >= default("shutdown_grace_ms") + 3000
    assert int(service["LimitNOFILE"][0]) > default("max_connections")


def test_the_servers_user_can_read_models_that_root_copied_under_any_umask(tmp_path: Path) -> None:
    head = read("deploy/systemd/dichroic.service").split("[Unit]")[0]
    steps = re.findall(r"^#   ((?:cp|chmod) -[rR] .*)$", head, re.MULTILINE)
    component = tmp_path / "models/beta/build/text"
    component.mkdir(parents=True)
    (tmp_path / "opt").mkdir(mode=0o755)
    for name, mode in (("model.onnx", 0o444), ("manifest.json", 0o600)):
        (component / name).write_text(name, encoding="utf-8")
        (component / name).chmod(mode)
    script = "\n".join(["umask 077", *steps]).replace("/opt/dichroic/", "opt/")
    subprocess.run(["/bin/sh", "-e", "-c", script], cwd=tmp_path, check=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "opt").rglob("*")}
    files = {"model.onnx": 0o644, "manifest.json": 0o644}
    assert modes == {**dict.fromkeys(["models", "beta", "build", "text"], 0o755), **files}


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    known = read("deploy/systemd/dichroic.service")
    assert known.index("StartLimitIntervalSec") < known.index("[Service]"), "it belongs to [Unit]"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # The program is not installed here: one that is stands in for it.
    text = read("deploy/systemd/dichroic.service").replace("/opt/dichroic/bin/dichroic serve", "/bin/true serve")
    (tmp_path / "dichroic.service").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", tmp_path / "dichroic.service"], capture_output=True, text=True, check=False
    )
    assert "dichroic.service" not in done.stdout + done.stderr


# --- the example settings --------------------------------------------------------


def example() -> dict[str, Any]:
    """The example with every mark taken away."""
    return tomllib.loads(re.sub(r"^#(?=\w+ = )", "", read("deploy/dichroic.example.toml"), flags=re.MULTILINE))


def test_the_example_sets_nothing_as_it_stands() -> None:
    assert tomllib.loads(read("deploy/dichroic.example.toml")) == {}


def test_the_example_has_every_setting_with_its_default_and_no_other() -> None:
    stated = example()
    assert set(stated) == set(settings())
    for name, setting in settings().items():
        if setting.default is not None:
            assert stated[name] == setting.default, name
    for name, value in text_defaults().items():
        if name != "models":
            # What has no default is shown empty: an example would be used.
            assert stated[name] == {"true": True, "false": False, "none": ""}.get(value, value), name
    for name in secrets():
        assert stated[name] == ""
    assert stated["otlp_endpoint"] == "", "it is off until somebody names a collector"


def test_every_setting_of_the_example_is_explained() -> None:
    lines = read("deploy/dichroic.example.toml").splitlines()
    for name in settings():
        (place,) = [number for number, line in enumerate(lines) if line.startswith(f"#{name} = ")]
        assert lines[place - 1].startswith("# ") and lines[place - 1].endswith((".", "first.")), name


def test_the_page_of_settings_has_the_same() -> None:
    row = r"^\| `(\w+)` \| `(DICHROIC_\w+)` \| `([^`]*)` \| ([^|]*) \|"
    rows = re.findall(row, read("docs/settings.md"), re.MULTILINE)
    assert [name for name, *_ in rows] == list(settings())
    for name, variable, value, bounds in rows:
        setting = settings()[name]
        assert variable == setting.variable
        stated = str(setting.default) if setting.default is not None else text_defaults().get(name, "none")
        assert value == stated, name
        assert bounds == ("—" if setting.least is None else f"{setting.least:,} to {setting.most:,}"), name


def test_the_readme_is_short_enough_to_be_read() -> None:
    """Tables and guides have pages of their own under docs/."""
    assert len(read("README.md").splitlines()) <= 200


# --- documents -------------------------------------------------------------------

# The files and links that they name are looked for in test_documents.py.
DOCUMENTS = ["README.md", "docs/operations.md", "docs/security.md", "docs/settings.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_metrics_and_codes_that_a_document_names_exist(document: str) -> None:
    text = read(document)
    variables = {setting.variable for setting in settings().values()} | {"DICHROIC_CACHE"}
    for name in re.findall(r"\bDICHROIC_[A-Z_]+\b", text):
        assert (
            name in variables or name.startswith("DICHROIC_SOURCE_") or f"{name}=" in read("deploy/compose.env.example")
        )
    series = {row for name, metric in metrics().items() for row in {name, *metric.series(name)}}
    chart_metric = yaml.safe_load(read("deploy/helm/dichroic/values.yaml"))["autoscaling"]["queueTime"]["name"]
    for name in re.findall(r"\bdichroic_[a-z_]+\b", text):
        assert name in series | {chart_metric}, name
    alerts = set(re.findall(r"alert: (\w+)", read("deploy/prometheus/alerts.yml")))
    for name in re.findall(r"\bDichroic[A-Z]\w+\b", text):
        assert name in alerts, name
    named = r"`(\w+_ms|\w+_queue|usage_limit|batch_\w+|generator_\w+|max_connections|redis_\w+|replicas)`"
    for name in re.findall(named, text):
        assert name in settings() or name in logged(), name


def logged() -> list[str]:
    """The fields of a request's log line."""
    fields = re.search(r"tracing::\$level!\(([\w\s,]+)\$message", read("src/http/observe.rs"))
    assert fields, "the log line is not where it was"
    return re.findall(r"\w+", fields[1])


def test_every_field_of_the_log_line_is_documented() -> None:
    table = read("docs/operations.md").split("**Logs**", 1)[1].split("\nProbes", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted([*logged(), "request_id", "span"])


def test_the_memory_that_holds_any_one_identifier_is_told_alike() -> None:
    pages = ["deploy/compose.yaml", "deploy/helm/dichroic/values.yaml", "docs/operations.md"]
    told = {page: re.findall(r"(\d+) ?Gi?B? hold any one of them", read(page), re.IGNORECASE) for page in pages}
    assert len(set(map(tuple, told.values()))) == 1 and all(len(found) == 1 for found in told.values()), told


def test_what_nobody_measured_has_no_number() -> None:
    """A row of the tables about sizing is either measured or says that it is not."""
    text = read("docs/operations.md").split("## Sizing", 1)[1].split("\n## ", 1)[0]
    tables = [table.strip().splitlines()[2:] for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    assert len(tables) == 2 and all(tables)
    for row in (row for rows in tables for row in rows):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert all(cell == "not yet measured" or re.search(r"\d", cell) for cell in cells[1:]), row
