"""The chart on a real API server: every template for many values, and refusals in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.config import load
from fluence.schedule.settings import SchedulerSettings
from tests.integration.deploy.helm import HelmUser, Refused

pytestmark = pytest.mark.release

MONITORS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [endpoints, selector]
              properties:
                selector:
                  type: object
                  properties:
                    matchLabels: {type: object, additionalProperties: {type: string}}
                namespaceSelector:
                  type: object
                  properties: {matchNames: {type: array, items: {type: string}}}
                endpoints:
                  type: array
                  items:
                    type: object
                    properties:
                      port: {type: string}
                      interval: {type: string}
                      scheme: {type: string}
                      bearerTokenFile: {type: string}
                      tlsConfig: {type: object, properties: {insecureSkipVerify: {type: boolean}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PrometheusRule, plural: prometheusrules, singular: prometheusrule}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              properties:
                groups:
                  type: array
                  items:
                    type: object
                    required: [name]
                    properties:
                      name: {type: string}
                      rules:
                        type: array
                        items:
                          type: object
                          required: [expr]
                          properties:
                            alert: {type: string}
                            expr: {x-kubernetes-int-or-string: true}
                            for: {type: string}
                            labels: {type: object, additionalProperties: {type: string}}
                            annotations: {type: object, additionalProperties: {type: string}}
"""
METRICS = {"metrics-address": "0.0.0.0:10452"}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one without a lease": {"replicas": 1, "settings": {"lease": False}},
    "none at all": {"replicas": 0},
    "five": {"replicas": 5, "podDisruptionBudget": {"maxUnavailable": "40%"}},
    "no budget, no rights, another account": {
        "podDisruptionBudget": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "default"},
    },
    "watched": {
        "settings": METRICS,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "alerts": {"FluenceDown": {"enabled": False}},
        },
        "dashboard": {"enabled": True},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "apiServerCIDRs": ["10.0.0.1/32", "fd00::/64"],
        },
    },
    "a closed network without metrics": {"networkPolicy": {"enabled": True}},
    "no health": {"settings": {"health-address": "", **METRICS}},
    "health on IPv6": {"settings": {"health-address": "[::]:10451"}},
    "a lease elsewhere": {"settings": {"lease-namespace": "kube-system", "lease-name": "other"}},
    "a history in a claim": {"replicas": 1, "history": {"volume": {"persistent": True, "size": "5Gi"}}},
    "a history in a claim that is there": {
        "replicas": 1,
        "history": {"volume": {"persistent": True, "existingClaim": "mine", "storageClassName": "fast"}},
    },
    "a history elsewhere": {
        "history": {"existingSecret": "history", "secretKey": "url"},
        "networkPolicy": {"enabled": True, "egress": [{"ports": [{"protocol": "TCP", "port": 5432}]}]},
    },
    "no history": {"settings": {"history": False}},
    "names": {"nameOverride": "hpc", "fullnameOverride": "site", "serviceAccount": {"name": "planner"}},
    "an image by digest": {
        "image": {"repository": "registry.example.org:5000/hpc/fluence", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "login"}],
    },
    "a pod with everything": {
        "podLabels": {"team": "hpc"},
        "podAnnotations": {"example.org/why": "because: it is"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "env": [{"name": "FLUENCE_QUEUE_POLICY", "value": "ours"}],
        "volumes": [{"name": "login", "secret": {"secretName": "other-cluster"}}],
        "volumeMounts": [{"name": "login", "mountPath": "/login"}],
        "settings": {"kubeconfig": "/login/kubeconfig", "context": "far"},
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}},
        "priorityClassName": "",
        "terminationGracePeriodSeconds": 5,
    },
    "the device plugin": {
        "devicePlugin": {"enabled": True, "capacity": 5, "directory": "/var/snap/kubelet/device-plugins"},
        "imagePullSecrets": [{"name": "login"}],
    },
    "every setting another way": {
        "settings": {
            "qps": 0.5,
            "in-flight": 1024,
            "scheduler-name": "hpc",
            "match-policy": "policy=low node_centric=true",
            "queue-policy": "hybrid(8)",
            "queue-depth": 1000000,
            "queue-window": "2h30m",
            "queue-resolution": "1s",
            "queue-replan": True,
            "default-duration": 3600,
            "default-durations": {"debug": "30m", "batch": "12h"},
            "enforce-limits": "debug=warn,batch=end",
            "enforce-grace": "2m",
            "release-each": True,
            "gather": 0,
            "backoff": "1.5s",
            "backoff-max": 60,
            "volume-timeout": 0.5,
            "task-discovery-timeout": "10m",
            "open-gates": False,
            "topology": ["block=example.org/block", "rack=example.org/rack"],
            "devices": "nvidia.com/gpu=gpu,example.org/fpga=fpga",
            "history": False,
            "database-url": "postgresql://fluence@db/fluence",
            "history-age": "30d",
            "history-size": None,
            "lease-duration": "30s",
            "log-format": "text",
            "log-level": "debug",
        }
    },
    "the match service on the cluster": {"matchService": {"enabled": True, "nodePort": True}},
    "the match service on graphs of its clients": {
        "matchService": {
            "enabled": True,
            "graph": "client",
            "port": 5000,
            "from": [{"namespaceSelector": {"matchLabels": {"team": "hpc"}}}],
            "tlsSecret": "match-tls",
            "clientCertificates": True,
            "state": {"persistent": True, "size": "5Gi", "storageClassName": "fast"},
            "args": ["--max-graphs=4"],
        },
        "networkPolicy": {"enabled": True},
    },
    "an earlier chart's values": {
        "scheduler": {"name": "fluence", "policy": "lonode", "replicaCount": 1, "leaderElect": False},
        "controller": {"name": "scheduler-plugins-controller", "replicaCount": 1},
        "plugins": {"enabled": ["Fluence"], "disabled": []},
    },
}


