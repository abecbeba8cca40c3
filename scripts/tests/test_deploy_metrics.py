"""The dashboard, the alert rules and the scrape configuration, held against the
metrics that the server has; and those, as its sources name them, against what a
running server tells. Run by `make test-deploy`.
"""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import string
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import promql_parser as promql
import pytest
import yaml
from rust_sources import ROOT, error_codes, label_values, metrics, operations, settings
from tiny_replica import MODEL, Answer, Endpoint, Replica, eventually, free_port, make_key

DEPLOY = ROOT / "deploy"
PROMTOOL, PROMETHEUS = (Path(sys.executable).with_name(name) for name in ("promtool", "prometheus"))
# What Prometheus itself adds: the series of whether a target answered, and the labels of where it was.
OWN_SERIES = {"up"}
TARGET_LABELS = {"job", "instance", "namespace", "pod"}
GRAFANA_MACROS = {"$__rate_interval": "5m", "$__range": "1h"}


@dataclass(frozen=True)
class Selected:
    """One series that a query reads."""

    name: str
    labels: frozenset[str]
    values: tuple[tuple[str, str, str], ...]


def selections(expression: Any) -> Iterator[Selected]:
    if isinstance(expression, promql.VectorSelector):
        matchers = expression.matchers.matchers
        values = tuple((matcher.name, str(matcher.op), matcher.value) for matcher in matchers)
        yield Selected(expression.name, frozenset(matcher.name for matcher in matchers), values)
    for child in children(expression):
        yield from selections(child)


def children(expression: Any) -> Iterator[Any]:
    for name in ("lhs", "rhs", "expr", "param", "vector_selector", "args"):
        found = getattr(expression, name, None)
        for child in found if isinstance(found, list) else [found]:
            if isinstance(child, promql.Expr):
                yield child


def groupings(expression: Any) -> Iterator[tuple[set[str], set[str]]]:
    """The labels of every `by`, and the series under it."""
    modifier = getattr(expression, "modifier", None)
    if isinstance(expression, promql.AggregateExpr) and modifier is not None:
        yield set(modifier.labels), {selected.name for selected in selections(expression)}
    for child in children(expression):
        yield from groupings(child)


def complaints(query: str) -> list[str]:
    """What is wrong with a query, against the metrics of the server."""
    for macro, value in GRAFANA_MACROS.items():
        query = query.replace(macro, value)
    known = metrics()
    labels: dict[str, set[str]] = {name: set(TARGET_LABELS) for name in OWN_SERIES}
    for name, metric in known.items():
        for series in metric.series(name):
            labels[series] = TARGET_LABELS | metric.labels | ({"le"} if series.endswith("_bucket") else set())
    try:
        expression = promql.parse(query)
    except ValueError as error:
        return [f"{error}: {query}"]
    found = []
    read = list(selections(expression))
    if not read:
        found.append(f"reads nothing: {query}")
    for selected in read:
        if selected.name not in labels:
            found.append(f"{selected.name} is no series of the server")
        elif selected.labels - labels[selected.name]:
            found.append(f"{selected.name} has no label {sorted(selected.labels - labels[selected.name])}")
        found += [f"no request has {value}" for value in unknown_values(selected)]
    for wanted, under in groupings(expression):
        for series in under & set(labels):
            if wanted - labels[series]:
                found.append(f"{series} cannot be grouped by {sorted(wanted - labels[series])}")
    return found


def unknown_values(selected: Selected) -> Iterator[str]:
    """Values of labels whose values are a closed set, where they are compared with one that is not in it."""
    closed = {
        "reason": set(error_codes()) | {"caller_left"},
        "component": {"generator", "text", "image", "ocr", "judge", "detector", "orientation", "recogniser"},
        "task": label_values("TASKS"),
        "outcome": label_values("OUTCOMES"),
        "status": {str(status) for status, _ in error_codes().values()} | {"200", "499"},
    }
    if selected.name == "dichroic_regenerated_total":
        closed["reason"] = regeneration_reasons()
    if selected.name == "dichroic_limit_fallbacks_total":
        closed["reason"] = {"away", "timeout", "error"}
    for label, operator, value in selected.values:
        if label not in closed:
            continue
        if operator.endswith("Re"):
            for part in value.split("|"):
                if not any(re.fullmatch(part, word) for word in closed[label]):
                    yield f"{label}=~{part}"
        elif value not in closed[label]:
            yield f"{label}={value}"


