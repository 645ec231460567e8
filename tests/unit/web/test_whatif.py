"""Questions about manifests that are not submitted: answered by a copy of the scheduler, within bounds."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.meta import ObjectMeta, PriorityClass
from fluence.model.reason import Code, Reason
from fluence.queue.reasons import BlockedBy, Delay, EndsFor, WaitReason, WhatIfAnswer
from fluence.schedule.events import Changed
from fluence.sim.live_cycle import ManifestAnswer
from fluence.web import whatif
from fluence.web.access import Reader, Refused, User
from fluence.web.server import BASE
from fluence.web.view import View
from fluence.web.whatif import Questions, fork, read_question, work_out
from tests.unit.schedule.test_promised_starts import node
from tests.unit.web.field import NOW, Field, gang
from tests.unit.web.test_server import Given, Served, serving
from tests.unit.web.test_view import Live

ADMIN = Reader(User("admin"), everything=True)
ANN = Reader(User("ann"), namespaces=frozenset({"physics"}))


def manifest(name: str, count: int, *, namespace: str = "", cpu: str = "32") -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "fluence", "restartPolicy": "Never", "containers": [container]}
    notes = {names.GROUP_LABEL: name, names.GROUP_SIZE: str(count), names.DURATION: "1h"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "annotations": notes,
            **({"namespace": namespace} if namespace else {}),
        },
        "spec": {"parallelism": count, "completions": count, "template": {"spec": spec}},
    }


def body(*documents: Any) -> bytes:
    return json.dumps({"files": [{"source": "job.yaml", "documents": list(documents)}]}).encode()


@pytest.fixture
def field_() -> Field:
    """Both nodes are taken for two hours. Then `mine` starts, and then `theirs`."""
    made = Field(nodes=2)
    urgent = PriorityClass(metadata=ObjectMeta(name="urgent"), value=1000)
    made.driver.handle(Changed(None, urgent))
    made.submit(gang("running", 2, namespace="biology", limit="2h"))
    made.submit(gang("mine", 2, limit="1h"))
    made.submit(gang("theirs", 1, namespace="biology", limit="1h"))
    return made


def asked(field: Field, reader: Reader, *documents: Any) -> dict[str, Any]:
    """In a copy, so that the field can be asked again."""

    async def ask() -> bytes:
        async def begin() -> whatif.Forked:
            return fork(
                lambda: work_out(
                    field.driver.scheduler, (), NOW, reader=reader, namespace="physics", body=body(*documents)
                )
            )

        return await Questions().answer(begin)

    answer: dict[str, Any] = json.loads(asyncio.run(ask()))
    return answer


def test_a_copy_answers_by_the_live_plan_and_nothing_changes(field_: Field) -> None:
    before = field_.snapshot()
    told = asked(field_, ADMIN, manifest("asked", 2))
    assert (told["kind"], told["startsNow"], told["never"]) == ("WhatIf", False, False)
    (job,) = told["answer"]["jobs"]
    last = field_.snapshot().reservations[-1]
    assert last is not None
    assert job["start_no_later_than"] * 1000 == last.end, "behind all that is planned"
    assert asked(field_, ADMIN, manifest("asked", 2)) == told, "nothing is held"
    after = field_.snapshot()
    assert list(after.sets) == list(before.sets) and after.reservations == before.reservations
    assert asked(field_, ADMIN, manifest("huge", 3))["never"]


def test_what_is_answered_comes_true(field_: Field) -> None:
    """The same gang, submitted: it gets the start that was answered."""
    told = asked(field_, ADMIN, manifest("asked", 2))
    field_.submit(gang("asked", 2, limit="1h"))
    (place,) = (n for n, each in enumerate(field_.driver.queue.pending.records) if each.key.endswith("asked"))
    assert told["answer"]["jobs"][0]["start_no_later_than"] * 1000 == field_.snapshot().bounds[place]


def test_work_of_other_namespaces_has_no_name(field_: Field) -> None:
    urgent = manifest("asked", 2)
    urgent["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    whole, own = (asked(field_, reader, urgent) for reader in (ADMIN, ANN))
    assert any("job biology/running would end now (2 pods)" in line for line in whole["lines"])
    assert "biology" not in str(own) and "running" not in str(own)
    assert "physics/asked: a job of another namespace would end now" in own["lines"]

    urgent["spec"]["template"]["spec"]["preemptionPolicy"] = "Never"
    whole, own = (asked(field_, reader, urgent) for reader in (ADMIN, ANN))
    assert "biology" in str(whole) and "theirs" in str(whole)
    assert "biology" not in str(own) and "theirs" not in str(own) and "running" not in str(own)
    assert {each["job"] for each in own["answer"]["delays"]} == {"physics/mine", "(another namespace)"}
    assert any(line.startswith("a job of another namespace would start") for line in own["lines"])

    def without_names(told: dict[str, Any]) -> list[Any]:
        jobs = [{**job, "waits_for": len(job["waits_for"])} for job in told["answer"]["jobs"]]
        return [jobs, [(each["before"], each["after"]) for each in told["answer"]["delays"]]]

    assert without_names(whole) == without_names(own), "all else is the same for everybody"


def test_reasons_and_victims_of_others_have_no_name() -> None:
    ahead = Reason.of(Code.MUST_START_FIRST, fits=True, jobs=("physics/a", "biology/secret"))
    zone = Reason.of(Code.TOPOLOGY_NEEDS_GANG, group="physics/a", key="topology.kubernetes.io/zone")
    why = WaitReason(BlockedBy.AHEAD, (ahead, zone), ("physics/a", "biology/secret", "biology/other"))
    ends = (EndsFor("biology/secret", 7777, 0, 9000, 1.0), EndsFor("physics/a", 2, 0, 9000, 1.0))
    about = WhatIfAnswer(0, False, False, None, None, why, (), ends, (ahead,))
    answer = ManifestAnswer(0, (("physics/x", about),), (Delay("biology/secret", 0, 1000),))
    shown = whatif.hide(answer, ANN.sees, {"physics", "biology"})
    text = str(shown.to_value()) + str(shown.lines())
    assert "biology" not in text and "secret" not in text and "7777" not in text
    assert "physics/a" in text and "topology.kubernetes.io/zone" in text
    assert shown.jobs[0][1].reason.waits_for == ("physics/a", "(another namespace)")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"{", "truncated"),
        (b"[]", "object"),
        (b'{"files": 3}', "array"),
        (b"[" * 200_000, ""),
        (b'{"files": [{"documents": ' + b"[" * 100_000, ""),
        (body(None), "has no Pod"),
        (body(3), "apiVersion"),
        (body({"kind": "Job"}), "apiVersion"),
        (body({"apiVersion": "batch/v1", "kind": "Job"}), "job.yaml"),
        (body({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}), "has no Pod"),
        (body(manifest("a", 1, namespace="biology")), "one namespace at a time"),
        (body(manifest("a", 10**9)), "over 5000 pods"),
        (body(*(manifest(f"a{n}", 2000) for n in range(3))), "over 5000 pods"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(field_: Field, text: bytes, fault: str) -> None:
    async def ask() -> bytes:
        async def begin() -> whatif.Forked:
            return fork(
                lambda: work_out(field_.driver.scheduler, (), NOW, reader=ANN, namespace="physics", body=text)
            )

        return await Questions().answer(begin)

    with pytest.raises(Refused) as refused:
        asyncio.run(ask())
    assert refused.value.status == 400 and fault in str(refused.value) and "\n" not in str(refused.value)


def test_who_asks_is_who_would_submit() -> None:
    forged = manifest("a", 1)
    forged["metadata"]["annotations"][names.SUBMITTED_BY] = "eve"
    documents, _ = read_question(body(forged), "physics")
    assert documents[0]["metadata"]["namespace"] == "physics"
    with pytest.raises(InvalidInput):
        read_question(body(manifest("a", 1, namespace="biology")), "physics")


def test_what_a_user_could_not_create_does_not_count(field_: Field) -> None:
    forged = manifest("asked", 2)
    forged["spec"]["template"]["spec"]["priority"] = 10**9
    known = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "mine"}}
    told = asked(field_, ANN, forged, {**known, "value": 10**9})
    plain = asked(field_, ANN, manifest("asked", 2))
    assert told["answer"] == plain["answer"]
    assert told["notes"] == [
        "job.yaml: PriorityClass is left out: create it first",
        "Job asked: its priority is that of priorityClassName",
    ]


def test_a_copy_that_hangs_or_takes_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(whatif, "_MAX_MEMORY", 64 << 20)

    def hangs() -> bytes:
        while True:
            pass

    def grows() -> bytes:
        return b"x" * (1 << 30)

    def breaks() -> bytes:
        raise RuntimeError("a fault of ours")

    async def ask(work: Any) -> None:
        processes: list[int] = []

        async def begin() -> whatif.Forked:
            process, pipe = fork(work)
            processes.append(process)
            return process, pipe

        with pytest.raises(Refused) as refused:
            await Questions().answer(begin)
        assert refused.value.status == 503
        with pytest.raises(ChildProcessError):
            os.waitpid(processes[0], 0)

    for work in (hangs, grows, breaks):
        asyncio.run(ask(work))


def test_a_copy_has_nothing_open_but_its_answer() -> None:
    def opened() -> bytes:
        return json.dumps([str(Path(f"/proc/self/fd/{n}").readlink()) for n in (0, 1, 2)]).encode()

    async def ask() -> bytes:
        async def begin() -> whatif.Forked:
            return fork(opened)

        return await Questions().answer(begin)

    assert json.loads(asyncio.run(ask())) == ["/dev/null"] * 3


def test_places_are_few_for_a_namespace_and_for_all() -> None:
    async def work() -> None:
        questions = Questions()
        stack = []
        for number in range(whatif.MAX_WAITING):
            stack.append(questions.place(f"ns{number // whatif.MAX_PER_NAMESPACE}"))
            await stack[-1].__aenter__()
        for namespace in ("ns0", "another"):
            with pytest.raises(Refused) as refused:
                await questions.place(namespace).__aenter__()
            assert refused.value.status == 429
        for place in stack:
            await place.__aexit__(None, None, None)
        async with questions.place("another"):
            pass

    asyncio.run(work())


def test_the_next_question_waits_twice_as_long_as_the_last_answer_took() -> None:
    async def work() -> None:
        questions, times = Questions(), []
        now = asyncio.get_running_loop().time

        async def begin() -> whatif.Forked:
            times.append(now())
            await asyncio.sleep(0.3)
            return fork(lambda: b"{}")

        await questions.answer(begin)
        times.append(now())
        await questions.answer(begin)
        began, answered, again = times
        assert again - answered >= 1.9 * (answered - began)

    asyncio.run(work())


# -- over HTTP -----------------------------------------------------------------------------------------------

PATH = f"{BASE}/namespaces/physics/whatif"


class Asked(Given):
    """A view that copies its field's scheduler."""

    def __init__(self, field: Field) -> None:
        super().__init__(field)
        live = Live(field)
        live.untold = []  # type: ignore[attr-defined]
        self.view = View(live)  # type: ignore[arg-type]

    async def ask(self, reader: Reader, namespace: str, text: bytes) -> whatif.Forked:
        return await self.view.ask(reader, namespace, text)


