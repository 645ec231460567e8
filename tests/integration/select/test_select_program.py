"""The program from its command line to kubectl's stdin: the documented examples, the safety, the errors."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.select.select_program import SCRIPTS, Kubectl, Program
from tests.needs import lacks

P = "fluence.flux-framework.org"

GPUS = """\
version: 1
backends:
  - name: gpu-a100
    provider: generic
    region: us-east-1
    qubits: 0
    attributes: {cost_usd: 3.20, memory_gb: 80, throughput: 312}
  - name: gpu-l4
    provider: generic
    region: us-east-1
    attributes: {cost_usd: 0.80, memory_gb: 24, throughput: 121}
  - name: gpu-t4
    provider: generic
    region: us-west-2
    attributes: {cost_usd: 0.35, memory_gb: 16, throughput: 65}
"""
DEVICES = """\
version: 1
backends:
  - {name: sv1, provider: braket, region: us-east-1, cost_per_minute: 0.075, qubits: 34,
     device_arn: "arn:aws:braket:::device/quantum-simulator/amazon/sv1"}
  - {name: rigetti_cepheus, provider: braket, region: us-west-1, cost_per_task: 0.30, cost_per_shot: 0.00090,
     qubits: 108, device_arn: "arn:aws:braket:us-west-1::device/qpu/rigetti/Cepheus-1-108Q"}
  - {name: iqm_garnet, provider: braket, region: eu-north-1, cost_per_task: 0.30, cost_per_shot: 0.00145,
     qubits: 20, device_arn: "arn:aws:braket:eu-north-1::device/qpu/iqm/Garnet"}
"""
PLAIN = """\
apiVersion: v1
kind: Pod   # plain
metadata: {name: plain}
spec:
  containers: [{name: c, image: i}]
