"""Evaluate: an expression's value for an object here, as the API server computes it from the same expression.

A field that is null is absent, as the server has it when it has read the object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fluence.admission import expressions as ex

_ABSENT = object()


def evaluate(expr: ex.Expr, names: Mapping[str, Any]) -> Any:
    """The value where these names stand for these things."""
    match expr:
        case ex.Value(value=value):
            return value
        case ex.Name(name=name):
            return names[name]
        case ex.Named(of=of):
            return evaluate(of, names)
        case ex.Field(of=of, steps=steps, default=default):
            found = _found(evaluate(of, names), steps, names)
            return default if found is _ABSENT else found
        case ex.Present(of=of, steps=steps):
            return _found(evaluate(of, names), steps, names) is not _ABSENT
        case ex.Not(term=term):
            return not evaluate(term, names)
        case ex.If(test=test, then=then, otherwise=otherwise):
            return evaluate(then if evaluate(test, names) else otherwise, names)
        case ex.ListOf(items=items):
            return [evaluate(each, names) for each in items]
        case ex.MapOf(entries=entries):
            return {key: evaluate(each, names) for key, each in entries}
        case ex.Patch(op=op, path=path, value=value):
            found = {"op": op, "path": evaluate(path, names)}
            return found if value is None else {**found, "value": evaluate(value, names)}
    return _operation(expr, names)


def _operation(expr: ex.Expr, names: Mapping[str, Any]) -> Any:
    match expr:
        case ex.Every(terms=terms):
            return all(evaluate(each, names) for each in terms)
        case ex.Either(terms=terms):
            return any(evaluate(each, names) for each in terms)
        case ex.Plus(terms=terms):
            return _sum([evaluate(each, names) for each in terms])
        case ex.Equal(left=left, right=right):
            return evaluate(left, names) == evaluate(right, names)
        case ex.Less(left=left, right=right):
            return evaluate(left, names) < evaluate(right, names)
        case ex.Times(left=left, right=right):
            return evaluate(left, names) * evaluate(right, names)
        case ex.Remainder(left=left, right=right):
            return evaluate(left, names) % evaluate(right, names)
        case ex.Among(item=item, items=items):
            return evaluate(item, names) in evaluate(items, names)
        case ex.Matches(text=text, pattern=pattern):
            return re.fullmatch(pattern, evaluate(text, names), re.ASCII) is not None
        case ex.Begins(text=text, prefix=prefix):
            return evaluate(text, names).startswith(prefix)
    return _call(expr, names)


def _call(expr: ex.Expr, names: Mapping[str, Any]) -> Any:
    match expr:
        case ex.Call(function=function, of=of, arguments=arguments):
            return _function(function, evaluate(of, names), [evaluate(each, names) for each in arguments])
        case ex.Convert(to=to, of=of):
            value = evaluate(of, names)
            if to == "int":
                return int(value)
            return str(value) if to == "string" else value.replace("~", "~0").replace("/", "~1")
        case ex.Exists(items=items, name=name, test=test):
            return any(evaluate(test, {**names, name: each}) for each in evaluate(items, names))
        case ex.Each(items=items, name=name, body=body, where=where):
            inner = [{**names, name: each} for each in evaluate(items, names)]
            return [evaluate(body, each) for each in inner if evaluate(where, each)]
        case ex.EachAt(items=items, index=index, name=name, body=body, where=where):
            inner = [{**names, index: i, name: each} for i, each in enumerate(evaluate(items, names))]
            return [evaluate(body, each) for each in inner if evaluate(where, each)]
    raise TypeError(f"no expression: {expr!r}")


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


def _found(value: Any, steps: tuple[ex.Step, ...], names: Mapping[str, Any]) -> Any:
    for step in steps:
        key = evaluate(step, names) if isinstance(step, ex.Expr) else step
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and key < len(value) else None
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return _ABSENT
    return value