def run(field: Field, work: Any) -> None:
    async def inside() -> None:
        async with serving(field, view=Asked(field)) as served:
            await work(served)

    asyncio.run(inside())


def post(served: Served, text: bytes, token: str = "for-ann", path: str = PATH, **headers: str) -> Any:
    given = {"Content-Type": "application/json", **headers}
    return served.get(path, token, method="POST", data=text, headers=given)


def test_users_ask_about_namespaces_whose_pods_they_may_list(field_: Field) -> None:
    async def work(served: Served) -> None:
        status, told = await post(served, body(manifest("asked", 2)))
        assert (status, told["kind"]) == (200, "WhatIf"), told
        assert "biology" not in str(told) and "theirs" not in str(told)
        status, whole = await post(served, body(manifest("asked", 2)), "for-admin")
        assert status == 200
        jobs = [[replace_names(job) for job in each["answer"]["jobs"]] for each in (told, whole)]
        assert jobs[0] == jobs[1]
        other = f"{BASE}/namespaces/biology/whatif"
        status, refused = await post(served, body(manifest("asked", 2)), path=other)
        assert status == 403 and "may not list pods" in refused["message"]
        assert (await post(served, body(manifest("asked", 2)), "for-none"))[0] == 403
        assert (await post(served, body(manifest("asked", 2)), "forged"))[0] == 401
        served.view.leads = False
        assert (await post(served, body(manifest("asked", 2)), "for-admin"))[0] == 503

    run(field_, work)