def regeneration_reasons() -> set[str]:
    """Why an answer is made again, from the check that says so."""
    quality = (ROOT / "src/service/quality.rs").read_text(encoding="utf-8")
    check = re.search(r"fn failure\(.*?\n    \}", quality, re.DOTALL)
    assert check, "the check is not where it was"
    reasons = set(re.findall(r'[Ss]ome\("(\w+)"\)', check[0]))
    assert len(reasons) > 3
    return reasons


# --- the checks themselves -----------------------------------------------------


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("rate(dichroic_request_total[5m])", "dichroic_request_total is no series"),
        ("dichroic_queue_duration_seconds", "dichroic_queue_duration_seconds is no series"),
        ("dichroic_requests_total_sum", "is no series"),
        ("process_resident_memory", "is no series"),
        ('process_open_fds{operation="sunshine_text"}', "has no label ['operation']"),
        ('dichroic_requests_total{code="200"}', "has no label ['code']"),
        ('rate(dichroic_batch_size_sum{le="1"}[5m])', "has no label ['le']"),
        ("sum by (model) (rate(dichroic_rejected_total[5m]))", "cannot be grouped by ['model']"),
        ('dichroic_rejected_total{reason="overload"}', "no request has reason=overload"),
        ('dichroic_rejected_total{reason=~"overloaded|forbidden"}', "no request has reason=~forbidden"),
        ('dichroic_requests_total{status="503"}', "no request has status=503"),
        ('dichroic_regenerated_total{reason="overloaded"}', "no request has reason=overloaded"),
        ('dichroic_task_panics_total{task="audio"}', "no request has task=audio"),
        ('dichroic_trace_posts_total{outcome="lost"}', "no request has outcome=lost"),
        ("rate(dichroic_requests_total[5m)", "inside brackets"),
        ("1 + 1", "reads nothing"),
    ],
)
def test_a_query_that_the_server_cannot_answer_is_found(query: str, complaint: str) -> None:
    assert any(complaint in found for found in complaints(query)), complaints(query)


def test_a_query_that_it_can_answer_passes() -> None:
    query = (
        "histogram_quantile(0.9, sum by (model, le) (rate(dichroic_queue_duration_seconds_bucket[$__rate_interval])))"
        ' > 2 and on (job) up{job="dichroic"}'
    )
    assert complaints(query) == []


def test_the_statuses_that_are_counted_are_the_ones_that_are_asked_for() -> None:
    """A caller who left is counted as 499; a refusal is counted by its code."""
    observe = (ROOT / "src/http/observe.rs").read_text(encoding="utf-8")
    assert "from_u16(499)" in observe and '"caller_left"' in observe
    assert "rejected.with_label_values(&[code])" in observe
    redis = (ROOT / "src/access/limits/redis.rs").read_text(encoding="utf-8")
    assert set(re.findall(r'Self::\w+ => "(\w+)"', redis)) == {"away", "timeout", "error"}


def test_refusals_that_alerts_ask_for_are_counted_from_the_start() -> None:
    """An increase over a series that appears with its first event would miss that event."""
    refusals = label_values("REFUSALS")
    assert refusals <= set(error_codes()) | {"caller_left"}
    assert {code for code, (status, _) in error_codes().items() if status in (401, 429)} <= refusals
    asked = {
        reason
        for rule in rules()
        for selected in selections(promql.parse(rule["expr"]))
        if selected.name == "dichroic_rejected_total"
        for label, _, value in selected.values
        if label == "reason"
        for reason in value.split("|")
    }
    assert asked and asked <= refusals