@pytest.fixture
def monitors(user: HelmUser) -> None:
    user.kubectl("apply", "--server-side", "--filename", "-", text=MONITORS)
    for kind in ("servicemonitors", "prometheusrules"):
        user.kubectl("wait", "--for=condition=Established", f"crd/{kind}.monitoring.coreos.com")


def rendered(text: str) -> dict[str, dict[str, Any]]:
    """By kind, without the rules of admission and the roles of users; of several the first."""
    found: dict[str, dict[str, Any]] = {}
    for part in text.split("---\n"):
        each = yaml.safe_load(part)
        left_out = re.search(r"# Source: fluence/templates/(admission|users)\.yaml", part)
        if each and not left_out:
            found.setdefault(each["kind"], each)
    return found


def settings_in(objects: dict[str, dict[str, Any]], folder: Path) -> SchedulerSettings:
    """What the scheduler makes of the file that it is given."""
    file = folder / "fluence.yaml"
    file.write_text(objects["ConfigMap"]["data"]["fluence.yaml"])
    return load(SchedulerSettings, file=str(file)).settings


def test_the_server_takes_every_object_for_many_values(
    user: HelmUser, monitors: None, tmp_path: Path
) -> None:
    for name, values in COMBINATIONS.items():
        text = user.template("fluence", values=values)
        objects = rendered(text)
        settings = settings_in(objects, tmp_path)
        assert settings.lease_namespace == values.get("settings", {}).get("lease-namespace", user.namespace)
        # A hook is for uninstalling; all the rest, with fields that do not exist refused.
        rest = "---\n".join(part for part in text.split("---\n") if "helm.sh/hook" not in part)
        told = user.judge(rest)
        assert told.count("(server dry run)") == rest.count("\nkind: "), (name, told)


