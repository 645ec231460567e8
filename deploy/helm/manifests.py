"""Manifests: what is rendered from the chart for those without helm, and kind's clusters for each release."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from deploy.helm.program import find_helm

from fluence.admission.manifests import hand_off_definition, to_yaml
from fluence.kube.releases import RELEASES

CHART = Path(__file__).parent / "fluence"
DEPLOY = Path(__file__).parents[1]
NAMESPACE = "fluence-system"
PARTS = ("account", "rbac", "users", "config", "admission", "deployment", "view", "budget")
# The chart asks the server for its release; a file is for one that has policies.
_ARGUMENTS = {
    "admission": ("--set", "admission.mode=policy", "--kube-version", "1.36"),
    "deviceplugin": ("--set", "devicePlugin.enabled=true"),
}
KIND = {"kind-config.yaml": "1.36", "kind-config-1.37.yaml": "1.37"}
# All rules that an installation may have: what `fluence doctor` asks for.
DOCTORS = DEPLOY.parent / "src" / "fluence" / "doctor" / "rbac.yaml"
# Those that admission needs beside: of the scheduler, and of the webhook.
DOCTORS_ADMISSION = DOCTORS.with_name("admission-rbac.yaml")
MARK = "# Written by `make manifests` from deploy/helm/fluence; do not edit.\n"
# What says that helm looks after an object, which it does not here.
HELMS = ("app.kubernetes.io/managed-by:", "helm.sh/chart:", "# Source:")
RESTART = (
    "# Every setting: docs/settings.md. After a change: "
    f"kubectl -n {NAMESPACE} rollout restart deployment/fluence\n"
)


def template(*arguments: str) -> str:
    """`helm template` of the chart as it stands."""
    command = [str(find_helm()), "template", "fluence", str(CHART), "--namespace", NAMESPACE, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def part(name: str, *arguments: str) -> str:
    """One template, without helm's own labels."""
    text = template("--show-only", f"templates/{name}.yaml", *(arguments or _ARGUMENTS.get(name, ())))
    lines = text.removeprefix("---\n").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.strip().startswith(HELMS))
    return MARK + (RESTART if name == "config" else "") + text


def one_file() -> str:
    """Everything in the order in which it can be made."""
    head = (
        "# Fluence in one file, with the defaults of its chart:\n"
        "#   kubectl apply -f deploy/fluence.yaml\n"
        "# The image must be where the nodes find it: docs/install.md. Admission is by policies of the API\n"
        "# server. Kubernetes 1.35 has none, and says so: apply deploy/fluence-webhook.yaml as well there.\n"
    )
    namespace = (DEPLOY / "scheduler" / "namespace.yaml").read_text()
    parts = [
        namespace,
        flux_jobs(),
        queues(),
        hand_offs(),
        *(part(name).removeprefix(MARK) for name in PARTS),
    ]
    text = "---\n".join(parts)
    missing = left_out(text)
    if missing:
        head += "# `helm install` with the defaults also makes these, which are not in this file:\n"
        head += "".join(f"#   {kind} {', '.join(names)}\n" for kind, names in missing.items())
    return MARK + head + text


def left_out(text: str) -> dict[str, list[str]]:
    """Objects that helm makes by default on Kubernetes 1.36 and that are not in a text, by kind. The Lease is
    not one of them: the scheduler creates it."""
    has = {_identity(document) for document in yaml.safe_load_all(text) if document}
    missing: dict[str, list[str]] = {}
    for document in yaml.safe_load_all(template("--include-crds", "--kube-version", "1.36")):
        if document and document["kind"] != "Lease" and _identity(document) not in has:
            missing.setdefault(document["kind"], []).append(document["metadata"]["name"])
    return missing