def test_what_may_panic_is_counted_under_a_name_that_is_known() -> None:
    counted = set()
    for path in ("src/http/observe.rs", "src/http/extract.rs"):
        source = (ROOT / path).read_text(encoding="utf-8")
        counted |= set(re.findall(r'task_panics\s*\.with_label_values\(&\["(\w+)"\]\)', source))
    serve = (ROOT / "src/cli/serve.rs").read_text(encoding="utf-8")
    counted |= set(re.findall(r'every_round\(\s*&?lifecycle,\s*&?metrics,\s*"(\w+)"', serve))
    pool = (ROOT / "src/service/pool.rs").read_text(encoding="utf-8")
    counted |= set(re.findall(r'Self::\w+ => "(\w+)"', pool))
    assert counted == label_values("TASKS")


def test_the_reasons_for_making_an_answer_again_are_documented() -> None:
    operations = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    row = next(line for line in operations.splitlines() if line.startswith("| `dichroic_regenerated_total`"))
    assert set(re.findall(r"`(\w+)`", row)) == regeneration_reasons() | {"dichroic_regenerated_total"}


# --- alerts --------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_ask_for_what_the_server_tells(rule: dict[str, Any]) -> None:
    assert complaints(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description"}
    # A label that the expression sums away would be empty in the text.
    grouped = set().union(*(wanted for wanted, _ in groupings(promql.parse(rule["expr"])))) or TARGET_LABELS
    used = set(re.findall(r"\$labels\.(\w+)", str(annotations)))
    assert used <= grouped
    # Nor may releases be added up: one that is well would hide one that is not.
    for wanted, _ in groupings(promql.parse(rule["expr"])):
        assert {"namespace", "job"} <= wanted
    assert not re.search(r"\b(sum|count|min|max)\(", rule["expr"]), "that adds up all there is"


def test_every_alert_is_tested_to_fire_and_to_stay_silent() -> None:
    content = yaml.safe_load((DEPLOY / "prometheus/alerts_test.yml").read_text(encoding="utf-8"))
    cases = [case for test in content["tests"] for case in test["alert_rule_test"]]
    named = {rule["alert"] for rule in rules()}
    assert len(named) == len(rules())
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == named
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == named


def promtool(
    *words: str, folder: Path = DEPLOY / "prometheus", given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROMTOOL, *words], cwd=folder, input=given, capture_output=True, text=True, check=False, timeout=120
    )


