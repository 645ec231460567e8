"""Expressions: as CEL, and their values here. That both agree is shown on a real server."""

import pytest

from fluence.admission import expressions as ex
from fluence.admission.cel import to_cel, variables_of
from fluence.admission.evaluate import evaluate
from fluence.admission.json_patch import apply
from fluence.errors import InvalidInput

OBJECT = ex.Name("object")
NAMES = {"object": {"a": {"b/c": "x", "n": None, "l": ["p", "q"]}, "m": {"k": 1}, "t": "über"}}


@pytest.mark.parametrize(
    ("expr", "cel", "value"),
    [
        (ex.Field(OBJECT, ("a", "b/c")), "object.?a[?'b/c'].orValue('')", "x"),
        (ex.Field(OBJECT, ("a", "no"), []), "object.?a.?no.orValue([])", []),
        (ex.Field(OBJECT, ("a", "l", 1)), "object.?a.?l[?1].orValue('')", "q"),
        (ex.Field(OBJECT, ("a", "l", 9)), "object.?a.?l[?9].orValue('')", ""),
        (ex.Field(OBJECT, ("a", ex.Value("b/c"))), "object.?a[?'b/c'].orValue('')", "x"),
        (ex.Present(OBJECT, ("a", "n")), "object.?a.?n.hasValue()", False),
        (ex.Not(ex.Present(OBJECT, ("m",))), "!object.?m.hasValue()", False),
        (ex.Every(), "true", True),
        (ex.Either(), "false", False),
        (ex.Plus(), "[]", []),
        (ex.Plus(ex.Value("a"), ex.Value("'\\b")), "('a' + '\\'\\\\b')", "a'\\b"),
        (ex.Plus(ex.Value(3), ex.Value(-1)), "(3 + -1)", 2),
        (ex.Less(ex.Value(1), ex.Value(2)), "(1 < 2)", True),
        (ex.Remainder(ex.Times(ex.Value(7), ex.Value(3)), ex.Value(5)), "((7 * 3) % 5)", 1),
        (ex.If(ex.Value(False), ex.Value(1), ex.Value(2)), "(false ? 1 : 2)", 2),
        (ex.Among(ex.Value("k"), ex.Field(OBJECT, ("m",), {})), "('k' in object.?m.orValue({}))", True),
        (ex.Matches(ex.Value("12\n"), "[0-9]+"), "'12\n'.matches('^(?:[0-9]+)$')", False),
        (ex.Begins(ex.Value("ab"), "a"), "'ab'.startsWith('a')", True),
        (ex.Convert("int", ex.Value("07")), "int('07')", 7),
        (ex.Convert("jsonpatch.escapeKey", ex.Value("a~/b")), "jsonpatch.escapeKey('a~/b')", "a~0~1b"),
        (ex.Call("split", ex.Value("ab"), (ex.Value(""),)), "'ab'.split('')", ["a", "b"]),
        (ex.Call("size", ex.Field(OBJECT, ("t",))), "object.?t.orValue('').size()", 4),
        (
            ex.Each(ex.Field(OBJECT, ("a", "l"), []), "x", ex.Name("x"), ex.Begins(ex.Name("x"), "q")),
            "object.?a.?l.orValue([]).map(x, x.startsWith('q'), x)",
            ["q"],
        ),
        (
            ex.EachAt(ex.Field(OBJECT, ("a", "l"), []), "i", "x", ex.Convert("string", ex.Name("i"))),
            "object.?a.?l.orValue([]).transformList(i, x, true, string(i))",
            ["0", "1"],
        ),
        (
            ex.Patch("add", ex.Value("/a"), ex.MapOf((("n", ex.Value(1)),))),
            "JSONPatch{op: 'add', path: '/a', value: {'n': dyn(1)}}",
            {"op": "add", "path": "/a", "value": {"n": 1}},
        ),
        (
            ex.Patch("remove", ex.Value("/a")),
            "JSONPatch{op: 'remove', path: '/a'}",
            {"op": "remove", "path": "/a"},
        ),
    ],
)
def test_an_expression_as_cel_and_its_value(expr: ex.Expr, cel: str, value: object) -> None:
    assert to_cel(expr) == cel
    assert evaluate(expr, NAMES) == value


def test_what_has_a_name_is_said_once_and_after_what_it_reads() -> None:
    inner = ex.Named("inner", ex.Value(1))
    outer = ex.Named("outer", ex.Plus(inner, inner))
    assert list(variables_of([ex.ListOf(outer, inner)])) == ["inner", "outer"]
    assert to_cel(outer) == "variables.outer"
    assert to_cel(outer, inline=True) == "(1 + 1)"
    assert evaluate(outer, {}) == 2


def test_a_name_for_two_things_is_a_fault() -> None:
    with pytest.raises(ValueError, match="two expressions are called x"):
        variables_of([ex.Named("x", ex.Value(1)), ex.Named("x", ex.Value(2))])


def test_a_patch_leaves_the_original_alone() -> None:
    before = {"a": [1, 2], "b": {"c/d": 1}}
    operations = [
        {"op": "add", "path": "/a/0", "value": 0},
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "remove", "path": "/b/c~1d"},
    ]
    assert apply(before, operations) == {"a": [0, 1, 2, 3], "b": {}}
    assert before == {"a": [1, 2], "b": {"c/d": 1}}


@pytest.mark.parametrize("path", ["/x/y", "/a/9/z", "/a/x"])
def test_a_path_that_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(InvalidInput, match=path):
        apply({"a": [1]}, [{"op": "add", "path": path, "value": 1}])
