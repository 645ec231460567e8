"""NodeVolumeLimits by example."""

from __future__ import annotations

from fluence.cluster.filters.csi_limits import AttachRoom, CsiLimits

POSITION = {"n1": 0, "n2": 1, "n3": 2}
DRIVER = "csi.example"
A, B = ("d", "a"), ("d", "b")


def limits() -> CsiLimits:
    made = CsiLimits()
    made.set_limits("n1", {DRIVER: 2})
    made.set_limits("n2", {DRIVER: 1, "other": 0})
    return made


def test_a_claim_counts_once_on_each_node() -> None:
    made = limits()
    made.set_driver(A, DRIVER)
    for _ in range(2):
        made.attach(A, "n1")
    assert made.room(DRIVER, POSITION).tolist()[:2] == [1, 1] and made.nodes(A) == {"n1"}
    made.detach(A, "n1")
    assert made.room(DRIVER, POSITION).tolist()[:2] == [2, 1] and made.nodes(A) == set()


def test_the_driver_of_a_claim_may_be_known_late() -> None:
    made = limits()
    made.attach(A, "n2")
    assert made.room(DRIVER, POSITION)[1] == 1
    made.set_driver(A, DRIVER)
    assert made.room(DRIVER, POSITION)[1] == 0
    made.set_driver(A, "")
    assert made.room(DRIVER, POSITION)[1] == 1


def test_limits_say_whether_they_are_new() -> None:
    made = limits()
    assert not made.set_limits("n1", {DRIVER: 2}) and made.set_limits("n1", {DRIVER: 3})
    assert made.limited == {DRIVER, "other"}
    made.set_limits("n2", {})
    assert made.limited == {DRIVER}


def test_a_gang_fills_the_room_and_shares_what_is_attached() -> None:
    made = limits()
    made.set_driver(A, DRIVER)
    made.attach(A, "n2")
    own, shared = ((None, DRIVER),), ((A, DRIVER),)
    room = AttachRoom(made, {*own, *shared}, POSITION)

    def open_(attachments: tuple[tuple[tuple[str, str] | None, str], ...]) -> list[bool]:
        ((_, mask),) = room.open_nodes(attachments)
        return mask.tolist()

    assert open_(own) == [True, False, True] and open_(shared) == [True, True, True]
    assert open_((*own, *own)) == [True, False, True]
    room.assign(own, 0)
    room.assign(shared, 0)
    assert open_(own) == [False, False, True] and open_(shared) == [True, True, True]
    assert list(room.open_nodes(())) == []