def test_prometheus_takes_the_rules_and_they_fire_as_said() -> None:
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_notices_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    """That the tests of the rules can fail at all."""
    text = (DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8")
    (tmp_path / "alerts.yml").write_text(text.replace("> 0.05", "> 0.5"), encoding="utf-8")
    (tmp_path / "alerts_test.yml").write_bytes((DEPLOY / "prometheus/alerts_test.yml").read_bytes())
    done = promtool("test", "rules", "alerts_test.yml", folder=tmp_path)
    assert done.returncode != 0 and "DichroicCallersLeave" in done.stdout + done.stderr


def test_thresholds_that_follow_from_a_setting_follow_it() -> None:
    (slow,) = [rule for rule in rules() if rule["alert"] == "DichroicSlow"]
    assert slow["expr"].rstrip().endswith(f"> {settings()['request_timeout_ms'].default // 2000}")


def test_the_scrape_configuration_is_one_that_prometheus_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    (mentioned,) = yaml.safe_load(text)["rule_files"]
    local = tmp_path / "prometheus.yml"
    local.write_text(text.replace(mentioned, str(DEPLOY / "prometheus/alerts.yml")), encoding="utf-8")
    done = promtool("check", "config", str(local))
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = yaml.safe_load(text)["scrape_configs"]
    asked = {
        value
        for rule in rules()
        for selected in selections(promql.parse(rule["expr"]))
        for label, _, value in selected.values
        if label == "job"
    }
    assert asked and all(re.fullmatch(pattern, job["job_name"]) for pattern in asked)


def test_prometheus_finds_the_replicas_and_sees_one_go(tmp_path: Path) -> None:
    """A real one, with the composition's configuration; only the addresses are others, and the times shorter."""
    text = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    (mounted,) = yaml.safe_load(text)["rule_files"]
    text = text.replace(mounted, str(DEPLOY / "prometheus/alerts.yml")).replace(": 15s", ": 1s")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    with ExitStack() as stopped:
        replicas = []
        for name in job["static_configs"][0]["targets"]:
            replica = Replica(tmp_path / name.partition(":")[0], tmp_path / "keys.json")
            stopped.callback(replica.stop)
            replicas.append(replica)
            text = text.replace(name, f"{replica.host}:{replica.port}")
        (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
        watching = Endpoint("127.0.0.1", free_port())
        flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        with open(tmp_path / "log", "wb") as log:
            process = subprocess.Popen(
                [PROMETHEUS, *flags, f"--web.listen-address=127.0.0.1:{watching.port}"], stdout=log, stderr=log
            )
        stopped.callback(process.wait)
        stopped.callback(process.terminate)

        def up() -> dict[str, str]:
            try:
                status, body = watching.get("/api/v1/query?query=" + quote('up{job="dichroic"}'))
            except OSError:
                return {}
            found = json.loads(body)["data"]["result"] if status == 200 else []
            return {series["metric"]["instance"]: series["value"][1] for series in found}

        addresses = [f"{replica.host}:{replica.port}" for replica in replicas]
        eventually(lambda: up() == dict.fromkeys(addresses, "1"), (tmp_path / "log").read_text()[-2000:], 60)
        replicas[0].stop()
        eventually(lambda: up() == {addresses[0]: "0", addresses[1]: "1"}, "it did not see that one is gone", 60)

        def judged() -> list[str]:
            groups = json.loads(watching.get("/api/v1/rules")[1])["data"]["groups"]
            return [rule["health"] for group in groups for rule in group["rules"]]

        eventually(lambda: judged() == ["ok"] * len(rules()), "a rule could not be judged", 60)


# --- the autoscaler's metric -----------------------------------------------------


def test_the_adapter_asks_for_what_the_server_tells() -> None:
    (rule,) = yaml.safe_load((DEPLOY / "prometheus/adapter-rules.yml").read_text(encoding="utf-8"))["rules"]
    query = rule["metricsQuery"]
    assert query.count("<<.LabelMatchers>>") == 2 and "<<.Series>>" not in query
    query = query.replace("<<.LabelMatchers>>", 'namespace="prod",pod=~"a|b"').replace("<<.GroupBy>>", "pod")
    assert complaints(query) == [] and complaints(rule["seriesQuery"]) == []
    (series,) = {selected.name for selected in selections(promql.parse(rule["seriesQuery"]))}
    assert series in {selected.name for selected in selections(promql.parse(query))}


def test_the_adapters_metric_is_the_longest_mean_wait_of_a_pod(tmp_path: Path) -> None:
    """Two components of one pod wait 2 s and 0.5 s an item; another pod was asked nothing."""
    (rule,) = yaml.safe_load((DEPLOY / "prometheus/adapter-rules.yml").read_text(encoding="utf-8"))["rules"]
    query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="prod"').replace("<<.GroupBy>>", "pod")

    def series(kind: str, pod: str, component: str, rate: float) -> dict[str, str]:
        labels = f'namespace="prod",pod="{pod}",model="m",component="{component}"'
        return {"series": f"dichroic_queue_duration_seconds_{kind}{{{labels}}}", "values": f"0+{rate:g}x10"}

    test = {
        "interval": "1m",
        "input_series": [
            series("sum", "busy", "generator", 120),
            series("count", "busy", "generator", 60),
            series("sum", "busy", "text", 300),
            series("count", "busy", "text", 600),
            series("sum", "idle", "text", 0),
            series("count", "idle", "text", 0),
        ],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": "10m",
                "exp_samples": [{"labels": '{pod="busy"}', "value": 2}, {"labels": '{pod="idle"}', "value": 0}],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    done = promtool("test", "rules", "test.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the dashboard ---------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana/dichroic.json").read_text(encoding="utf-8"))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panels_ask_for_what_the_server_tells(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert complaints(target["expr"]) == []
        grouped = set().union(*(wanted for wanted, _ in groupings(promql.parse(plain(target["expr"])))))
        assert set(re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))) <= grouped
        # Every panel obeys the choice of replicas above it.
        for selected in selections(promql.parse(plain(target["expr"]))):
            chosen = {(label, f"${label}") for label in ("namespace", "job", "instance")}
            assert chosen <= {(label, value) for label, _, value in selected.values}


def test_prometheus_takes_the_query_of_every_panel(tmp_path: Path) -> None:
    """As recording rules, the one form in which promtool reads queries from a file."""
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    named = [{"record": f"panel:{number}", "expr": plain(query)} for number, query in enumerate(queries)]
    done = checked(tmp_path, named)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(queries)} rules found" in done.stdout and len(queries) > 30
    # And one that Grafana alone can read is refused.
    done = checked(tmp_path, [*named, {"record": "panel:left", "expr": "rate(dichroic_requests_total[$__interval])"}])
    assert done.returncode != 0 and "panel:left" in done.stdout + done.stderr


