"""CEL: an expression as the API server reads it, in admission policies and in match conditions.

Optional steps (``object.?spec.?env``), comprehensions with an index and the functions of lists are in every
release since 1.34; a policy needs 1.36 anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from fluence.admission import expressions as ex

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_cel(expr: ex.Expr, *, inline: bool = False) -> str:
    """The expression in one line. What has a name is read from the policy's variables, or stands ``inline``
    where there are none: in a match condition."""
    return _Printer(inline).show(expr)


def variables_of(exprs: Iterable[ex.Expr]) -> dict[str, ex.Expr]:
    """What has a name in these, each after those that it reads itself."""
    found: dict[str, ex.Expr] = {}
    for expr in exprs:
        _collect(expr, found)
    return found


def _collect(part: object, found: dict[str, ex.Expr]) -> None:
    if isinstance(part, tuple):
        for each in part:
            _collect(each, found)
    elif isinstance(part, ex.Expr):
        for each in fields(part):  # type: ignore[arg-type]  # every expression is a dataclass
            _collect(getattr(part, each.name), found)
        if isinstance(part, ex.Named) and found.setdefault(part.name, part.of) != part.of:
            raise ValueError(f"two expressions are called {part.name}")


class _Printer:
    def __init__(self, inline: bool) -> None:
        self._inline = inline

    def show(self, expr: ex.Expr) -> str:
        show = self.show
        match expr:
            case ex.Value(value=value):
                return _literal(value)
            case ex.Name(name=name):
                return name
            case ex.Named(name=name, of=of):
                return show(of) if self._inline else f"variables.{name}"
            case ex.Field(of=of, steps=steps, default=default):
                return f"{show(of)}{self._steps(steps)}.orValue({_literal(default)})"
            case ex.Present(of=of, steps=steps):
                return f"{show(of)}{self._steps(steps)}.hasValue()"
            case ex.Not(term=term):
                return f"!{show(term)}"
            case ex.Patch(op=op, path=path, value=value):
                shown = "" if value is None else f", value: {show(value)}"
                return f"JSONPatch{{op: '{op}', path: {show(path)}{shown}}}"
            case ex.ListOf(items=items):
                return f"[{', '.join(map(show, items))}]"
            case ex.MapOf(entries=entries):
                # The values of a literal are of one type, unless each is said to be of any.
                return "{" + ", ".join(f"{_literal(key)}: dyn({show(each)})" for key, each in entries) + "}"
            case ex.If(test=test, then=then, otherwise=otherwise):
                return f"({show(test)} ? {show(then)} : {show(otherwise)})"
        return self._operation(expr)

    def _operation(self, expr: ex.Expr) -> str:
        match expr:
            case ex.Every(terms=terms):
                return self._joined("&&", terms)
            case ex.Either(terms=terms):
                return self._joined("||", terms)
            case ex.Plus(terms=terms):
                return self._joined("+", terms)
            case ex.Equal(left=left, right=right):
                return self._joined("==", (left, right))
            case ex.Less(left=left, right=right):
                return self._joined("<", (left, right))
            case ex.Times(left=left, right=right):
                return self._joined("*", (left, right))
            case ex.Remainder(left=left, right=right):
                return self._joined("%", (left, right))
            case ex.Among(item=item, items=items):
                return self._joined("in", (item, items))
            case ex.Matches(text=text, pattern=pattern):
                return f"{self.show(text)}.matches({_literal(f'^(?:{pattern})$')})"
            case ex.Begins(text=text, prefix=prefix):
                return f"{self.show(text)}.startsWith({_literal(prefix)})"
        return self._call(expr)

    def _call(self, expr: ex.Expr) -> str:
        show = self.show
        match expr:
            case ex.Call(function=function, of=of, arguments=arguments):
                return f"{show(of)}.{function}({', '.join(map(show, arguments))})"
            case ex.Convert(to=to, of=of):
                return f"{to}({show(of)})"
            case ex.Exists(items=items, name=name, test=test):
                return f"{show(items)}.exists({name}, {show(test)})"
            case ex.Each(items=items, name=name, body=body, where=where):
                wanted = "" if where == ex.Value(True) else f"{show(where)}, "
                return f"{show(items)}.map({name}, {wanted}{show(body)})"
            case ex.EachAt(items=items, index=index, name=name, body=body, where=where):
                return f"{show(items)}.transformList({index}, {name}, {show(where)}, {show(body)})"
        raise TypeError(f"no expression: {expr!r}")

    def _steps(self, steps: tuple[ex.Step, ...]) -> str:
        text = ""
        for step in steps:
            if isinstance(step, str) and _IDENTIFIER.fullmatch(step):
                text += f".?{step}"
            else:
                text += f"[?{self.show(step) if isinstance(step, ex.Expr) else _literal(step)}]"
        return text

    def _joined(self, operator: str, terms: tuple[ex.Expr, ...]) -> str:
        """Always in parentheses, so that nothing depends on who binds closer."""
        if len(terms) == 1:
            return self.show(terms[0])
        if not terms:
            return {"&&": "true", "||": "false", "+": "[]"}[operator]
        return "(" + f" {operator} ".join(map(self.show, terms)) + ")"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if value in ([], {}):
        return "[]" if isinstance(value, list) else "{}"
    raise TypeError(f"no literal: {value!r}")