def test_what_is_on_request_is_made_on_request(user: HelmUser) -> None:
    plain = set(rendered(user.template("fluence")))
    assert plain == {
        *("ServiceAccount", "ConfigMap", "Deployment", "PodDisruptionBudget", "Lease"),
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service", "APIService"),
    }
    watched = rendered(user.template("fluence", values=COMBINATIONS["watched"]))
    assert set(watched) - plain == {"ServiceMonitor", "PrometheusRule", "NetworkPolicy"}
    unseen = rendered(user.template("fluence", values={"settings": {"view-address": ""}}))
    assert plain - set(unseen) == {"Service", "APIService"}
    reviews = [
        rule for rule in watched["ClusterRole"]["rules"] if "authentication.k8s.io" in rule["apiGroups"]
    ]
    assert reviews == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    ]
    ports = watched["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert [port["name"] for port in ports] == ["health", "metrics", "view"]
    bare = rendered(user.template("fluence", values=COMBINATIONS["no budget, no rights, another account"]))
    assert set(bare) == {"ConfigMap", "Deployment", "Lease", "Service", "APIService"}
    assert bare["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == "default"


def test_the_device_plugin_comes_on_request_for_every_node_and_reads_one_object(user: HelmUser) -> None:
    text = user.template("fluence", values=COMBINATIONS["the device plugin"])
    objects = [
        each for each in yaml.safe_load_all(text) if each["metadata"]["name"].endswith("-deviceplugin")
    ]
    by_kind = {each["kind"]: each for each in objects}
    assert set(by_kind) == {"ServiceAccount", "Role", "RoleBinding", "DaemonSet"}
    assert by_kind["Role"]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["fluence-resources"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    spec = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["volumes"][0]["hostPath"]["path"] == "/var/snap/kubelet/device-plugins"
    scheduler = rendered(text)["Deployment"]["spec"]["selector"]["matchLabels"]
    assert scheduler != by_kind["DaemonSet"]["spec"]["selector"]["matchLabels"]


def of_service(text: str) -> dict[str, dict[str, Any]]:
    """The objects of the match service, by kind."""
    found = [each for each in yaml.safe_load_all(text) if each]
    return {each["kind"]: each for each in found if "-service" in each["metadata"]["name"]}


def test_the_match_service_comes_on_request_and_only_reads_the_cluster(user: HelmUser) -> None:
    assert of_service(user.template("fluence")) == {}
    live = of_service(user.template("fluence", values={"matchService": {"enabled": True}}))
    verbs = {verb for rule in live["ClusterRole"]["rules"] for verb in rule["verbs"]}
    assert verbs == {"list"}
    assert live["Service"]["spec"]["type"] == "ClusterIP"
    (entry,) = live["NetworkPolicy"]["spec"]["ingress"]
    assert entry == {"ports": [{"protocol": "TCP", "port": 4242}], "from": [{"podSelector": {}}]}
    container = live["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert "--live" in container["args"]
    own = of_service(
        user.template("fluence", values=COMBINATIONS["the match service on graphs of its clients"])
    )
    assert set(own) == {"ServiceAccount", "Service", "NetworkPolicy", "Deployment", "PersistentVolumeClaim"}
    spec = own["Deployment"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert own["NetworkPolicy"]["spec"]["egress"] == []
    assert "--tls-client-ca=/etc/fluence-service/ca.crt" in spec["containers"][0]["args"]


def test_the_external_service_of_the_earlier_charts_is_the_match_service(user: HelmUser) -> None:
    for values in (
        {"scheduler": {"enableExternalService": True, "port": "5000"}},
        {"sidecar": {"enableExternalService": True, "port": 5000}},
    ):
        found = of_service(user.template("fluence", values=values))
        assert found["Service"]["spec"]["type"] == "NodePort"
        assert found["Service"]["spec"]["ports"][0]["port"] == 5000
        said = user.install("fluence", "--dry-run=client", values=values)
        assert "enableExternalService is matchService.enabled and matchService.nodePort" in said
    off = {"scheduler": {"enableExternalService": False, "port": 4242}}
    assert of_service(user.template("fluence", values=off)) == {}


@pytest.mark.parametrize("opens", [True, False])
def test_the_right_to_patch_pods_goes_with_the_gates(user: HelmUser, opens: bool) -> None:
    values = {"settings": {"open-gates": opens, "flux-jobs": False}}
    rules = rendered(user.template("fluence", values=values))["ClusterRole"]["rules"]
    assert any("pods" in rule["resources"] and "patch" in rule["verbs"] for rule in rules) is opens


@pytest.mark.parametrize("reads", [True, False])
def test_the_right_to_read_kueues_objects_goes_with_the_setting(user: HelmUser, reads: bool) -> None:
    rules = rendered(user.template("fluence", values={"settings": {"kueue-queues": reads}}))["ClusterRole"][
        "rules"
    ]
    of_kueue = [rule for rule in rules if rule["apiGroups"] == ["kueue.x-k8s.io"]]
    leases = [rule for rule in rules if rule.get("resourceNames") == ["c1f6bfd2.kueue.x-k8s.io"]]
    assert (len(of_kueue), len(leases)) == ((1, 1) if reads else (0, 0))
    for rule in of_kueue:
        assert rule["verbs"] == ["get", "list", "watch"]
    for rule in leases:
        assert rule["verbs"] == ["get"]


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ({}, False),
        ({"debug": "warn", "end": "warn"}, False),
        ("end=warn", False),
        ({"debug": "warn", "batch": "end"}, True),
        ("batch=end,debug=warn", True),
        ("debug=warn, batch=end", True),
    ],
)
def test_the_right_to_end_pods_comes_with_a_queue_that_ends_them(
    user: HelmUser, given: object, ends: bool
) -> None:
    values = {"settings": {"enforce-limits": given, "flux-jobs": False, "preemption": False}}
    rules = rendered(user.template("fluence", values=values))["ClusterRole"]["rules"]
    found = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if (resource, verb) in (("jobs", "patch"), ("pods/eviction", "create"))
    }
    assert len(found) == (2 if ends else 0)


def test_without_a_lease_there_is_never_a_second_scheduler(user: HelmUser) -> None:
    text = user.template("fluence", values=COMBINATIONS["one without a lease"])
    alone = rendered(text)
    assert alone["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert "Lease" not in alone
    assert "resources: [leases]" not in text  # nor a right to one
    with pytest.raises(Refused, match=r"settings\.lease is false and replicas is 2"):
        user.template("fluence", "--set", "settings.lease=false")
    with pytest.raises(Refused, match=r"history\.volume\.persistent is true and replicas is 2"):
        user.template("fluence", "--set", "history.volume.persistent=true")


def test_a_history_has_its_volume_or_its_secret(user: HelmUser) -> None:
    def pod(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        objects = rendered(user.template("fluence", values=COMBINATIONS[name]))
        spec = objects["Deployment"]["spec"]["template"]["spec"]
        return objects, {each["name"]: each for each in spec["volumes"]}

    assert pod("defaults")[1]["history"]["emptyDir"] == {}
    objects, volumes = pod("a history in a claim")
    claim = objects["PersistentVolumeClaim"]
    assert volumes["history"]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert objects["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    objects, volumes = pod("a history in a claim that is there")
    assert "PersistentVolumeClaim" not in objects
    assert volumes["history"]["persistentVolumeClaim"] == {"claimName": "mine"}
    objects, volumes = pod("a history elsewhere")
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [
        {
            "name": "FLUENCE_DATABASE_URL",
            "valueFrom": {"secretKeyRef": {"name": "history", "key": "url"}},
        }
    ]
    assert "history" not in volumes and "history" not in pod("no history")[1]


def test_a_lease_elsewhere_comes_with_its_rights(user: HelmUser) -> None:
    objects = rendered(user.template("fluence", values=COMBINATIONS["a lease elsewhere"]))
    for kind in ("Role", "RoleBinding", "Lease"):
        assert objects[kind]["metadata"]["namespace"] == "kube-system"
    assert objects["Role"]["rules"][1]["resourceNames"] == ["other"]
    assert objects["RoleBinding"]["subjects"][0]["namespace"] == user.namespace


REFUSED = [
    ("replicas=two", "/replicas", "want integer"),
    ("replicas=-1", "/replicas", "minimum"),
    ("replica=2", "", "additional properties 'replica' not allowed"),
    ("image.pullPolicy=Sometimes", "/image/pullPolicy", "must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("image.digest=sha256:1", "/image/digest", "does not match pattern"),
    ("settings.match-polcy=first", "/settings", "additional properties 'match-polcy' not allowed"),
    ("settings.match-policy=best", "/settings/match-policy", "'best' does not match pattern '^(first|"),
    ("settings.queue-policy=esay", "/settings/queue-policy", "'esay' does not match pattern '^(fcfs|"),
    ("settings.in-flight=0", "/settings/in-flight", "minimum: got 0, want 1"),
    ("settings.in-flight=2000", "/settings/in-flight", "maximum: got 2,000, want 1,024"),
    ("settings.queue-window=soon", "/settings/queue-window", "'soon' does not match pattern"),
    ("settings.volume-timeout=0", "/settings/volume-timeout", "exclusiveMinimum: got 0, want 0"),
    ("settings.lease=maybe", "/settings/lease", "got string, want boolean"),
    ("settings.log-level=trace", "/settings/log-level", "must be one of 'debug', 'info', 'warning', 'error'"),
    ("settings.health-address=10451", "/settings/health-address", "got number, want string"),
    ("settings.topology={rack}", "/settings/topology/0", "'rack' does not match pattern"),
    ("settings.queue-priority=fairshare", "/settings/queue-priority", "does not match pattern"),
    ("settings.enforce-limits.debug=stop", "/settings/enforce-limits/debug", "must be one of 'warn', 'end'"),
    ("settings.enforce-limits=debug=stop", "/settings/enforce-limits", "does not match pattern"),
    ("settings.default-durations.debug=soon", "/settings/default-durations/debug", "does not match pattern"),
    ("settings.user-device-limits.qpu=2", "/settings/user-device-limits", "additional properties 'qpu' not"),
    ("settings.user-device-limits.batch/qpu=two", "/settings/user-device-limits/batch~1qpu", "want integer"),
    ("settings.queue-device-limits.batch/qpu=-1", "/settings/queue-device-limits/batch~1qpu", "minimum"),
    ("resources.requests.cpu=lots", "/resources/requests/cpu", "does not match pattern"),
    ("resources.request.cpu=1", "/resources", "additional properties 'request' not allowed"),
    ("devicePlugin.capacity=0", "/devicePlugin/capacity", "minimum"),
    ("devicePlugin.directory=here", "/devicePlugin/directory", "does not match pattern"),
    ("networkPolicy.apiServerPorts={0}", "/networkPolicy/apiServerPorts/0", "minimum"),
    ("scheduler.policy=best", "/scheduler/policy", "does not match pattern"),
    ("scheduler.polcy=lonode", "/scheduler", "additional properties 'polcy' not allowed"),
    ("serviceMonitor.enabled=true", "", "serviceMonitor.enabled needs metrics that Prometheus can reach"),
    ("serviceAccount.create=false", "", "serviceAccount.create is false: say serviceAccount.name"),
]


TAKEN = (
    "settings.enforce-limits.debug=warn",
    "settings.enforce-limits=debug=warn\\,-=end",
    "settings.default-durations.debug=30m",
    "settings.default-durations.debug=7200",
    "settings.default-durations=debug=30m\\,batch=12h",
    "settings.user-device-limits.batch/qpu=2",
    "settings.match-policy=coolest:coolest",
    "settings.queue-priority=our_site.queue:fair_share",
    "resources.limits.memory=4Gi",
)


def test_values_of_maps_and_plugins_are_taken(user: HelmUser) -> None:
    for given in TAKEN:
        user.template("fluence", "--set", given)


def test_what_is_wrong_is_refused_with_its_place_and_the_reason(user: HelmUser) -> None:
    wrong = []
    for given, place, reason in REFUSED:
        try:
            user.template("fluence", "--set", given)
            wrong.append((given, "was taken"))
        except Refused as error:
            said = str(error)
            if (place and f"at '{place}'" not in said) or reason not in said:
                wrong.append((given, said))
    assert not wrong


def test_the_commands_of_the_earlier_charts_install_this_one(user: HelmUser, tmp_path: Path) -> None:
    """Seed 004's own command: its images are other programs, which this chart must not start."""
    said = user.install(
        "fluence",
        *("--set", "scheduler.image=ghcr.io/flux-framework/fluence:latest"),
        *("--set", "scheduler.sidecarimage=ghcr.io/flux-framework/fluence-sidecar"),
        *("--set", "controller.image=ghcr.io/flux-framework/fluence-controller"),
        "--dry-run=server",
    )
    notes = said.partition("NOTES:")[2]
    assert "scheduler.image ghcr.io/flux-framework/fluence:latest is another program and is not used" in notes
    assert "not needed here: scheduler.sidecarimage, controller" in notes
    assert "image: fluence:" in said


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        (
            {"scheduler": {"name": "fluxnetes", "replicaCount": 3, "pullPolicy": "Always"}},
            ["scheduler.name is settings.scheduler-name: fluxnetes", "scheduler.replicaCount is replicas: 3"],
        ),
        ({"scheduler": {"policy": "lonode"}}, ["scheduler.policy is settings.match-policy: lonode"]),
        (
            {"sidecar": {"policy": "hinode", "port": 4242}},
            ["sidecar.policy is settings.match-policy: hinode", "not needed here: sidecar"],
        ),
        (
            {"controllerManager": {"manager": {"args": ["--leader-elect", "--policy=low"]}}, "postgres": {}},
            ["--policy is settings.match-policy: low", "not needed here: controllerManager, postgres"],
        ),
        ({"scheduler": {"loggingLevel": "9"}}, ["scheduler.loggingLevel is settings.log-level: debug"]),
        (
            {"scheduler": {"image": "vanessa/fluence:latest", "pullPolicy": "Always"}},
            [
                "scheduler.image vanessa/fluence:latest is another program and is not used",
                "scheduler.pullPolicy Always is not used: the image fluence is in no registry",
            ],
        ),
        (
            {"scheduler": {"pullPolicy": "Always"}, "image": {"repository": "registry.example.org/fluence"}},
            ["scheduler.pullPolicy is image.pullPolicy: Always"],
        ),
        ({"scheduler": {"policy": "hi"}}, ["scheduler.policy is settings.match-policy: hi"]),
    ],
)
def test_values_of_the_earlier_charts_mean_what_they_meant(
    user: HelmUser, tmp_path: Path, values: dict[str, Any], notes: list[str]
) -> None:
    said = user.install("fluence", "--dry-run=client", values=values).partition("NOTES:")[2]
    assert all(note in said for note in notes), said
    objects = rendered(user.template("fluence", values=values))
    settings = settings_in(objects, tmp_path)
    spec = objects["Deployment"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    old = values.get("scheduler", {})
    assert settings.scheduler_name == old.get("name", "fluence")
    assert spec["replicas"] == old.get("replicaCount", 2)
    # A file of an earlier chart brings no other program, and no pull of what is in no registry.
    repository = values.get("image", {}).get("repository", "fluence")
    assert container["image"].startswith(f"{repository}:")
    pulls = old.get("pullPolicy", "IfNotPresent") if "/" in repository else "IfNotPresent"
    assert container["imagePullPolicy"] == pulls
    assert settings.log_level == ("debug" if "loggingLevel" in old else "info")
    policies = {"scheduler.policy": old.get("policy", ""), "sidecar.policy": "hinode", "--policy": "low"}
    wanted = next((value for key, value in policies.items() if any(key in note for note in notes)), "first")
    assert settings.match_policy == wanted


def test_without_values_of_the_earlier_charts_nothing_is_said_of_them(user: HelmUser) -> None:
    assert "earlier chart" not in user.install("fluence", "--dry-run=client")
