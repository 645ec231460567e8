"""Fluence as its users install it: its image, by helm, as pods on real nodes; the seeds' quick starts."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.helm.manifests import CHART, DEPLOY
from deploy.image.__main__ import version as project_version

from fluence import names
from fluence.kube.releases import release
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from tests.integration.conftest import VERSION
from tests.integration.deploy.cluster import (
    SPACE,
    findings,
    installed,
    logged,
    pods,
    real_cluster,
    schedulers,
    until,
)
from tests.integration.deploy.helm import HelmUser

pytestmark = [pytest.mark.realnodes, pytest.mark.release]

EXAMPLES = DEPLOY.parent / "examples" / "quantum"

GROUP = """
apiVersion: {version}
kind: PodGroup
metadata: {{name: {name}}}
spec: {{schedulingPolicy: {{gang: {{minCount: 2}}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      schedulerName: fluence
      schedulingGroup: {{podGroupName: {name}}}
      terminationGracePeriodSeconds: 0
      containers:
        - name: worker
          image: busybox
          command: [sleep, infinity]
"""
# Seed 003's and 004's Jobs, as they are in the READMEs and in the predecessors' own test.
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  template:
    spec:
      schedulerName: {scheduler}
      containers:
        - name: {name}
          image: busybox
          command: [echo, {words}]
      restartPolicy: Never
  backoffLimit: 4
"""
INDEXED = """
apiVersion: batch/v1
kind: Job
metadata:
  name: fluence-job
  annotations:
    fluence.flux-framework.org/pod-group: my-pods
    fluence.flux-framework.org/group-size: "10"
spec:
  completions: 10
  parallelism: 10
  completionMode: Indexed
  template:
    spec:
      schedulerName: fluence
      containers:
      - name: fluence-job
        image: busybox
        command: [echo, potato]
      restartPolicy: Never
  backoffLimit: 4
"""
LABELLED = f"""
apiVersion: v1
kind: Pod
metadata: {{name: labelled, labels: {{{names.GROUP_LABEL}: labelled}}}}
spec:
  schedulerName: fluence
  containers: [{{name: c, image: busybox}}]
"""
PRODUCER = """
apiVersion: v1
kind: Pod
metadata: {name: leader}
spec:
  schedulerName: fluence
  containers: [{name: c, image: busybox, command: [sleep, infinity]}]
---
apiVersion: v1
kind: Pod
metadata:
  name: worker
  annotations: {fluence.flux-framework.org/depends-on-producer: leader}
spec:
  schedulerName: fluence
  schedulingGates: [{name: quantum.braket/ready}]
  restartPolicy: Never
  containers:
    - name: c
      image: busybox
      command: [sh, -c, echo has $TASK]
      env:
        - name: TASK
          valueFrom:
            fieldRef: {fieldPath: "metadata.annotations['fluence.flux-framework.org/quantum-job-id']"}
"""
DEVICES = """
apiVersion: v1
kind: ConfigMap
metadata: {name: fluence-resources, namespace: kube-system}
data:
  resources.yaml: |
    resources: [{type: qpu, name: sv1, with: [{type: qubit, count: 34}]}]
"""
ASKS = """
apiVersion: v1
kind: Pod
metadata: {name: asks}
spec:
  restartPolicy: Never
  containers:
    - name: c
      image: busybox
      command: [echo, ran]
      resources: {limits: {fluxion.flux-framework.org/qpu: 1}}
"""


@pytest.fixture(scope="module")
def box(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with real_cluster("in-cluster", image, tmp_path_factory.mktemp("images")) as found:
        yield found


@pytest.fixture(scope="module")
def admin(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> HelmUser:
    """Has installed Fluence with the chart's defaults."""
    return installed(box, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def user(box: Sandbox, admin: HelmUser, tmp_path_factory: pytest.TempPathFactory) -> HelmUser:
    return HelmUser(box, "default", VERSION, tmp_path_factory.mktemp("user"))


def running(user: HelmUser, name: str, count: int = 2) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]]:
        there = [each for each in pods(user, f"app={name}") if each["status"]["phase"] == "Running"]
        return there if len(there) == count else []

    return until(look, f"the {count} pods of {name} run")


def gang(user: HelmUser, name: str) -> str:
    version = "scheduling.k8s.io/" + ("v1alpha2" if VERSION == "1.36" else "v1beta1")
    text = GROUP.format(version=version, name=name)
    user.kubectl("apply", "--filename", "-", text=text)
    return text


def scheduled_by(user: HelmUser, pod: str) -> list[str]:
    """Who reported that this pod was scheduled."""
    select = f"reason=Scheduled,involvedObject.name={pod}"
    events = until(lambda: user.items("events", "--field-selector", select), f"an event on {pod}")
    return [each.get("reportingComponent") or each["source"]["component"] for each in events]


def test_the_scheduler_runs_as_a_pod_with_its_own_account_on_real_nodes(admin: HelmUser) -> None:
    mine = schedulers(admin)
    assert len(mine) == 2
    assert {each["spec"]["nodeName"] for each in mine} == {"real-1", "real-2"}  # one on each
    for each in mine:
        assert each["spec"]["serviceAccountName"] == "fluence-scheduler"
        assert each["status"]["containerStatuses"][0]["ready"]
    until(
        lambda: str(admin.get("lease", "fluence")["spec"].get("holderIdentity")),
        "one of them leads",
        lambda holder: any(holder.startswith(each["metadata"]["name"]) for each in mine),
    )


def test_users_see_the_queue_with_the_defaults_of_the_chart(admin: HelmUser, user: HelmUser) -> None:
    def available() -> list[str]:
        service = admin.get("apiservice", "v1.view.fluence.flux-framework.org")
        conditions = (service.get("status") or {}).get("conditions") or ()
        return [
            each["message"] for each in conditions if each["type"] == "Available" and each["status"] == "True"
        ]

    until(available, "the view is available")
    for _ in range(6):  # whichever replica is asked
        page = json.loads(user.kubectl("get", "--raw", "/apis/view.fluence.flux-framework.org/v1/queue"))
        assert page["kind"] == "QueueList"
    assert {"real-1", "real-2"} <= set(user.kubectl_fluence("nodes", "-o", "name").split())


def test_seed_000_a_pod_group_and_its_deployment(user: HelmUser) -> None:
    text = gang(user, "training")
    mine = running(user, "training")
    assert {each["spec"]["nodeName"] for each in mine} <= {"real-1", "real-2"}
    for each in mine:
        assert scheduled_by(user, each["metadata"]["name"]) == ["fluence"]

    def told() -> str:
        shown = user.kubectl("get", "podgroups.scheduling.k8s.io")
        return shown if " Scheduled " in shown else ""

    head, row = until(told, "the group is Scheduled").splitlines()
    assert head.split() == ["NAME", "POLICY", "WORKLOAD", "STATUS", "AGE"]
    assert row.split()[:4] == ["training", "Gang", "<none>", "Scheduled"]
    # The README's clean-up, word for word; the patch is for clusters whose controllers do not do it.
    patch = '{"metadata":{"finalizers":null}}'
    user.kubectl("patch", "podgroup", "training", "-n", "default", "--type=merge", "-p", patch)
    user.kubectl("delete", "--filename", "-", "--wait=false", text=text)
    until(lambda: not pods(user, "app=training"), "its pods are gone")
    until(lambda: user.get("podgroup", "training"), "the group is gone", lambda group: group is None)


def test_seeds_003_and_004_the_job_says_potato_beside_one_of_the_default_scheduler(user: HelmUser) -> None:
    jobs = {"fluence": ("job", "potato"), "default-scheduler": ("default-job", '"not potato"')}
    for scheduler, (name, words) in jobs.items():
        text = JOB.format(name=name, scheduler=scheduler, words=words)
        user.kubectl("apply", "--filename", "-", text=text)
    for scheduler, (name, words) in jobs.items():
        user.kubectl("wait", "--for=condition=complete", "--timeout=240s", f"job/{name}")
        (pod,) = pods(user, f"batch.kubernetes.io/job-name={name}")
        logged(user, pod["metadata"]["name"], wanted=words.strip('"') + "\n")
        assert pod["spec"]["schedulerName"] == scheduler
        assert scheduled_by(user, pod["metadata"]["name"]) == [scheduler]
    # The way in which seed 004 shows it.
    wide = user.kubectl("get", "events", "--output", "wide").splitlines()
    assert any("pod/job-" in line and " fluence" in line for line in wide)


def until_gangs_are_listed(user: HelmUser) -> list[str]:
    """Wait until the leader has told admission what the server has. Returns what there is by default:
    PodGroups where their API is beta."""
    lists = VERSION != "1.36"
    said = f'"{names.LISTS_GANGS}": "{str(lists).lower()}"'
    until(lambda: said in user.kubectl("get", "handoffs", "-A", "--output", "json"), "the leader says so")

    def has_field() -> bool:
        made = user.kubectl("create", "--dry-run=server", "--output=json", "--filename=-", text=LABELLED)
        return "schedulingGroup" in made

    until(has_field, "pods name their PodGroup, or not", lists)
    return ["my-pods.fluence"] if lists else []


def test_seed_004_the_indexed_job_is_one_gang_of_ten(user: HelmUser) -> None:
    """With a PodGroup by default, though its group and its size are on the Job only."""
    listed = until_gangs_are_listed(user)
    user.kubectl("apply", "--filename", "-", text=INDEXED)
    user.kubectl("wait", "--for=condition=complete", "--timeout=240s", "job/fluence-job")
    select = "batch.kubernetes.io/job-name=fluence-job"
    logged(user, "--selector", select, "--max-log-requests=10", wanted="potato\n" * 10)
    ids = {each["metadata"]["annotations"]["fluence.flux-framework.org/jobid"] for each in pods(user, select)}
    assert len(ids) == 1  # one allocation
    shown = user.kubectl("get", "podgroups.scheduling.k8s.io", "--output=name").split()
    assert [each for each in shown if "my-pods" in each] == [
        f"podgroup.scheduling.k8s.io/{each}" for each in listed
    ]
    user.kubectl("delete", "job", "fluence-job", "job", "default-job")


def test_a_gated_pod_is_let_go_with_the_rights_of_the_chart(user: HelmUser) -> None:
    """The installed scheduler may note that a producer runs, and open a gate."""
    user.kubectl("apply", "--filename", "-", text=PRODUCER)
    note = "fluence.flux-framework.org/producer-started"
    until(
        lambda: note in user.get("pod", "worker")["metadata"]["annotations"], "the producer is seen running"
    )
    user.kubectl("annotate", "pod", "leader", "fluence.flux-framework.org/quantum-job-id=task-7")
    user.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=240s", "pod/worker")
    logged(user, "worker", wanted="has task-7\n")
    user.kubectl("delete", "pod", "leader", "worker", "--grace-period=0", "--force")


def test_seed_000_the_quantum_quick_start(user: HelmUser) -> None:
    """The container's own output names the backend that the annotation names; the same if it was pinned."""
    user.kubectl("apply", "--namespace", "kube-system", "--filename", str(DEPLOY / "fluence-resources.yaml"))
    key = "fluence.flux-framework.org/backend"

    def told() -> bool:
        """The leader has made the attributes known to the policies."""
        found = user.kubectl("get", "handoffs", "-A", "--output", "json")
        return "FLUXION_VENDOR" in found

    until(told, "admission knows the attributes")

    def sampled(name: str) -> tuple[str, str]:
        user.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=240s", f"pod/{name}")
        return user.get("pod", name)["metadata"]["annotations"][key], logged(user, name, wanted=bool)

    # The server reads the attributes later than the leader writes them.
    until(
        lambda: "FLUXION_VENDOR" in dry(user, EXAMPLES.parent / "quantum-pod.yaml"),
        "the policies are in force, and know the attributes",
    )
    user.kubectl("apply", "--filename", str(EXAMPLES.parent / "quantum-pod.yaml"))
    backend, said = sampled("sampler")
    assert backend == "ibm_marrakesh"
    assert said == "submitting sampler job to ibm_marrakesh of ibm, a ibm-quantum-system\n"
    user.kubectl_fluence("apply", "-f", str(EXAMPLES / "chosen.yaml"))
    assert sampled("chosen") == ("sv1", "submitting sampler job to sv1\n")
    listed = user.kubectl_fluence("resources", "list", "-o", "json")
    assert {each["backend"] for each in json.loads(listed)} == {"ibm_marrakesh", "sv1", "solver"}
    user.kubectl("delete", "pod", "sampler", "chosen")
    # The file brings a device plugin, which helm would not take over.
    user.kubectl("delete", "--namespace", "kube-system", "--filename", str(DEPLOY / "fluence-resources.yaml"))
    until(lambda: offered(user, "qpu"), "the kubelets offer none any more", {"0"})


def offered(user: HelmUser, kind: str) -> set[str | None]:
    """What the kubelets offer of a type of external resources."""
    nodes = user.items("nodes")
    return {node["status"]["allocatable"].get(f"fluxion.flux-framework.org/{kind}") for node in nodes}


def dry(user: HelmUser, file: Path) -> str:
    """What the server would make of a manifest."""
    return user.kubectl("create", "--dry-run=server", "--output", "json", "--filename", str(file))


def test_the_history_is_read_in_the_pod_of_the_leader(admin: HelmUser) -> None:
    """As docs/history.md says it: the path of the chart is found without an option."""
    holder = admin.get("lease", "fluence")["spec"]["holderIdentity"]
    leader = next(pod for pod in schedulers(admin) if holder.startswith(pod["metadata"]["name"]))
    command = ("exec", leader["metadata"]["name"], "--", "fluence", "history", "-o", "json")
    until(
        lambda: {job["name"] for job in json.loads(admin.kubectl(*command))["jobs"]},
        "the jobs of this cluster are listed",
        lambda names: "training" in names,
    )


def test_the_device_plugin_lets_kube_scheduler_place_what_asks_for_devices(
    box: Sandbox, admin: HelmUser, user: HelmUser
) -> None:
    """The plugin of the quick start has gone, and the kubelets offer none: they would fail it.
    The pod waits, doctor says so, and it starts when there is a plugin again."""
    user.kubectl("apply", "--namespace", "kube-system", "--filename", "-", text=DEVICES)
    late = ASKS.replace("name: asks", "name: late").replace("spec:\n", "spec:\n  schedulerName: fluence\n", 1)
    user.kubectl("apply", "--filename", "-", text=ASKS + "---" + late)

    def waits() -> str:
        conditions = user.get("pod", "late")["status"].get("conditions") or ()
        return " ".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")

    until(waits, "it is not bound", lambda text: "Insufficient fluxion.flux-framework.org/qpu" in text)
    found = doctor(box)
    assert "offered-resources" in found and "resources advertise --remove" in found["offered-resources"]
    # In the same rollout: seed 003's Job runs beside ours.
    more = ("--set", "devicePlugin.enabled=true", "--set", "settings.scheduler-aliases={fluxnetes}")
    admin.upgrade("fluence", *more, "--wait", "--timeout", "240s")
    for name in ("asks", "late"):
        user.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=240s", f"pod/{name}")
    assert scheduled_by(user, "asks") == ["default-scheduler"]
    assert scheduled_by(user, "late") == ["fluence"]
    for kind in ("qpu", "qubit"):
        until(lambda kind=kind: offered(user, kind), f"both kubelets offer a {kind}", {"1k"})  # type: ignore[misc]
    assert "offered-resources" not in doctor(box)
    user.kubectl("delete", "pod", "asks", "late", "--grace-period=0", "--force")


def test_seed_003_the_job_that_names_fluxnetes_says_potato(user: HelmUser) -> None:
    user.kubectl("apply", "--filename", str(EXAMPLES.parent / "job.yaml"))
    user.kubectl("wait", "--for=condition=complete", "--timeout=240s", "job/job")
    (pod,) = pods(user, "batch.kubernetes.io/job-name=job")
    logged(user, pod["metadata"]["name"], wanted="potato\n")
    assert scheduled_by(user, pod["metadata"]["name"]) == ["fluence"]
    user.kubectl("delete", "job", "job")


def doctor(box: Sandbox) -> dict[str, str]:
    """The findings of doctor, by check: what is wrong, and the cure."""
    command = [sys.executable, "-m", "fluence.cli", "doctor", "--kubeconfig", str(box.at.kubeconfig())]
    answer = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
    found = json.loads(answer.stdout)["findings"]
    return {each["check"]: json.dumps(each) for each in found if each["verdict"] not in ("ok", "unseen")}


def test_seed_002_what_is_submitted_is_held_queued_and_let_go(admin: HelmUser, user: HelmUser) -> None:
    """fluxqueue's Job and pod as plain manifests, in a namespace that opted in."""
    admin.upgrade("fluence", "--set", "admission.doors=namespaces", "--wait", "--timeout", "240s")
    space = ("--namespace", "held")
    user.kubectl("create", "namespace", "held")
    user.kubectl("label", "namespace", "held", "fluence.flux-framework.org/doors=enabled")
    folder = EXAMPLES.parent / "fluxqueue"

    def held(name: str) -> dict[str, Any]:
        made = user.kubectl(
            "create", *space, "--dry-run=server", "--output", "json", "--filename", str(folder / name)
        )
        spec: dict[str, Any] = json.loads(made)["spec"]
        return spec

    # Jobs and pods are held by a policy each.
    until(lambda: held("job.yaml").get("suspend"), "Jobs are held")
    until(lambda: held("pod.yaml").get("schedulingGates"), "pods are held")
    user.kubectl("apply", *space, "--filename", str(folder))

    def ended() -> bool:
        found = json.loads(user.kubectl("get", "fluxjobs", *space, "--output", "json"))["items"]
        phases = {each["metadata"]["name"]: each.get("status", {}).get("phase") for each in found}
        return phases == {"job-job": "Completed", "pod-pod": "Completed"}

    until(ended, "both FluxJobs are Completed")
    logged(user, *space, "pod", wanted="potato\n")
    ranks = [f"I am rank {index}" for index in range(3)]
    select = "batch.kubernetes.io/job-name=job"
    logged(user, *space, "--selector", select, wanted=lambda lines: sorted(lines.splitlines()) == ranks)
    user.kubectl("delete", "namespace", "held", "--timeout=240s")


def test_upgrade_and_rollback_touch_no_pod_of_a_user_and_an_uninstall_neither(
    box: Sandbox, admin: HelmUser, user: HelmUser, image: Path, tmp_path: Path
) -> None:
    gang(user, "before")
    there = {each["metadata"]["uid"] for each in running(user, "before")}
    # Another version, with another setting: a chart and an image that say so.
    box.load_image(renamed(image, "docker.io/library/fluence:9.8.7", tmp_path / "newer.tar"))
    version = ("--version", "9.8.7", "--app-version", "9.8.7", "--destination", str(tmp_path))
    admin.helm("package", str(CHART), *version)
    newer = str(tmp_path / "fluence-9.8.7.tgz")
    for tag, change in {
        "9.8.7": ("upgrade", "fluence", newer, "--set", "settings.match-policy=lonode"),
        project_version(): ("rollback", "fluence", "1"),
    }.items():
        admin.helm(*change, "--wait", "--timeout", "240s")
        until(
            lambda tag=tag: (  # type: ignore[misc]
                {each["spec"]["containers"][0]["image"] for each in schedulers(admin)} == {f"fluence:{tag}"}
            ),
            "the schedulers are new ones",
        )
        gang(user, f"after-{tag[0]}")  # and those work
        running(user, f"after-{tag[0]}")
        assert {each["metadata"]["uid"] for each in running(user, "before")} == there
    admin.helm("uninstall", "fluence", "--wait", "--timeout", "240s")
    assert {each["metadata"]["uid"] for each in running(user, "before")} == there
    until(lambda: admin.get("lease", "fluence") is None, "no lease is left")
    assert admin.get("clusterrole", "fluence-scheduler") is None
    assert not findings(box)


def test_the_one_file_installs_the_same(box: Sandbox, user: HelmUser) -> None:
    """Seed 000: `kubectl apply -f deploy/fluence.yaml`."""
    user.kubectl("delete", "namespace", SPACE, "--timeout=240s")
    file = DEPLOY / "fluence.yaml"
    kubeconfig = str(box.at.kubeconfig())
    kubectl = find_programs(release(VERSION), names=("kubectl",), report=lambda progress: None)["kubectl"]
    subprocess.run(
        [kubectl, "--kubeconfig", kubeconfig, "apply", "-f", file], check=True, capture_output=True
    )
    wait = ["rollout", "status", "deployment/fluence", "-n", SPACE, "--timeout=240s"]
    subprocess.run([kubectl, "--kubeconfig", kubeconfig, *wait], check=True, capture_output=True)
    gang(user, "one-file")
    running(user, "one-file")
    until_gangs_are_listed(user)
    # Its quantum quick start, as it is written.
    subprocess.run(
        [kubectl, "--kubeconfig", kubeconfig, "apply", "-f", DEPLOY / "fluence-resources.yaml"],
        check=True,
        capture_output=True,
    )
    until(lambda: offered(user, "qpu"), "the kubelets offer them", {"1k"})
    sampler = EXAMPLES.parent / "quantum-pod.yaml"
    until(lambda: "FLUXION_VENDOR" in dry(user, sampler), "admission knows the attributes")
    user.kubectl("apply", "--filename", str(sampler))
    user.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=240s", "pod/sampler")
    logged(user, "sampler", wanted="submitting sampler job to ibm_marrakesh of ibm, a ibm-quantum-system\n")
    assert not findings(box)


def renamed(image: Path, name: str, target: Path) -> Path:
    """The same image under another name."""
    with tarfile.open(image) as old, tarfile.open(target, "w") as new:
        for entry in old:
            file = old.extractfile(entry)
            content = file.read() if file else b""
            if entry.name == "index.json":
                index = json.loads(content)
                index["manifests"][0]["annotations"] = {"io.containerd.image.name": name}
                content = json.dumps(index).encode()
                entry.size = len(content)
            new.addfile(entry, io.BytesIO(content) if entry.isfile() else None)
    return target