def replace_names(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "waits_for": []}


def test_absurd_questions_are_refused(field_: Field) -> None:
    async def work(served: Served) -> None:
        good = body(manifest("asked", 1))
        large = b'{"files": [' + b" " * whatif.MAX_BODY + b"]}"
        assert (await post(served, large))[0] == 413

        async def parts() -> Any:
            for _ in range(100):
                yield b" " * 65_536

        assert (await post(served, parts()))[0] == 413, "its size is not said beforehand"
        assert (await post(served, good, **{"Content-Type": "text/plain"}))[0] == 415
        assert (await post(served, good, **{"Content-Encoding": "gzip"}))[0] == 413
        assert (await post(served, good, **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
        assert (await post(served, b"[" * 100_000))[0] == 400
        assert (await post(served, good, path=f"{BASE}/whatif"))[0] == 405
        assert (await post(served, good, path=f"{BASE}/namespaces/physics/queue"))[0] == 405
        assert (await served.get(PATH, "for-ann"))[0] == 404
        foreign = manifest("asked", 1)
        foreign["spec"]["template"]["spec"]["schedulerName"] = "another"
        assert (await post(served, body(foreign)))[0] == 422
        assert (await post(served, good))[0] == 200, "and others are answered"

    run(field_, work)


def test_of_many_questions_at_once_a_user_has_one(field_: Field) -> None:
    async def work(served: Served) -> None:
        many = [post(served, body(manifest("asked", 1))) for _ in range(50)]
        listed, *answers = await asyncio.gather(served.get(f"{BASE}/queue", "for-admin"), *many)
        statuses = [status for status, _ in answers]
        assert listed[0] == 200 and statuses.count(429) >= 40 and set(statuses) == {200, 429}
        assert (await post(served, body(manifest("asked", 1))))[0] == 200

    run(field_, work)


def test_a_question_whose_body_does_not_come_is_dropped(
    field_: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif, "BODY_SECONDS", 0.2)

    async def work(served: Served) -> None:
        async def slowly() -> Any:
            yield b"{"
            await asyncio.sleep(2)
            yield b"}"

        assert (await post(served, slowly()))[0] == 408
        assert (await post(served, body(manifest("asked", 1))))[0] == 200

    run(field_, work)


def test_events_that_the_scheduler_was_not_told_of_count(field_: Field) -> None:
    live = Live(field_)
    live.untold = [Changed(None, node("n9"))]  # type: ignore[attr-defined]
    view = View(live)  # type: ignore[arg-type]

    async def ask() -> dict[str, Any]:
        text = body(manifest("asked", 1))
        answer = await Questions().answer(lambda: view.ask(ADMIN, "physics", text))
        told: dict[str, Any] = json.loads(answer)
        return told

    assert not asyncio.run(ask())["never"]
    assert "n9" not in {each.metadata.name for each in field_.driver.scheduler.state.cluster.columns.nodes}
