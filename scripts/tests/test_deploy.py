"""The Helm chart, rendered by Helm's own library: what an operator's cluster
would get. Run by `make test-deploy`.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from typing import Any

import helm_python as helm
import jsonschema
import kubernetes_validate
import pytest
import yaml
from rust_sources import ROOT, cargo_version, model_ids, secrets, settings

try:
    import tomllib
except ImportError:
    import tomli as tomllib

CHART = ROOT / "deploy/helm/dichroic"
# A resource of the Prometheus operator, which no schema of Kubernetes describes.
SERVICE_MONITOR = ROOT / "scripts/tests/service_monitor.schema.json"
API_KEY = "a-key-for-nobody-0123"
KEYS_JSON = '{"format": 1, "keys": []}'
# The first that the chart allows, and the newest that the schemas know.
KUBERNETES = ["1.30", kubernetes_validate.latest_version()]
# What the chart says itself, in place of a value.
FIXED = {"listen", "models_dir", "runtime_library", "keys_file"}
# What it says where Redis is asked, and leaves out where not.
WITH_REDIS = {"redis_url", "redis_ca_file", "replicas"}
# TLS ends before the pods: the chart mounts no certificate, and the kubelet's probes could show none.
NEVER = {"tls_certificate_file", "tls_key_file", "tls_client_ca_file"}

SETS: dict[str, dict[str, Any]] = {
    "least": {"keys": {"existingSecret": "team-keys"}},
    "bootstrap key": {"keys": {"apiKey": API_KEY}, "replicas": 1},
    "key file": {"keys": {"keysJson": KEYS_JSON}, "serviceAccount": {"create": False}},
    "everything": {
        "image": {"repository": "images.example/dichroic", "digest": "sha256:" + "0a" * 32},
        "imagePullSecrets": [{"name": "pull"}],
        "keys": {"keysJson": KEYS_JSON, "apiKey": API_KEY},
        "models": {"existingClaim": "models", "subPath": "2026-11"},
        "config": {
            "models": ["beta-3-haiku", "alpha-4o-mini"],
            "max_connections": 1_000_000,
            "playground": False,
            "batch_tokens": 512,
            "device": "cuda",
            "log": 'info,a="<b>"',
        },
        "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
        "listenAddress": "[::]",
        "gpu": {"count": 1, "runtimeClassName": "nvidia"},
        "service": {"type": "LoadBalancer", "port": 8443, "annotations": {"a": "b"}},
        "autoscaling": {"enabled": True, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}}},
        "podDisruptionBudget": {"maxUnavailable": "25%"},
        "redis": {"url": "rediss://limits@redis.cache.svc:6380/1", "existingSecret": "redis-login"},
        "networkPolicy": {
            "fromNamespaces": ["ingress", "monitoring"],
            "from": [{"ipBlock": {"cidr": "10.0.0.0/16"}}],
            "toRedis": [{"podSelector": {"matchLabels": {"app": "redis"}}}],
        },
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "serviceAccount": {"annotations": {"a": "b"}},
        "topologySpreadConstraints": [
            {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"c": "d"},
        "podLabels": {"e": "f"},
    },
    "scaled on processors": {
        "keys": {"existingSecret": "k"},
        "autoscaling": {"enabled": True, "metric": "cpu", "maxReplicas": 20},
    },
    "scaled on the queue alone": {
        "keys": {"existingSecret": "k"},
        "autoscaling": {"enabled": True},
        "resources": {"limits": {"cpu": None}, "requests": {"cpu": None}},
    },
    "alone": {
        "keys": {"existingSecret": "k"},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "preStopSeconds": 0,
        # null takes a default away, as everywhere in Helm.
        "resources": {"limits": None, "requests": None},
    },
    "plain redis": {"keys": {"existingSecret": "k"}, "replicas": 3, "redis": {"url": "redis://10.0.0.5"}},
    "closed": {"keys": {"existingSecret": "k"}, "networkPolicy": {"fromOwnNamespace": False}},
    "traced": {
        "keys": {"existingSecret": "k"},
        "config": {"otlp_endpoint": "http://collector.monitoring:4318", "playground": False},
        "networkPolicy": {"egress": [{"ports": [{"port": 4318, "protocol": "TCP"}]}]},
    },
}


@pytest.fixture(scope="module")
def chart() -> Any:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


class Release:
    """The objects of one rendering, by kind."""

    def __init__(self, chart: Any, values: dict[str, Any], name: str = "demo") -> None:
        self.texts = chart.render(copy.deepcopy(values), name=name, namespace="prod")
        notes = [path for path in self.texts if path.endswith("NOTES.txt")]
        self.notes = "".join(self.texts.pop(path) for path in notes)
        documents = [document for text in self.texts.values() for document in yaml.safe_load_all(text) if document]
        self.objects = {document["kind"]: document for document in documents}
        assert len(self.objects) == len(documents), "two objects of one kind"

    def __getitem__(self, kind: str) -> dict[str, Any]:
        return self.objects[kind]

    def __contains__(self, kind: str) -> bool:
        return kind in self.objects

    @property
    def pod(self) -> dict[str, Any]:
        return self["Deployment"]["spec"]["template"]["spec"]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return container

    @property
    def settings(self) -> dict[str, Any]:
        return tomllib.loads(self["ConfigMap"]["data"]["dichroic.toml"])


@pytest.fixture(params=list(SETS))
def release(request: pytest.FixtureRequest, chart: Any) -> Release:
    return Release(chart, SETS[request.param])


def with_keys(**values: Any) -> dict[str, Any]:
    return {"keys": {"existingSecret": "k"}, **values}


# --- whatever the values -------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_one_that_kubernetes_knows(release: Release, version: str) -> None:
    for kind, document in release.objects.items():
        assert document["metadata"]["name"].startswith("demo-dichroic")
        if kind == "ServiceMonitor":
            jsonschema.validate(document, service_monitor_schema())
        else:
            kubernetes_validate.validate(document, version, strict=True)


def service_monitor_schema() -> dict[str, Any]:
    return json.loads(SERVICE_MONITOR.read_text(encoding="utf-8"))


def test_the_schemas_refuse_what_is_wrong(chart: Any) -> None:
    deployment = Release(chart, SETS["least"])["Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesytem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFilesytem"):
        kubernetes_validate.validate(deployment, KUBERNETES[-1], strict=True)
    for name, value, complaint in [
        ("scrapeTimeOut", "10s", "'scrapeTimeOut' was unexpected"),
        ("interval", "30 s", "'30 s' does not match"),
        ("port", 8080, "8080 is not of type 'string'"),
    ]:
        monitor = Release(chart, SETS["everything"])["ServiceMonitor"]
        monitor["spec"]["endpoints"][0][name] = value
        with pytest.raises(jsonschema.ValidationError, match=complaint):
            jsonschema.validate(monitor, service_monitor_schema())


def test_the_pod_has_no_right_that_it_does_not_need(release: Release) -> None:
    pod, context = release.pod, release.container["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    for flag in ("hostNetwork", "hostPID", "hostIPC", "initContainers"):
        assert flag not in pod
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if "ServiceAccount" in release:
        assert release["ServiceAccount"]["automountServiceAccountToken"] is False
        assert release["ServiceAccount"]["metadata"]["name"] == pod["serviceAccountName"]


def test_nothing_is_mounted_for_writing_or_inside_another_mount(release: Release) -> None:
    mounts = release.container["volumeMounts"]
    assert all(mount["readOnly"] is True for mount in mounts)
    paths = [mount["mountPath"].rstrip("/") + "/" for mount in mounts]
    assert not [(a, b) for a in paths for b in paths if a != b and a.startswith(b)]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in release.pod["volumes"]}
    for volume in release.pod["volumes"]:
        assert set(volume) & {"configMap", "secret", "persistentVolumeClaim"}
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["readOnly"] is True


def test_no_service_of_the_cluster_can_stop_the_start(release: Release) -> None:
    """Kubernetes would put DICHROIC_PORT=tcp://… into the environment, which the server refuses."""
    assert release.pod["enableServiceLinks"] is False
    for variable in release.container["env"]:
        if variable["name"].startswith("DICHROIC_"):
            assert variable["name"] in {setting.variable for setting in settings().values()}