def _identity(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def prometheus_rules() -> str:
    """The alerts as a file that any Prometheus loads with `rule_files`."""
    rendered = template(
        "--set", "prometheusRule.enabled=true", "--show-only", "templates/prometheusrule.yaml"
    )
    head = "# Alerts for Prometheus without its operator; the job must be named fluence-scheduler.\n"
    return MARK + head + yaml.safe_dump(yaml.safe_load(rendered)["spec"], sort_keys=False, width=110)


def flux_jobs() -> str:
    """The definition of FluxJobs. Helm makes what is in `crds` if it is not there, and never takes it away:
    with it all FluxJobs would go, which cancels their jobs."""
    return (DEPLOY / "crds" / "fluxjobs.yaml").read_text()


def queues() -> str:
    """The definition of Queues, which stay in force as long as they are there."""
    return (DEPLOY / "crds" / "queues.yaml").read_text()


def hand_offs() -> str:
    """The definition of HandOffs, which policies read."""
    return to_yaml([hand_off_definition()])


def resources() -> str:
    """The ConfigMap of external resources, which is written by hand, and the device plugin for them."""
    by_hand, *_ = (DEPLOY / "fluence-resources.yaml").read_text().partition("---\n")
    head = "# Written by `make manifests` from deploy/helm/fluence from here on.\n"
    return f"{by_hand}---\n{head}{part('deviceplugin').removeprefix(MARK)}"


def admission(mode: str) -> str:
    """The rules of admission by themselves, for after fluence.yaml."""
    arguments = ("--set", f"admission.mode={mode}", "--kube-version", "1.36")
    parts = [hand_offs(), part("admission", *arguments)]
    if mode == "webhook":
        parts.append(part("webhook", *arguments))
    head = {
        "policy": "# Admission by the API server itself: Kubernetes 1.36 and later. After fluence.yaml:\n",
        "webhook": "# Admission by a webhook: Kubernetes 1.35, sites without policies. After fluence.yaml:\n",
    }[mode]
    name = "fluence-admission" if mode == "policy" else "fluence-webhook"
    apply = f"#   kubectl apply -f deploy/{name}.yaml\n"
    return MARK + head + apply + "---\n".join(each.removeprefix(MARK).lstrip("-\n") for each in parts)


def admission_rights() -> str:
    """The roles of admission, each with the comment above it."""
    arguments = ("--set", "admission.mode=webhook", "--kube-version", "1.36")
    documents = [each for name in ("admission", "webhook") for each in part(name, *arguments).split("---\n")]
    roles = [each.removeprefix(MARK) for each in documents if re.search("^kind: (Cluster)?Role$", each, re.M)]
    return "---\n".join([MARK, *roles])  # apart, or it would be the reason of the first


def kind_config(minor: str) -> str:
    """A control plane and two workers, with native gangs (KEP-4671) on in all parts."""
    release = RELEASES[minor]
    name = next(name for name, each in KIND.items() if each == minor)
    document = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": release.gates,
        "runtimeConfig": dict(each.split("=", 1) for each in release.runtime_config),
        "nodes": [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}],
    }
    head = (
        f"# A cluster of Kubernetes {minor} with native gangs, by kind:\n"
        f"#   kind create cluster --image kindest/node:{release.version} --config deploy/{name}\n"
        "# Written by `make manifests`; a gate that a release does not know stops it, so each has a file.\n"
    )
    return head + yaml.safe_dump(document, sort_keys=False)


def everything() -> dict[Path, str]:
    """Each file, and what it should say."""
    found = {DEPLOY / "scheduler" / f"{name}.yaml": part(name) for name in PARTS}
    found[DEPLOY / "scheduler" / "fluxjobs.yaml"] = MARK + flux_jobs()
    found[DEPLOY / "scheduler" / "queues.yaml"] = MARK + queues()
    found[DEPLOY / "scheduler" / "handoffs.yaml"] = MARK + hand_offs()
    found[DEPLOY / "fluence.yaml"] = one_file()
    found[DEPLOY / "fluence-resources.yaml"] = resources()
    found[DEPLOY / "fluence-admission.yaml"] = admission("policy")
    found[DEPLOY / "fluence-webhook.yaml"] = admission("webhook")
    found[DEPLOY / "prometheus-rules.yaml"] = prometheus_rules()
    found[DOCTORS] = part("rbac", "--set", "settings.metrics-address=0.0.0.0:10452")
    found[DOCTORS_ADMISSION] = admission_rights()
    return found | {DEPLOY / name: kind_config(minor) for name, minor in KIND.items()}