def checked(folder: Path, named: list[dict[str, str]]) -> subprocess.CompletedProcess[str]:
    group = {"name": "panels", "rules": named}
    (folder / "panels.yml").write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
    return promtool("check", "rules", "panels.yml", folder=folder)


def plain(query: str) -> str:
    for macro, value in GRAFANA_MACROS.items():
        query = query.replace(macro, value)
    return query


def test_variables_are_defined_and_filled_from_metrics_that_exist() -> None:
    defined = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard()["panels"])))
    assert used == set(defined)
    for variable in defined.values():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert asked and complaints(asked[1]) == [] and asked[2] in TARGET_LABELS


def test_every_metric_of_the_server_is_shown() -> None:
    shown = {
        selected.name
        for panel in panels()
        for target in panel["targets"]
        for selected in selections(promql.parse(plain(target["expr"])))
    }
    for name, metric in metrics().items():
        assert metric.series(name) & shown, f"{name} is on no panel"


def test_panels_have_their_own_place_and_number() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_nothing_is_fetched_from_an_address() -> None:
    assert "http" not in json.dumps(dashboard())


# --- a running server --------------------------------------------------------------

COMPONENTS = {"text": "tiny-text", "image": "tiny-image", "ocr": "tiny-reader", "generator": "tiny-generator"}
BATCH_TOKENS = "256"
# Without a series before their first event; all others are there from the start, so that an increase from 0 is seen.
APPEAR_WITH_USE = {
    "dichroic_requests_total",
    "dichroic_request_duration_seconds",
}
# Name and values of the labels, in the labels' order, without `model`.
Series = tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """One answer, and the scrapes before and after it."""

    answer: Answer
    before: str
    after: str

    def rises(self) -> dict[Series, float]:
        """By how much each series rose; buckets and what belongs to the process left out."""
        before = samples(self.before)
        changes = {series: value - before.get(series, 0) for series, value in samples(self.after).items()}
        return {series: change for series, change in changes.items() if change and series[0].startswith("dichroic_")}


@dataclass(frozen=True)
class Live:
    """What a server told: before it was asked anything, around the first of each operation, and in the end."""

    fresh: str
    asked: dict[str, Asked]
    refused: Asked
    used: str


def samples(scrape: str) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for line in scrape.splitlines():
        sample = re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line)
        if sample is None or sample[1].endswith("_bucket"):
            continue
        labels = sorted(re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))
        found[(sample[1], *(value for label, value in labels if label != "model"))] = float(sample[3])
    return found


