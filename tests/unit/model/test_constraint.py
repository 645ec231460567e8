import pytest

from fluence.errors import InvalidJobspec
from fluence.model.constraint import Constraint, parse
from fluence.model.document import Plain

XX, YY, ZZ = ({"properties": [p]} for p in ("xx", "yy", "zz"))


@pytest.mark.parametrize(
    ("value", "matches"),
    [
        ({}, True),
        ({"properties": []}, True),
        ({"properties": ["xx", "yy"]}, True),
        ({"properties": ["xx", "zz"]}, False),
        ({"properties": ["^xx"]}, False),
        ({"properties": ["^zz", "yy"]}, True),
        ({"and": []}, True),
        ({"and": [XX, YY]}, True),
        ({"and": [XX, ZZ]}, False),
        ({"or": []}, False),
        ({"or": [ZZ, YY]}, True),
        ({"or": [ZZ]}, False),
        ({"not": []}, False),
        ({"not": [XX]}, False),
        ({"not": [XX, ZZ]}, True),
        ({"not": [{"or": [ZZ, YY]}]}, False),
        ({"hostlist": ["foo[0-2]"]}, True),
        ({"hostlist": ["foo[1-3]", "bar"]}, False),
        ({"hostlist": []}, False),
        ({"ranks": ["0-2"]}, True),
        ({"ranks": ["4-5", 0]}, True),
        ({"ranks": ["1-3"]}, False),
        ({"ranks": []}, False),
    ],
)
def test_matches(value: object, matches: bool) -> None:
    constraint = parse(value)
    assert constraint.matches("foo0", 0, {"xx": "t", "yy": "t"}) is matches
    assert parse(constraint.to_value()) == constraint
    assert hash(parse(constraint.to_value())) == hash(constraint)


def test_no_rank_is_in_no_set_of_ranks() -> None:
    assert not parse({"ranks": ["0-100"]}).matches("n", -1, ())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "c: must be a mapping"),
        (None, "c: must be a mapping"),
        ({"foo": []}, "c: 'foo' is no operator"),
        ({"properties": ["x"], "hostlist": ["f"]}, 'c: has .* join several operators with "and"'),
        ({"and": "foo"}, "c.and: must be a list"),
        ({"or": [{}, {"not": [1]}]}, r"c.or\[1\].not\[0\]: must be a mapping"),
        ({"properties": ["foo", 42]}, r"c.properties\[1\]: must be text in quotes, not 42"),
        ({"properties": [Plain("foo")]}, r"c.properties\[0\]: must be text in quotes, not foo"),
        ({"properties": ["bar&"]}, r"c.properties\[0\]: property 'bar&' has & in it"),
        ({"properties": ["^b^"]}, r"c.properties\[0\]: property '\^b\^' has \^ in it"),
        ({"hostlist": ["foo0-10]"]}, r"c.hostlist\[0\]: hostlist 'foo0-10]' has unbalanced brackets"),
        ({"hostlist": [[]]}, r"c.hostlist\[0\]: must be text, not a list"),
        ({"ranks": ["5,1-3"]}, r"c.ranks\[0\]: idset '5,1-3': '1-3' is out of order"),
    ],
)
def test_errors_name_the_place(value: object, message: str) -> None:
    with pytest.raises(InvalidJobspec, match=f"^{message}"):
        parse(value, "c")


def test_fold_turns_the_tree_into_sets() -> None:
    nodes = {"a0": (0, ("gpu",)), "a1": (1, ()), "b0": (2, ("gpu", "big"))}
    everyone = (1 << len(nodes)) - 1

    def leaf(c: Constraint) -> int:
        return sum(c.matches(n, r, p) << i for i, (n, (r, p)) in enumerate(nodes.items()))

    def every(sets: list[int]) -> int:
        result = everyone
        for s in sets:
            result &= s
        return result

    def some(sets: list[int]) -> int:
        result = 0
        for s in sets:
            result |= s
        return result

    value = {"or": [{"not": [{"properties": ["gpu"]}, {"hostlist": ["a[0-9]"]}]}, {"ranks": ["9"]}]}
    constraint = parse(value)
    folded = constraint.fold(leaf, every=every, some=some, negate=lambda s: everyone & ~s)
    assert folded == leaf(constraint) == 0b110


def test_describe_is_for_people() -> None:
    value = {"and": [{"or": [{"hostlist": ["n[0-3]"]}, {"ranks": [7]}]}, {"properties": ["gpu", "^old"]}]}
    assert parse(value).describe() == "(host in n[0-3] or rank in 7) and property gpu and no property old"
    assert parse({"or": []}).describe() == "nothing"
    assert Constraint().describe() == "anything"