"""


def pod(policy: str, *more: str, name: str = "leader") -> str:
    annotations = "".join(f"    {P}/{line}\n" for line in more)
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels:\n    {P}/group: training\n"
        f'  annotations:\n    {P}/select-policy: "{policy}"\n{annotations}'
        "spec:\n  schedulerName: fluence\n  containers:\n    - name: c\n      image: i\n"
    )


JOB = f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  annotations:
    {P}/select-policy: min-cost
spec:
  parallelism: 2
  template:
    spec:
      schedulerName: fluence # ours
      containers: [{{name: c, image: i}}]
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(GPUS)
    (tmp_path / "devices.yaml").write_text(DEVICES)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "plain.yaml").write_text(PLAIN)


def pins(text: str | bytes) -> list[str | None]:
    documents = [d for d in yaml.safe_load_all(text) if d]
    return [_annotations(d).get(f"{P}/require-backend") for d in documents]


def _annotations(document: dict[str, Any]) -> dict[str, str]:
    return document["metadata"].get("annotations") or {}


class TestDocumentedExamples:
    @pytest.mark.parametrize(
        ("policy", "file", "chosen"),
        [
            ("require:min_memory_gb=24,min-cost", "gpus.yaml", "gpu-l4"),
            ("require:min_memory_gb=24,min-cost,max-throughput", "gpus.yaml", "gpu-l4"),
            ("min-cost", "gpus.yaml", "gpu-t4"),
            ("max-throughput", "gpus.yaml", "gpu-a100"),
            ("require:min_qubits=20,min-cost", "devices.yaml", "sv1"),
            ("require:min_qubits=50,min-cost", "devices.yaml", "rigetti_cepheus"),
            ("prefer:iqm_garnet,min-cost", "devices.yaml", "iqm_garnet"),
        ],
    )
    def test_select_prints_the_documented_choice(
        self, program: Program, policy: str, file: str, chosen: str
    ) -> None:
        done = program("select", "-f", "-", "--attributes", file, stdin=pod(policy))
        assert done.code == 0
        assert f"{P}/require-backend: {chosen}\n" in done.out
        assert f"{P}/backend: {chosen}\n" in done.out
        assert f'selected backend "{chosen}" for Pod/leader (policy "{policy}")' in done.err

    def test_an_offer_of_two_of_three_gpus_leaves_two(self, program: Program, kubectl: Kubectl) -> None:
        kubectl.offers("- name: gpu-a100\n- name: gpu-l4\n- name: gpu-h100\n")
        done = program("select", "-f", "-", "--attributes=gpus.yaml", stdin=pod("min-cost"))
        assert pins(done.out) == ["gpu-l4"]
        assert "dropped gpu-t4: not offered by the cluster scheduler\n" in done.err
        assert "dropped gpu-h100: offered by scheduler but no attributes available" in done.err
        audit = json.loads(_annotations(yaml.safe_load(done.out))[f"{P}/select-result"])
        assert (audit["chosen"], audit["policy"]) == ("gpu-l4", "min-cost")
        assert audit["dropped"]["gpu-t4"] == "not offered by the cluster scheduler"
        assert "notes" not in audit
        assert audit["resolved_at"].endswith("Z")

    @pytest.mark.parametrize("key", ["resources.yaml", "other.yaml"])
    def test_both_schemas_of_the_configmap_offer_and_describe(
        self, program: Program, kubectl: Kubectl, key: str
    ) -> None:
        for body in (
            "backends: [{name: q1, num_qubits: 5}, {name: q2, num_qubits: 9}]",
            """\
            resources:
            - {type: qpu, name: q1, attributes: {qubits: 5}}
            - {type: qpu, name: q2, attributes: big}
            attributes: {big: {qubits: '9'}}
            """,
        ):
            kubectl.offers(body, key)
            done = program("select", "-f", "-", stdin=pod("max-qubits"))
            assert (done.code, pins(done.out)) == (0, ["q2"]), done.err

    def test_cost_is_worked_out_from_components_and_shots(self, program: Program) -> None:
        (program.directory / "a.yaml").write_text(
            "backends: [{name: q, cost_per_task: 0.30, cost_per_shot: 0.001}]"
        )
        for lines, cost in ([], 1.30), (['select-shots: "5000"'], 5.30):
            done = program("select", "-f-", "--attributes", "a.yaml", "-ojson", stdin=pod("min-cost", *lines))
            (selection,) = json.loads(done.out)["selections"]
            assert selection["candidates"][0]["attributes"]["cost_usd"] == cost

    def test_candidates_and_constraints(self, program: Program) -> None:
        text = pod(
            "min-cost", "select-candidates: rigetti_cepheus,iqm_garnet", "select-constraints: max_qubits=50"
        )
        assert pins(program("select", "-f", "-", "--attributes", "devices.yaml", stdin=text).out) == [
            "iqm_garnet"
        ]

    def test_the_examples_of_this_repository_work(self, program: Program) -> None:
        examples = Path(__file__).parents[3] / "examples" / "select"
        for manifest, attributes, chosen in [
            ("generic-gpu.yaml", "generic-attributes.yaml", "gpu-l4"),
            ("quantum-job.yaml", "braket-attributes.yaml", "rigetti_cepheus"),
        ]:
            done = program("select", "-f", examples / manifest, "--attributes", examples / attributes)
            assert pins(done.out) == [chosen], done.err


class TestManifests:
    def test_a_jobs_template_gets_the_pin_and_its_comments_stay(self, program: Program) -> None:
        done = program("select", "-f", "job.yaml", "--attributes", "gpus.yaml")
        job = yaml.safe_load(done.out)
        assert job["spec"]["template"]["metadata"]["annotations"] == {
            f"{P}/require-backend": "gpu-t4",
            f"{P}/backend": "gpu-t4",
        }
        kept = [line for line in done.out.splitlines() if "require-backend" not in line]
        assert "      schedulerName: fluence # ours" in kept

    def test_objects_that_ask_nothing_pass_byte_for_byte(self, program: Program) -> None:
        odd = "%weird\n--- # one\n" + PLAIN + "\n---\r\nnot: [yaml\n--- \n\n"
        done = program("select", "-f", "-", stdin=odd)
        assert (done.code, done.out, done.err) == (0, odd, "")

    def test_only_the_documents_that_ask_change(self, program: Program, kubectl: Kubectl) -> None:
        kubectl.offers("- name: gpu-l4")
        text = f"# first\n{PLAIN}---\n{pod('min-cost')}---\n{PLAIN}"
        done = program("select", "-f", "-", "--attributes", "gpus.yaml", stdin=text)
        first, middle, last = done.out.split("---\n")
        assert (first, last) == (f"# first\n{PLAIN}", PLAIN)
        assert pins(middle) == ["gpu-l4"]

    def test_lists_and_json(self, program: Program) -> None:
        items = [yaml.safe_load(pod("min-cost", name="a")), yaml.safe_load(PLAIN)]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4)
        done = program("select", "-f", "-", "--attributes", "gpus.yaml", stdin=text)
        result = json.loads(done.out)
        assert _annotations(result["items"][0])[f"{P}/require-backend"] == "gpu-t4"
        assert result["items"][1] == items[1]

    def test_a_pin_is_kept_unless_forced(self, program: Program) -> None:
        text = pod("min-cost", "require-backend: mine")
        kept = program("select", "-f", "-", "--attributes", "gpus.yaml", stdin=text)
        assert kept.out == text
        assert kept.err == (
            'note: Pod/leader already pinned to "mine"; skipping selection (use --force-select to override)\n'
        )
        forced = program("select", "-f", "-", "--attributes", "gpus.yaml", "--force-select", stdin=text)
        assert pins(forced.out) == ["gpu-t4"]

    def test_selecting_twice_changes_nothing(self, program: Program) -> None:
        once = program("select", "-f", "job.yaml", "--attributes", "gpus.yaml").out
        assert program("select", "-f", "-", "--attributes", "gpus.yaml", stdin=once).out == once

    def test_a_policy_on_the_template_is_noticed(self, program: Program) -> None:
        text = JOB.replace(
            "    spec:\n", f"    metadata: {{annotations: {{{P}/select-policy: x}}}}\n    spec:\n"
        )
        text = text.replace(f"    {P}/select-policy: min-cost\n", "    a: b\n")
        done = program("select", "-f", "-", stdin=text)
        assert done.out == text
        assert "note: Job/train: select-policy stands on the pod template" in done.err

    def test_an_empty_policy_is_noticed(self, program: Program) -> None:
        text = JOB.replace(f"{P}/select-policy: min-cost", f'{P}/select-policy: ""')
        done = program("select", "-f", "-", stdin=text)
        assert done.out == text
        assert "note: Job/train: select-policy is empty, so no backend is chosen" in done.err

    def test_a_licence_is_never_chosen_for_a_job_that_requests_a_qpu(
        self, program: Program, kubectl: Kubectl
    ) -> None:
        kubectl.offers(
            "resources: [{type: licence, name: solver, attributes: {cost_usd: 1}}, "
            "{type: qpu, name: sv1, attributes: {cost_usd: 2}}]"
        )
        limits = "resources: {limits: {fluxion.flux-framework.org/qpu: 1}}"
        text = JOB.replace("image: i", f"image: i, {limits}")
        assert limits in text
        done = program("select", "-f", "-", stdin=text)
        assert 'selected backend "sv1"' in done.err
        assert "dropped solver: has licence, and the workload requests qpu" in done.err


class TestSources:
    def test_directories_recursion_patterns_commas_and_stdin(self, program: Program) -> None:
        tree = program.directory / "tree"
        (tree / "below").mkdir(parents=True)
        for name in ("b.yaml", "a.yml", "below/c.json", "notes.txt"):
            (tree / name).write_text(json.dumps({"kind": "ConfigMap", "metadata": {"name": Path(name).stem}}))

        def names(*arguments: str, stdin: str = "") -> list[str]:
            done = program("select", *arguments, stdin=stdin)
            assert done.code == 0, done.err
            return [d["metadata"]["name"] for d in yaml.safe_load_all(done.out) if d]

        assert names("-f", "tree") == ["a", "b"]
        assert names("-R", "-f", "tree") == names("-Rftree") == ["a", "b", "c"]
        assert names("-f", "tree/b*l") == ["b"]
        assert names("-f", "tree/b.yaml,tree/a.yml", "-f", "plain.yaml") == ["b", "a", "plain"]
        assert names("-f", "-", "-f", "plain.yaml", stdin='{"metadata": {"name": "x"}}') == ["x", "plain"]

    def test_kustomizations(self, program: Program, kubectl: Kubectl) -> None:
        (program.directory / "built.yaml").write_text(JOB)
        done = program("apply", "-k", ".", "--attributes", "gpus.yaml")
        assert done.code == 0, done.err
        assert kubectl.calls == ["apply -f -"]
        assert pins(kubectl.stdin) == ["gpu-t4"]

    def test_a_real_kubectl_builds_the_kustomization(self, program: Program) -> None:
        (program.directory / "kustomization.yaml").write_text("resources: [job.yaml]\nnamePrefix: prod-\n")
        real = shutil.which("kubectl") or lacks("kubectl")
        path = f"{Path(real).parent}:/usr/bin:/bin"
        done = program("select", "-k", ".", "--attributes", "gpus.yaml", "--providers=file", PATH=path)
        assert done.code == 0, done.err
        assert yaml.safe_load(done.out)["metadata"]["name"] == "prod-train"
        assert pins(done.out) == ["gpu-t4"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-f", "missing.yaml"], "error: missing.yaml: No such file or directory\n"),
            (["-f", "*.nothing"], 'error: no file matches the pattern "*.nothing"\n'),
            (["-f", "home"], "error: home: no .json, .yaml or .yml file in this directory; -R looks"),
            (
                ["-f", "http://127.0.0.1:1/x.yaml"],
                "error: http://127.0.0.1:1/x.yaml: [Errno 111] Connection refused\n",
            ),
            (["-k", "missing"], "error: kustomize missing: "),
        ],
    )
    def test_what_cannot_be_read_is_named(
        self, program: Program, kubectl: Kubectl, arguments: list[str], message: str
    ) -> None:
        done = program("apply", *arguments)
        assert done.code == 1
        assert done.err.startswith(message)
        assert done.err.count("\n") == 1
        assert kubectl.calls == []


class TestSubmitting:
    @pytest.mark.parametrize("verb", ["apply", "create"])
    def test_kubectl_gets_the_manifest_and_all_its_own_flags(
        self, program: Program, kubectl: Kubectl, verb: str
    ) -> None:
        line = "-f job.yaml -nteam --context ctx --attributes gpus.yaml --server-side -oyaml"
        done = program(verb, *line.split())
        assert (done.code, done.out) == (0, "applied\n")
        assert kubectl.calls == [f"{verb} -f - -n team --context ctx --server-side -o yaml"]
        assert kubectl.reads[0].startswith(
            "get configmap fluence-resources -n kube-system -o json --context ctx"
        )
        assert pins(kubectl.stdin) == ["gpu-t4"]

    def test_without_a_policy_nothing_is_read_and_nothing_changed(
        self, program: Program, kubectl: Kubectl
    ) -> None:
        assert program("apply", "-f", "plain.yaml").code == 0
        assert kubectl.stdin == PLAIN.encode()
        assert kubectl.reads == []

    def test_the_namespace_of_the_offers_can_be_set(self, program: Program, kubectl: Kubectl) -> None:
        program(
            "select", "-f", "job.yaml", "--attributes=gpus.yaml", "--fluence-ns", "sched", "--kubeconfig=k"
        )
        assert "-n sched -o json --kubeconfig=k" in kubectl.reads[0]

    def test_the_exit_code_is_kubectls(self, program: Program, kubectl: Kubectl) -> None:
        kubectl.exits(7)
        assert program("apply", "-f", "plain.yaml").code == 7

    def test_dry_run_prints_and_asks_kubectl_for_one(self, program: Program, kubectl: Kubectl) -> None:
        done = program("apply", "-f", "job.yaml", "--attributes=gpus.yaml", "--dry-run")
        assert pins(done.out) == ["gpu-t4"]
        assert kubectl.calls == ["apply -f - --dry-run=client"]
        assert (
            program("apply", "-f", "job.yaml", "--attributes=gpus.yaml", "--dry-run=server").out
            == "applied\n"
        )
        assert kubectl.calls[1] == "apply -f - --dry-run=server"

    @pytest.mark.parametrize(
        ("answer", "calls"), [("y\n", 1), ("YES\n", 1), ("n\n", 0), ("\n", 0), ("", 0), ("yep\n", 0)]
    )
    def test_confirm_sends_only_after_a_yes(
        self, program: Program, kubectl: Kubectl, answer: str, calls: int
    ) -> None:
        done = program("apply", "-f", "job.yaml", "--attributes=gpus.yaml", "--confirm", stdin=answer)
        assert done.code == 0
        assert len(kubectl.calls) == calls
        assert ("cancelled; nothing applied" in done.err) is (calls == 0)

    def test_unreadable_offers_are_said_and_the_choice_goes_on(
        self, program: Program, kubectl: Kubectl
    ) -> None:
        done = program("apply", "-f", "job.yaml", "--attributes=gpus.yaml")
        assert done.code == 0
        assert done.err.startswith(
            "note: could not read scheduler offerings (kubectl get configmap fluence-resources "
            '-n kube-system: Error from server (Forbidden): configmaps "fluence-resources" is forbidden); '
            "selecting without intersection\n"
        )
        job = yaml.safe_load(kubectl.stdin)
        assert json.loads(_annotations(job)[f"{P}/select-result"])["notes"] == [
            "scheduler offerings unknown (ConfigMap unavailable); selecting over all provided backends"
        ]


class TestErrors:
    @pytest.mark.parametrize(
        ("policy", "arguments", "message"),
        [
            ("min-cost", [], "error: Pod/leader requests selection but no --attributes file was given, and"),
            (
                "min-cost",
                ["--attributes", "no.yaml"],
                "error: read attribute file no.yaml: No such file or directory\n",
            ),
            (
                "min-cost",
                ["--attributes", "bad.yaml"],
                "error: parse attribute file bad.yaml: backends[0].qubits (x)",
            ),
            (
                "fastest",
                ["--attributes", "gpus.yaml"],
                'error: Pod/leader: selection failed: unknown policy "fastest"',
            ),
            (
                "require:min_x=a",
                ["--attributes", "gpus.yaml"],
                "error: Pod/leader: selection failed: require ",
            ),
            (
                "max-speed",
                ["--attributes", "gpus.yaml"],
                (
                    'error: Pod/leader: selection failed: policy "max-speed": no candidate has '
                    'attribute "speed" (missing: gpu-a100,gpu-l4,gpu-t4)\n'
                ),
            ),
            (
                "require:min_memory_gb=99",
                ["--attributes", "gpus.yaml"],
                (
                    'error: Pod/leader: selection failed: policy "require:min_memory_gb=99" removed all '
                    "candidates; dropped: gpu-a100 (require:min_memory_gb=99: memory_gb 80 is less than 99)"
                ),
            ),
            ("min-cost", ["--providers", "files"], 'error: unknown provider "files" (known: configmap, file'),
        ],
    )
    def test_one_line_code_1_and_nothing_applied(
        self, program: Program, kubectl: Kubectl, policy: str, arguments: list[str], message: str
    ) -> None:
        (program.directory / "bad.yaml").write_text("backends: [{name: x, qubits: many}]")
        (program.directory / "pods.yaml").write_text(f"{PLAIN}---\n{pod(policy)}")
        done = program("apply", "-f", "pods.yaml", *arguments)
        assert (done.code, done.out) == (1, "")
        errors = [line for line in done.err.splitlines(keepends=True) if not line.startswith("note: ")]
        assert len(errors) == 1
        assert errors[0].startswith(message)
        assert kubectl.calls == []

    @pytest.mark.parametrize("verb", ["apply", "create"])
    def test_missing_kubectl(self, program: Program, kubectl: Kubectl, verb: str) -> None:
        done = program(verb, "-f", "plain.yaml", PATH=str(program.directory))
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("error: kubectl is not on PATH; install it")
        assert done.err.count("\n") == 1

    def test_select_works_without_kubectl(self, program: Program) -> None:
        done = program("select", "-f", "job.yaml", "--attributes", "gpus.yaml", PATH=str(program.directory))
        assert (done.code, pins(done.out)) == (0, ["gpu-t4"])
        assert "could not read scheduler offerings (kubectl is not on PATH)" in done.err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["aply"], 'error: unknown command "aply"; did you mean "apply"? (see kubectl fluence --help)\n'),
            (
                ["apply"],
                "error: no -f/--filename given (nor -k/--kustomize) (see kubectl fluence apply --help)\n",
            ),
            (
                ["apply", "-f"],
                "error: Option '-f' requires an argument. (see kubectl fluence apply --help)\n",
            ),
            (
                ["select", "job.yaml"],
                'error: unexpected argument "job.yaml"; manifests are named with -f (see',
            ),
            (["select", "-f", "job.yaml", "--atributes", "x"], "error: No such option"),
            (["select", "-f", "job.yaml", "-o", "xml"], "error: Invalid value for '-o'"),
            (["apply", "-f", "job.yaml", "--cost-tol", "cheap"], "error: Invalid value for '--cost-tol'"),
            (["apply", "-f", "job.yaml", "--cost-tol", "-1"], "error: Invalid value for '--cost-tol'"),
            (["apply", "-f", "job.yaml", "--live-timeout=0"], "error: Invalid value for '--live-timeout'"),
        ],
    )
    def test_wrong_usage_is_one_line_and_code_2(
        self, program: Program, kubectl: Kubectl, arguments: list[str], message: str
    ) -> None:
        done = program(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(message), done.err
        assert done.err.count("\n") == 1
        assert kubectl.calls == []

    def test_no_command_prints_the_help_and_code_2(self, program: Program) -> None:
        done = program()
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("Usage: kubectl fluence ")

    def test_confirm_without_a_terminal_to_ask_on(self, program: Program, kubectl: Kubectl) -> None:
        done = subprocess.run(
            [
                *_setsid(),
                SCRIPTS / "kubectl-fluence",
                "apply",
                "-f",
                "-",
                "--confirm",
            ],
            input=PLAIN.encode(),
            capture_output=True,
            env=program.environment,
            check=False,
        )
        assert done.returncode == 1
        assert b"--confirm cannot ask: stdin is the manifest" in done.stderr
        assert kubectl.calls == []


def _setsid() -> list[str]:
    found = shutil.which("setsid")
    if found is None:
        lacks("setsid")
    return [found, "-w"]


class TestShowing:
    def test_explain_shows_each_candidate_its_attributes_their_source_and_its_fate(
        self, program: Program, kubectl: Kubectl
    ) -> None:
        kubectl.offers(
            "resources: [{type: gpu, name: gpu-l4, attributes: {slots: 8}}, {type: gpu, name: gpu-a100}]"
        )
        done = program("select", "-f", "-", "--attributes=gpus.yaml", "--explain", stdin=pod("min-cost"))
        assert pins(done.out) == ["gpu-l4"]
        table = done.err
        assert "Pod/leader: min-cost " in table
        assert "slots=8 (configmap)" in table
        assert "memory_gb=24 (file)" in table
        fates = {line.split()[0]: line for line in table.splitlines() if line.startswith("gpu-")}
        assert "chosen" in fates["gpu-l4"]
        assert "min-cost: cost_usd 3.2 is above the best, 0.8" in fates["gpu-a100"]
        assert "not offered by the cluster scheduler" in fates["gpu-t4"]

    def test_explain_shows_a_failure_too(self, program: Program) -> None:
        text = pod("min-cost,require:min_memory_gb=99")
        done = program("select", "-f", "-", "--attributes=gpus.yaml", "--explain", stdin=text)
        assert done.code == 1
        assert "memory_gb 16 is less than 99" in done.err
        assert done.err.splitlines()[-1].startswith("error: Pod/leader: selection failed: policy ")

    def test_json_and_yaml_say_the_same(self, program: Program) -> None:
        outputs = [
            program("select", "-f", "job.yaml", "--attributes=gpus.yaml", "--providers=file", "-o", form).out
            for form in ("json", "yaml")
        ]
        as_json, as_yaml = json.loads(outputs[0]), yaml.safe_load(outputs[1])
        for data in (as_json, as_yaml):
            data["selections"][0].pop("resolved_at")
        assert as_json == as_yaml
        (selection,) = as_json["selections"]
        assert (selection["object"], selection["chosen"]) == ("Job/train", "gpu-t4")
        assert [(c["name"], c["outcome"]) for c in selection["candidates"]] == [
            ("gpu-t4", "chosen"),
            ("gpu-a100", "dropped"),
            ("gpu-l4", "dropped"),
        ]
        assert selection["candidates"][0]["sources"]["cost_usd"] == "file"

    def test_wide(self, program: Program) -> None:
        done = program("select", "-f", "-", "--attributes=devices.yaml", "-owide", stdin=pod("max-qubits"))
        assert "arn:aws:braket:us-west-1::device/qpu/rigetti/Cepheus-1-108Q" in done.out
        assert "REGION" in done.out

    def test_version_and_help(self, program: Program) -> None:
        assert program("version").out.startswith("kubectl-fluence 0.")
        for arguments in (["help"], ["--help"], ["-h"]):
            assert "require:min_memory_gb=24" in program(*arguments).out
        assert program("help", "apply").out == program("apply", "--help").out
        assert "--dry-run=server" in program("apply", "-h").out

    def test_kubectl_finds_the_plugin(self, program: Program) -> None:
        scripts = SCRIPTS
        real = shutil.which("kubectl") or lacks("kubectl")
        path = f"{scripts}:{Path(real).parent}:/usr/bin:/bin"
        environment = {**program.environment, "PATH": path}
        done = subprocess.run([real, "fluence", "version"], capture_output=True, env=environment, check=False)
        assert done.stdout.startswith(b"kubectl-fluence ")
        # kubectl's own completion asks our other program.
        line = [real, "__complete", "fluence", "app"]
        done = subprocess.run(line, capture_output=True, env=environment, check=False)
        assert done.stdout.decode().splitlines()[0].startswith("apply\tChoose, then"), done


class TestCompletion:
    def ask(self, program: Program, *words: str) -> list[str]:
        script = SCRIPTS / "kubectl_complete-fluence"
        done = subprocess.run(
            [script, *words], capture_output=True, text=True, env=program.environment, check=True
        )
        return done.stdout.splitlines()

    def test_commands_options_values_and_files(self, program: Program) -> None:
        assert self.ask(program, "se") == ["select\tChoose, and print the result; send nothing.", ":4"]
        assert any(line.startswith("--attributes\t") for line in self.ask(program, "apply", "--att"))
        assert self.ask(program, "select", "-o", "j") == ["json", ":4"]
        assert self.ask(program, "select", "-f", "")[-1] == ":0"
        assert self.ask(program, "select", "-k", "")[-1] == ":16"

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_scripts_for_shells(self, program: Program, shell: str) -> None:
        assert "_KUBECTL_FLUENCE_COMPLETE" in program("completion", shell).out

    def test_bash_completes_the_program_itself(self, program: Program) -> None:
        done = program(
            _KUBECTL_FLUENCE_COMPLETE="bash_complete", COMP_WORDS="kubectl-fluence sel", COMP_CWORD="1"
        )  # fmt: skip
        assert done.out == "plain,select\n"