def test_labels_and_selectors_meet(release: Release) -> None:
    labels = release["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [release["Deployment"]["spec"]["selector"]["matchLabels"], release["Service"]["spec"]["selector"]]
    if "PodDisruptionBudget" in release:
        selectors.append(release["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
    if "NetworkPolicy" in release:
        selectors.append(release["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"])
    for selector in selectors:
        assert selector and selector.items() <= labels.items()
    if "ServiceMonitor" in release:
        selected = release["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        assert selected and selected.items() <= release["Service"]["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in release.container["ports"]}
    assert [port["targetPort"] for port in release["Service"]["spec"]["ports"]] == list(ports) == ["http"]
    assert ports["http"] == int(release.settings["listen"].rsplit(":", 1)[1])


def test_probes_ask_what_the_server_answers(release: Release) -> None:
    probes = {name: release.container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    asked = {name: probe["httpGet"] for name, probe in probes.items()}
    assert asked["startup"] == asked["liveness"] == {"path": "/livez", "port": "http"}
    assert asked["readiness"] == {"path": "/readyz", "port": "http"}
    routes = (ROOT / "src/http/health.rs").read_text(encoding="utf-8")
    assert all(f'path = "{probe["path"]}"' in routes for probe in asked.values())


def test_the_end_leaves_time_for_the_pause_and_the_grace(release: Release) -> None:
    grace = release.settings["shutdown_grace_ms"] / 1000
    pause = release.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert release.pod["terminationGracePeriodSeconds"] >= pause + grace + 3


def test_no_key_stands_anywhere_but_in_the_secret(release: Release) -> None:
    encoded = [base64.b64encode(text.encode()).decode() for text in (API_KEY, KEYS_JSON)]
    for path, text in release.texts.items():
        assert API_KEY not in text and KEYS_JSON not in text
        assert path.endswith("/secret.yaml") or not any(word in text for word in encoded)
    assert API_KEY not in release.notes
    (variable,) = [item for item in release.container["env"] if item["name"] == "DICHROIC_API_KEY"]
    assert "value" not in variable and variable["valueFrom"]["secretKeyRef"]["optional"] is True


def test_the_settings_are_ones_that_the_server_takes(release: Release) -> None:
    known, written = settings(), release.settings
    assert set(written) | {"models"} | WITH_REDIS | NEVER | secrets() == set(known)
    assert not set(written) & (NEVER | secrets() - {"redis_url"})
    for name, value in written.items():
        setting = known[name]
        if setting.default is not None:
            assert type(value) is int and setting.least <= value <= setting.most, name
        else:
            assert isinstance(value, list) == (name == "models")
            assert isinstance(value, bool) == setting.switch, name
    mounts = {mount["name"]: mount["mountPath"] for mount in release.container["volumeMounts"]}
    assert written["keys_file"] == f"{mounts['keys']}/keys.json"
    assert ("redis_url" in written) == ("replicas" in written)
    assert written.get("redis_ca_file") == (f"{mounts['redis']}/ca.crt" if "redis" in mounts else None)
    assert written.get("redis_url", "").startswith("rediss://") == ("redis" in mounts)
    assert release.container["args"] == ["serve", "--config", f"{mounts['config']}/dichroic.toml"]
    if "models" in mounts:
        assert mounts["models"] == written["models_dir"]


# --- single values ------------------------------------------------------------


def test_the_values_default_to_the_servers_defaults_within_its_bounds(chart: Any) -> None:
    values = chart.values["config"]
    bounds = chart.schema["properties"]["config"]["properties"]
    known = {name: one for name, one in settings().items() if name not in FIXED | WITH_REDIS | NEVER | secrets()}
    assert set(values) == set(bounds) == set(known)
    for name, setting in known.items():
        if setting.default is not None:
            assert values[name] == setting.default, name
            assert (bounds[name]["minimum"], bounds[name]["maximum"]) == (setting.least, setting.most), name
    assert (values["models"], values["log_format"], values["log"]) == ([], "json", "info")
    texts = (values["redis_prefix"], values["playground"], values["otlp_endpoint"], values["device"])
    assert texts == ("dichroic:", True, "", "cpu")
    word, number = bounds["batch_tokens"]["anyOf"]
    assert values["batch_tokens"] == word["const"] == "auto" and values["moderation_cache"] is True
    assert (number["minimum"], number["maximum"]) == (known["batch_tokens"].least, known["batch_tokens"].most)
    assert bounds["models"]["items"]["enum"] == model_ids()


def test_texts_reach_the_settings_as_they_were_written(chart: Any) -> None:
    written = Release(chart, SETS["everything"]).settings
    assert written["log"] == 'info,a="<b>"'
    assert written["models"] == ["beta-3-haiku", "alpha-4o-mini"]
    assert (written["max_connections"], written["listen"]) == (1_000_000, "[::]:8080")
    assert (written["playground"], written["batch_tokens"]) == (False, 512)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "no API key: set keys.existingSecret"),
        (with_keys(replica=3), "'replica' not allowed"),
        ({"keys": {"apiKey": "fifteen-letters"}}, "/keys/apiKey"),
        ({"keys": {"apiKey": "sixteen letters "}}, "/keys/apiKey"),
        ({"keys": {"keysJson": "dk_abc"}}, "/keys/keysJson"),
        (with_keys(config={"usage_limits": 5}), "'usage_limits' not allowed"),
        (with_keys(config={"api_key": API_KEY}), "'api_key' not allowed"),
        (with_keys(config={"listen": "0.0.0.0:1"}), "'listen' not allowed"),
        (with_keys(config={"batch_tokens": 127}), "/config/batch_tokens"),
        (with_keys(config={"batch_tokens": "512"}), "/config/batch_tokens"),
        (with_keys(config={"moderation_cache_entries": 0}), "/config/moderation_cache_entries"),
        (with_keys(config={"device": "gpu"}), "/config/device"),
        (with_keys(config={"usage_limit": "600"}), "/config/usage_limit"),
        (with_keys(config={"models": ["alpha"]}), "/config/models"),
        (with_keys(config={"log_format": "xml"}), "/config/log_format"),
        (with_keys(config={"redis_prefix": ""}), "/config/redis_prefix"),
        (with_keys(config={"playground": "off"}), "/config/playground"),
        (with_keys(config={"otlp_endpoint": "https://collector:4318"}), "/config/otlp_endpoint"),
        (with_keys(networkPolicy={"egress": "all"}), "/networkPolicy/egress"),
        (with_keys(networkPolicy={"from": ["10.0.0.0/16"]}), "/networkPolicy/from"),
        (with_keys(redis={"url": "10.0.0.5:6379"}), "/redis/url"),
        (with_keys(redis={"url": "redis://user:open-sesame@h"}), "/redis/url"),
        (with_keys(redis={"url": "rediss://h#insecure"}), "/redis/url"),
        (with_keys(redis={"url": "rediss://h"}), "set redis.existingSecret"),
        (with_keys(image={"digest": "sha256:abc"}), "/image/digest"),
        (with_keys(runAsUser=0), "/runAsUser"),
        (with_keys(autoscaling={"metric": "memory"}), "/autoscaling/metric"),
        (
            with_keys(autoscaling={"enabled": True, "metric": "cpu"}, resources={"limits": None, "requests": None}),
            "set resources.requests.cpu",
        ),
        (with_keys(listenAddress="127.0.0.1"), "/listenAddress"),
        (with_keys(readOnlyRootFilesystem=False), "not allowed"),
    ],
)
def test_values_that_cannot_work_are_refused(chart: Any, values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(complaint)):
        chart.render(values, name="demo", namespace="prod")


def test_an_existing_secret_is_used_and_none_is_made(chart: Any) -> None:
    release = Release(chart, SETS["least"])
    assert "Secret" not in release
    assert release.container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "team-keys"
    (volume,) = [volume for volume in release.pod["volumes"] if volume["name"] == "keys"]
    assert volume["secret"] == {
        "secretName": "team-keys",
        "defaultMode": 0o440,
        "optional": True,
        "items": [{"key": "keys.json", "path": "keys.json"}],
    }
    assert release.pod["securityContext"]["fsGroup"] == release.pod["securityContext"]["runAsGroup"]
    # A file mounted by subPath never changes: revoked keys would stay in force.
    (mount,) = [mount for mount in release.container["volumeMounts"] if mount["name"] == "keys"]
    assert "subPath" not in mount


def test_a_secret_holds_what_the_values_hold(chart: Any) -> None:
    data = Release(chart, SETS["everything"])["Secret"]["data"]
    decoded = {name: base64.b64decode(value).decode() for name, value in data.items()}
    assert decoded == {"keys.json": KEYS_JSON, "api-key": API_KEY}
    assert set(Release(chart, SETS["bootstrap key"])["Secret"]["data"]) == {"api-key"}
    assert set(Release(chart, SETS["key file"])["Secret"]["data"]) == {"keys.json"}
    name = Release(chart, SETS["bootstrap key"])["Secret"]["metadata"]["name"]
    assert Release(chart, SETS["bootstrap key"]).container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == name


@pytest.mark.parametrize(("grace", "pause", "seconds"), [(25_000, 5, 35), (0, 0, 5), (1, 0, 6), (600_000, 30, 635)])
def test_the_termination_period_follows_the_grace(chart: Any, grace: int, pause: int, seconds: int) -> None:
    release = Release(chart, with_keys(config={"shutdown_grace_ms": grace}, preStopSeconds=pause))
    assert release.pod["terminationGracePeriodSeconds"] == seconds
    assert ("lifecycle" in release.container) == (pause > 0)


def test_what_is_read_at_the_start_alone_rolls_the_pods_and_a_changed_key_file_does_not(chart: Any) -> None:
    def template(**values: Any) -> Any:
        return Release(chart, {"keys": {"keysJson": KEYS_JSON}, **values})["Deployment"]["spec"]["template"]

    assert template() == template(keys={"keysJson": '{"format": 1, "keys": [{}]}'})
    assert template() != template(config={"usage_limit": 601})
    assert template(keys={"apiKey": API_KEY}) != template(keys={"apiKey": API_KEY + "x"})
    # The chart's own Secret is not used then.
    theirs = {"existingSecret": "k"}
    assert template(keys=theirs) == template(keys={**theirs, "apiKey": API_KEY})


def test_replicas_are_left_to_the_autoscaler(chart: Any) -> None:
    assert Release(chart, SETS["least"])["Deployment"]["spec"]["replicas"] == 2
    assert "HorizontalPodAutoscaler" not in Release(chart, SETS["least"])
    release = Release(chart, SETS["everything"])
    spec = release["HorizontalPodAutoscaler"]["spec"]
    assert "replicas" not in release["Deployment"]["spec"]
    assert spec["scaleTargetRef"]["name"] == release["Deployment"]["metadata"]["name"]
    assert spec["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 600}}


def test_the_autoscaler_looks_at_queue_time_and_at_processors_beside_it_or_alone(chart: Any) -> None:
    def metrics(values: dict[str, Any]) -> list[dict[str, Any]]:
        return Release(chart, values)["HorizontalPodAutoscaler"]["spec"]["metrics"]

    # Kubernetes takes the larger proposal, and adds replicas by one metric while nobody serves the other.
    waits, processors = metrics(SETS["everything"])
    assert waits["type"] == "Pods" and waits["pods"]["target"] == {"type": "AverageValue", "averageValue": "250m"}
    rules = yaml.safe_load((ROOT / "deploy/prometheus/adapter-rules.yml").read_text(encoding="utf-8"))["rules"]
    assert [rule["name"]["as"] for rule in rules] == [waits["pods"]["metric"]["name"]]
    assert processors["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}
    assert metrics(SETS["scaled on processors"]) == [processors]
    # Utilisation is a share of the request, for which Kubernetes takes a limit that stands alone. Without either it
    # would be an error at every look, and no replica would ever be taken away.
    assert metrics(SETS["scaled on the queue alone"]) == [waits]
    limited = {**SETS["scaled on the queue alone"], "resources": {"requests": {"cpu": None}}}
    assert metrics(limited) == [waits, processors]
    assert "by the use of processors alone" in Release(chart, SETS["everything"]).notes
    assert "nothing is scaled" in Release(chart, SETS["scaled on the queue alone"]).notes


@pytest.mark.parametrize("name", SETS)
def test_a_drain_of_nodes_takes_one_replica_at_a_time_unless_told_otherwise(chart: Any, name: str) -> None:
    release = Release(chart, SETS[name])
    if name == "alone":
        assert "PodDisruptionBudget" not in release
        return
    spec = release["PodDisruptionBudget"]["spec"]
    assert spec.pop("selector") == release["Deployment"]["spec"]["selector"]
    most = "25%" if name == "everything" else 1
    assert spec == {"maxUnavailable": most, "unhealthyPodEvictionPolicy": "AlwaysAllow"}


def test_a_rollout_takes_no_replica_before_its_successor_is_ready(release: Release) -> None:
    strategy = release["Deployment"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_replicas_spread_over_nodes_and_zones_unless_told_otherwise(chart: Any) -> None:
    release = Release(chart, SETS["least"])
    common = {
        "maxSkew": 1,
        # A cluster of one node or zone must still start them all.
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": release["Deployment"]["spec"]["selector"],
        "matchLabelKeys": ["pod-template-hash"],
    }
    assert release.pod["topologySpreadConstraints"] == [
        {"topologyKey": "kubernetes.io/hostname", **common},
        {"topologyKey": "topology.kubernetes.io/zone", **common},
    ]
    told = SETS["everything"]["topologySpreadConstraints"]
    assert Release(chart, SETS["everything"]).pod["topologySpreadConstraints"] == told


def test_the_network_policy_lets_nothing_out_and_only_the_named_in(chart: Any) -> None:
    for name in ("least", "key file", "closed"):
        spec = Release(chart, SETS[name])["NetworkPolicy"]["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"] and spec["egress"] == []
    (rule,) = Release(chart, SETS["least"])["NetworkPolicy"]["spec"]["ingress"]
    assert rule == {"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"podSelector": {}}]}
    (rule,) = Release(chart, SETS["everything"])["NetworkPolicy"]["spec"]["ingress"]
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["ingress", "monitoring"]}
    nodes = {"ipBlock": {"cidr": "10.0.0.0/16"}}
    assert rule["from"] == [{"podSelector": {}}, {"namespaceSelector": {"matchExpressions": [chosen]}}, nodes]
    assert Release(chart, SETS["closed"])["NetworkPolicy"]["spec"]["ingress"] == []
    alone = Release(chart, with_keys(networkPolicy={"fromOwnNamespace": False, "from": [nodes]}))
    (rule,) = alone["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"] == [nodes] and "nowhere, and whom networkPolicy.from names." in alone.notes


def test_a_service_for_outside_that_the_policy_keeps_out_is_warned_of(chart: Any) -> None:
    warning = "nobody in from outside the cluster"
    for kind in ("NodePort", "LoadBalancer"):
        assert warning in Release(chart, with_keys(service={"type": kind})).notes
    open_ = with_keys(service={"type": "NodePort"}, networkPolicy={"enabled": False})
    for values in (SETS["least"], SETS["everything"], open_):
        assert warning not in Release(chart, values).notes
    assert "NetworkPolicy" not in Release(chart, SETS["alone"])


def test_traces_are_let_out_to_where_they_are_sent(chart: Any) -> None:
    release = Release(chart, SETS["traced"])
    assert release.settings["otlp_endpoint"] == "http://collector.monitoring:4318"
    assert release["NetworkPolicy"]["spec"]["egress"] == [{"ports": [{"port": 4318, "protocol": "TCP"}]}]
    both = with_keys(redis={"url": "redis://10.0.0.5"}, networkPolicy=SETS["traced"]["networkPolicy"])
    egress = Release(chart, both)["NetworkPolicy"]["spec"]["egress"]
    assert [rule["ports"][0]["port"] for rule in egress] == [6379, 53, 4318]


def test_redis_is_let_out_to_and_nothing_else(chart: Any) -> None:
    names = {
        "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
    }
    to_redis, to_names = Release(chart, SETS["everything"])["NetworkPolicy"]["spec"]["egress"]
    peers = [{"podSelector": {"matchLabels": {"app": "redis"}}}]
    assert to_redis == {"ports": [{"port": 6380, "protocol": "TCP"}], "to": peers} and to_names == names
    anywhere, _ = Release(chart, SETS["plain redis"])["NetworkPolicy"]["spec"]["egress"]
    assert anywhere == {"ports": [{"port": 6379, "protocol": "TCP"}]}
    for url, port in [
        ("redis://h:7000", 7000),
        ("redis://user@h:7000/2", 7000),
        ("redis://[fd00::6]", 6379),
        ("redis://[fd00::6]:7000/", 7000),
        ("redis://h/2", 6379),
    ]:
        rule, _ = Release(chart, with_keys(redis={"url": url}))["NetworkPolicy"]["spec"]["egress"]
        assert rule["ports"][0]["port"] == port, url


def test_the_password_of_redis_comes_from_its_secret(chart: Any) -> None:
    def passwords(name: str) -> list[dict[str, Any]]:
        environment = Release(chart, SETS[name]).container["env"]
        return [item for item in environment if item["name"] == "DICHROIC_REDIS_PASSWORD"]

    (password,) = passwords("everything")
    wanted = {"name": "redis-login", "key": "redis-password", "optional": True}
    assert password["valueFrom"]["secretKeyRef"] == wanted
    (volume,) = [volume for volume in Release(chart, SETS["everything"]).pod["volumes"] if volume["name"] == "redis"]
    assert (volume["secret"]["secretName"], volume["secret"]["items"][0]["key"]) == ("redis-login", "ca.crt")
    assert passwords("plain redis") == passwords("least") == []


def test_a_share_is_one_of_as_many_replicas_as_there_may_be(chart: Any) -> None:
    assert Release(chart, SETS["plain redis"]).settings["replicas"] == 3
    assert Release(chart, SETS["everything"]).settings["replicas"] == 6
    assert Release(chart, with_keys(replicas=0, redis={"url": "redis://h"})).settings["replicas"] == 1
    for name, told in [("least", "a key may use its limit once a replica"), ("plain redis", "a limit over 3.")]:
        assert told in Release(chart, SETS[name]).notes


def test_models_come_from_the_image_or_from_a_claim(chart: Any) -> None:
    assert "models" not in {volume["name"] for volume in Release(chart, SETS["least"]).pod["volumes"]}
    release = Release(chart, SETS["everything"])
    (volume,) = [volume for volume in release.pod["volumes"] if volume["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    (mount,) = [mount for mount in release.container["volumeMounts"] if mount["name"] == "models"]
    assert mount["subPath"] == "2026-11"


def test_a_gpu_is_asked_for_only_when_told_and_warned_of_where_it_does_not_fit_the_device(chart: Any) -> None:
    least, everything = Release(chart, SETS["least"]), Release(chart, SETS["everything"])
    assert "nvidia.com/gpu" not in str(least.pod) and "runtimeClassName" not in least.pod
    assert everything.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert everything.pod["runtimeClassName"] == "nvidia"
    assert everything.settings["device"] == "cuda" and least.settings["device"] == "cpu"
    assert "GPU" not in least.notes + everything.notes and "left idle" not in everything.notes
    assert "left idle: config.device is cpu" in Release(chart, with_keys(gpu={"count": 1})).notes
    assert "gpu.count asks for no GPU" in Release(chart, with_keys(config={"device": "cuda"})).notes
    alone = Release(chart, {**SETS["alone"], "gpu": {"count": 2}}).container
    assert alone["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert "resources" not in Release(chart, SETS["alone"]).container


def test_a_digest_wins_over_a_tag(chart: Any) -> None:
    assert Release(chart, SETS["least"]).container["image"] == f"dichroic:{cargo_version()}"
    digest = "sha256:" + "0a" * 32
    assert Release(chart, SETS["everything"]).container["image"] == f"images.example/dichroic@{digest}"


def test_the_service_monitor_scrapes_the_metrics_under_the_job_of_the_alerts(chart: Any) -> None:
    monitor = Release(chart, SETS["everything"])["ServiceMonitor"]
    assert (monitor["apiVersion"], monitor["metadata"]["labels"]["release"]) == (
        "monitoring.coreos.com/v1",
        "prometheus",
    )
    assert monitor["spec"]["endpoints"] == [
        {"port": "http", "path": "/metrics", "interval": "30s", "scrapeTimeout": "10s"}
    ]
    for values in (SETS["everything"], {**SETS["everything"], "nameOverride": "moderation"}):
        service = Release(chart, values)["Service"]
        assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "dichroic"


def test_long_names_stay_within_the_bounds_of_kubernetes(chart: Any) -> None:
    release = Release(chart, SETS["everything"], name="a" * 53)
    assert all(len(document["metadata"]["name"]) <= 63 for document in release.objects.values())
    labels = release["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert all(len(value) <= 63 for value in labels.values())


def test_helm_has_no_complaint() -> None:
    report = helm.lint(CHART, SETS["everything"], strict=True, kube_version="v1.30.0")
    # An icon would be fetched from an address.
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


def test_the_chart_is_of_this_version(chart: Any) -> None:
    assert chart.metadata["appVersion"] == cargo_version()