def declared(scrape: str) -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every metric in a scrape."""
    found: dict[str, tuple[str, set[str]]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", scrape, re.MULTILINE):
        ending = "_count" if kind == "histogram" else ""
        labelled = re.findall(rf"^{name}{ending}(?:{{(.*)}})? ", scrape, re.MULTILINE)
        assert labelled, f"{name} has no sample"
        found[name] = (kind, {label for labels in labelled for label in re.findall(r'(\w+)="', labels)})
    return found


def install(folder: Path) -> None:
    """All components. The classifiers are of random weights: calibrated so, every picture is flagged and no text, and
    the texts that are written are given out.
    """
    for component, fixture in COMPONENTS.items():
        place = folder / MODEL / "build" / component
        shutil.copytree(ROOT / "tests/fixtures" / fixture, place)
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        for category in manifest.get("text_classifier", {}).get("calibration", []):
            category["point"] = 50.0
        if component == "image":
            manifest["image_classifier"]["sexual"]["bias"] = 50.0
        (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def picture() -> str:
    """A bright bar on black, which the tiny reader takes for a line of text; PNG in base64."""
    width, height = 96, 64
    rows = [bytes(255 * (20 <= y < 36 and 8 <= x < 88) for x in range(width)) for y in range(height)]
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))),
        (b"IEND", b""),
    ]
    file = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        file += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return base64.b64encode(file).decode()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    install(folder / "models")
    key = make_key(folder / "keys.json", "--limit", "100000", "--burst", "1000")
    replica = Replica(
        folder / "replica",
        folder / "keys.json",
        DICHROIC_MODELS_DIR=str(folder / "models"),
        DICHROIC_SPECULATION="lookup",
        # Nobody listens there: the metric of limits that are judged without Redis exists where there is one.
        DICHROIC_REDIS_URL=f"redis://127.0.0.1:{free_port()}",
        # Nothing is measured, so nothing runs that was not asked for.
        DICHROIC_BATCH_TOKENS=BATCH_TOKENS,
    )

    def scrape() -> str:
        status, text = replica.get("/metrics")
        assert status == 200
        return text

    def ask(operation: str, fields: dict[str, str], key: str = key) -> Asked:
        before = scrape()
        answer = replica.post(operations()[operation], key, fields)
        return Asked(answer, before, scrape())

    try:
        fresh = scrape()
        asked = {
            "guardian_text": ask("guardian_text", {"text": "the train leaves at nine"}),
            "guardian_image": ask("guardian_image", {"image": picture()}),
            "prism_text": ask("prism_text", {"text": "the soup was too salty"}),
            "sunshine_text": ask("sunshine_text", {"text": "it rains, and the roof leaks"}),
            "moderation": ask("moderation", {"input": "a nice day"}),
        }
        refused = ask("guardian_text", {"text": "the train leaves at ten"}, key + "x")
        guess(replica, key)
        yield Live(fresh, asked, refused, scrape())
    finally:
        replica.stop()


def guess(replica: Replica, key: str) -> None:
    """Asks until a guess was made: random weights now and then write a letter twice, and these texts hold many such."""
    guessed = f'dichroic_guessed_tokens_total{{component="generator",model="{MODEL}"}}'
    for seed in range(20):
        letters = random.Random(seed).sample(string.ascii_letters + string.digits, 40)
        text = "".join(2 * letter for letter in letters)
        assert replica.post(operations()["sunshine_text"], key, {"text": text}).status == 200
        if replica.counter(guessed) > 0:
            return


def test_prometheus_has_nothing_to_say_against_what_is_told(live: Live) -> None:
    for told in (live.fresh, live.used):
        done = promtool("check", "metrics", given=told)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    done = promtool("check", "metrics", given=live.used.replace("dichroic_requests_total", "dichroic_requests"))
    assert done.returncode != 0 and "dichroic_requests" in done.stdout + done.stderr, "it would not notice"


def test_a_running_server_tells_the_metrics_that_its_sources_name(live: Live) -> None:
    """What dashboard and alerts are held against; what a new server lacks appears with its first event."""
    named = {name: (metric.kind, set(metric.labels)) for name, metric in metrics().items()}
    assert declared(live.used) == named
    assert named.keys() - declared(live.fresh).keys() == APPEAR_WITH_USE


def passes(*components: str) -> set[Series]:
    """What rises when these are run."""
    kinds = ("queue_duration_seconds", "inference_duration_seconds", "batch_size", "batch_padding_ratio")
    return {(f"dichroic_{kind}_count", component) for kind in kinds for component in components}


READ = {
    ("dichroic_tokenization_duration_seconds_count",),
    ("dichroic_input_tokens_total", "text"),
    ("dichroic_moderation_cache_misses_total", "text"),
}
WRITTEN = {
    ("dichroic_input_tokens_total", "generator"),
    ("dichroic_generated_tokens_total", "generator"),
    ("dichroic_prefix_cache_hits_total", "generator"),
}
RISE: dict[str, set[Series]] = {
    "guardian_text": passes("text") | READ,
    "guardian_image": passes("image", "detector", "orientation", "recogniser", "text")
    | READ
    | {("dichroic_image_decode_duration_seconds_count",), ("dichroic_flagged_total", "sexual", "guardian_image")},
    "prism_text": passes("text", "generator") | READ | WRITTEN | {("dichroic_shared_prompt_tokens_total", "generator")},
    "sunshine_text": passes("text", "generator") | READ | WRITTEN,
    "moderation": passes("text") | READ,
}


@pytest.mark.parametrize("operation", sorted(operations()))
def test_what_an_operation_does_is_counted_and_nothing_else(live: Live, operation: str) -> None:
    asked = live.asked[operation]
    assert asked.answer.status == 200, asked.answer.body
    rises = asked.rises()
    assert rises.keys() >= RISE[operation], RISE[operation] - rises.keys()
    components = {series[1] for series in RISE[operation] if series[0] == "dichroic_batch_size_count"}
    assert {series[1] for series in rises if series[0] == "dichroic_batch_size_count"} == components
    # Once, and under its own name.
    of_requests = {series: change for series, change in rises.items() if series[0].startswith("dichroic_request")}
    duration = of_requests.pop(("dichroic_request_duration_seconds_sum", operation))
    assert of_requests == {
        ("dichroic_requests_total", operation, "200"): 1,
        ("dichroic_request_duration_seconds_count", operation): 1,
    }
    assert 0 < duration <= asked.answer.seconds, "seconds are meant, and the caller saw all of them"
    assert rises["dichroic_limit_fallbacks_total", "away"] == 1
    for fault in ("abandoned_total", "inference_failures_total", "worker_panics_total", "rejected_total"):
        assert f"dichroic_{fault}" not in {series[0] for series in rises}


def test_a_refusal_is_counted_by_its_code_and_reaches_no_model(live: Live) -> None:
    rises = live.refused.rises()
    assert live.refused.answer.status == 401
    assert rises.pop(("dichroic_request_duration_seconds_sum", "guardian_text")) > 0
    assert rises == {
        ("dichroic_requests_total", "guardian_text", "401"): 1,
        ("dichroic_request_duration_seconds_count", "guardian_text"): 1,
        ("dichroic_rejected_total", "invalid_api_key"): 1,
    }


def test_the_threshold_of_slow_answers_is_the_bound_of_a_bucket(live: Live) -> None:
    """Between two bounds a quantile is guessed."""
    told = re.findall(r'^dichroic_request_duration_seconds_bucket{.*le="([\d.]+)"', live.used, re.MULTILINE)
    assert settings()["request_timeout_ms"].default / 2000 in {float(bound) for bound in told}


def test_guesses_and_answers_made_again_are_counted_and_the_set_batch_size_is_told(live: Live) -> None:
    told = samples(live.used)
    assert 0 < told["dichroic_guessed_tokens_total", "generator"] >= told["dichroic_accepted_tokens_total", "generator"]
    again = {series[1]: count for series, count in told.items() if series[0] == "dichroic_regenerated_total"}
    assert again.keys() == regeneration_reasons() and sum(again.values()) > 0
    assert told["dichroic_batch_tokens", "text"] == int(BATCH_TOKENS)
    assert told[("dichroic_requests_in_flight",)] == 1, "the scrape itself"
