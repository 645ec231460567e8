"""Evaluate: an expression's value for an object here, as the API server computes it from the same expression.

A field that is null is absent, as the server has it when it has read the object. An expression becomes a
Python function once; then a value costs a few calls. Whoever sends an object decides how often that is, so
the time grows with the size of the object and no faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fluence.admission import expressions as ex

Names = dict[str, Any]
Compute = Callable[[Names], Any]
"""The value where these names stand for these things. Items of comprehensions are put in and taken out."""

_ABSENT = object()


def evaluate(expr: ex.Expr, names: Mapping[str, Any]) -> Any:
    """The value where these names stand for these things."""
    return compiled(expr)({**names})


def compiled(expr: ex.Expr) -> Compute:
    """The expression as a function. What has a name is computed once for one set of names."""
    match expr:
        case ex.Value(value=value):
            return lambda names: value
        case ex.Name(name=name):
            return lambda names: names[name]
        case ex.Named(name=name, of=of):
            return _named(f"named {name}", compiled(of))
        case ex.Field(of=of, steps=steps, default=default):
            find = _finder(compiled(of), steps)
            return lambda names: default if (found := find(names)) is _ABSENT else found
        case ex.Present(of=of, steps=steps):
            find = _finder(compiled(of), steps)
            return lambda names: find(names) is not _ABSENT
        case ex.Not(term=term):
            negated = compiled(term)
            return lambda names: not negated(names)
        case ex.If(test=test, then=then, otherwise=otherwise):
            asked, one, other = compiled(test), compiled(then), compiled(otherwise)
            return lambda names: one(names) if asked(names) else other(names)
        case ex.ListOf(items=items):
            parts = [compiled(each) for each in items]
            return lambda names: [each(names) for each in parts]
        case ex.MapOf(entries=entries):
            made = [(key, compiled(each)) for key, each in entries]
            return lambda names: {key: each(names) for key, each in made}
        case ex.Patch(op=op, path=path, value=value):
            return _patch(op, compiled(path), None if value is None else compiled(value))
    return _operation(expr)


def _operation(expr: ex.Expr) -> Compute:
    match expr:
        case ex.Every(terms=terms):
            parts = [compiled(each) for each in terms]
            return lambda names: all(each(names) for each in parts)
        case ex.Either(terms=terms):
            parts = [compiled(each) for each in terms]
            return lambda names: any(each(names) for each in parts)
        case ex.Plus(terms=terms):
            parts = [compiled(each) for each in terms]
            return lambda names: _sum([each(names) for each in parts])
        case ex.Equal(left=left, right=right):
            one, other = compiled(left), compiled(right)
            return lambda names: one(names) == other(names)
        case ex.Less(left=left, right=right):
            one, other = compiled(left), compiled(right)
            return lambda names: one(names) < other(names)
        case ex.Times(left=left, right=right):
            one, other = compiled(left), compiled(right)
            return lambda names: one(names) * other(names)
        case ex.Remainder(left=left, right=right):
            one, other = compiled(left), compiled(right)
            return lambda names: one(names) % other(names)
        case ex.Among(item=item, items=items):
            one, other = compiled(item), compiled(items)
            return lambda names: one(names) in other(names)
        case ex.Matches(text=text, pattern=pattern):
            one, like = compiled(text), re.compile(pattern, re.ASCII)
            return lambda names: like.fullmatch(one(names)) is not None
        case ex.Begins(text=text, prefix=prefix):
            one = compiled(text)
            return lambda names: one(names).startswith(prefix)
    return _call(expr)


def _call(expr: ex.Expr) -> Compute:
    match expr:
        case ex.Call(function=function, of=of, arguments=arguments):
            one, more = compiled(of), [compiled(each) for each in arguments]
            return lambda names: _function(function, one(names), [each(names) for each in more])
        case ex.Convert(to=to, of=of):
            return _converted(to, compiled(of))
        case ex.Exists(items=items, name=name, test=test):
            return _exists_with(expr) or _exists(compiled(items), name, compiled(test))
        case ex.Each(items=items, name=name, body=body, where=where):
            return _each(compiled(items), name, compiled(body), compiled(where))
        case ex.EachAt(items=items, index=index, name=name, body=body, where=where):
            return _each(compiled(items), name, compiled(body), compiled(where), index)
    raise TypeError(f"no expression: {expr!r}")


def _named(key: str, of: Compute) -> Compute:
    def compute(names: Names) -> Any:
        found = names.get(key, _ABSENT)
        if found is _ABSENT:
            found = names[key] = of(names)
        return found

    return compute


def _patch(op: str, path: Compute, value: Compute | None) -> Compute:
    if value is None:
        return lambda names: {"op": op, "path": path(names)}
    return lambda names: {"op": op, "path": path(names), "value": value(names)}


def _converted(to: str, of: Compute) -> Compute:
    if to == "int":
        return lambda names: int(of(names))
    if to == "string":
        return lambda names: str(of(names))
    return lambda names: of(names).replace("~", "~0").replace("/", "~1")


def _exists_with(expr: ex.Exists) -> Compute | None:
    """Whether an item has a field with a value that is the same for all: the names of variables, say, of
    which there may be thousands."""
    match expr:
        case ex.Exists(
            items=items,
            name=name,
            test=ex.Equal(
                left=ex.Field(of=ex.Name(name=item), steps=(str(key),), default=default),
                right=(ex.Value() | ex.Name()) as right,
            ),
        ) if item == name and right != ex.Name(name):
            of, wanted = compiled(items), compiled(right)
        case _:
            return None

    def compute(names: Names) -> bool:
        found = wanted(names)
        for each in of(names):
            value = each.get(key) if isinstance(each, dict) else None
            if (default if value is None else value) == found:
                return True
        return False

    return compute


def _exists(items: Compute, name: str, test: Compute) -> Compute:
    def compute(names: Names) -> bool:
        outer = names.get(name)
        for each in items(names):
            names[name] = each
            if test(names):
                names[name] = outer
                return True
        names[name] = outer
        return False

    return compute


def _each(items: Compute, name: str, body: Compute, where: Compute, index: str = "") -> Compute:
    """NB where an index is not asked for, its name is one that no expression has."""

    def compute(names: Names) -> list[Any]:
        outer, place = names.get(name), names.get(index)
        found = []
        for i, each in enumerate(items(names)):
            names[name], names[index] = each, i
            if where(names):
                found.append(body(names))
        names[name], names[index] = outer, place
        return found

    return compute


def _function(function: ex.Function, of: Any, arguments: list[Any]) -> Any:
    match function:
        case "sort":
            return sorted(of)
        case "reverse":
            return list(reversed(of))
        case "flatten":
            return [each for part in of for each in part]
        case "size":
            return len(of)
        case "lowerAscii":
            return "".join(each.lower() if each.isascii() else each for each in of)
        case "split":
            return of.split(*arguments) if arguments != [""] else list(of)
        case "indexOf":
            return of.find(*arguments)
        case "substring":
            return of[arguments[0] : arguments[1]]
        case "sum":
            return sum(of)


def _sum(values: list[Any]) -> Any:
    if not values:
        return []
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _finder(of: Compute, steps: tuple[ex.Step, ...]) -> Compute:
    """What is found by these steps, or that it is absent."""
    keys = [compiled(each) if isinstance(each, ex.Expr) else each for each in steps]

    def compute(names: Names) -> Any:
        value = of(names)
        for step in keys:
            key = step(names) if callable(step) else step
            if isinstance(key, int):
                value = value[key] if isinstance(value, list) and key < len(value) else None
            else:
                value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return _ABSENT
        return value

    return compute
