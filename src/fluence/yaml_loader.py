"""YAML loader: reads untrusted YAML safely. Every program reads YAML through it.

A few lines of aliases can expand to billions of values, and deep nesting ends the process, because libyaml's
reader recurses in C. Both are refused before anything is built, with an error that names the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from fluence.errors import InvalidInput

DEEPEST: Final = 100
MAX_NODES_BY_ALIASES: Final = 100_000
"""How many values aliases may add to the written ones."""

# CSafeLoader is PyYAML's name for libyaml; the pure loader is thirty times slower and gives the same result.
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BoundedLoader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader with bounds on nesting and on aliases."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._depth = 0
        self._has_aliases = "*" in stream if isinstance(stream, str) else b"*" in stream

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        """Called by PyYAML as it enters a value."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"is nested over {DEEPEST} levels deep; make it flatter", current_node)

    def ascend_resolver(self) -> None:
        self._depth -= 1

    def get_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_node()
        return _checked(node) if self._has_aliases else node

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        return _checked(node) if self._has_aliases else node


def load(text: str | bytes, *, loader: type[BoundedLoader] = BoundedLoader) -> Any:
    """The only document of a text. Raises yaml.YAMLError with a line."""
    return yaml.load(text, Loader=loader)


def load_all(text: str | bytes) -> Iterator[Any]:
    """The documents of a text, one by one."""
    documents: Iterator[Any] = yaml.load_all(text, Loader=BoundedLoader)
    return documents


def read_documents(text: bytes, source: str) -> list[Any]:
    """The documents of a text of the user's, or `InvalidInput` with what is wrong in it."""
    try:
        return list(load_all(text))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"is not valid YAML: {problem(error)}", where=source) from None


def compose(text: str | bytes, *, loader: type[BoundedLoader] = BoundedLoader) -> yaml.Node | None:
    """The only document of a text, as nodes with their positions."""
    root: yaml.Node | None = yaml.compose(text, Loader=loader)
    return root


def problem(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """The problem in one line, with its position."""
    mark, message = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}: {message}" if mark and message else " ".join(str(error).split())


def _checked(root: yaml.Node | None) -> yaml.Node | None:
    """Count the expanded values of a document, looking at each node once, however often aliases name it."""
    if root is None or isinstance(root, yaml.ScalarNode):
        return root
    sizes: dict[int, int] = {}  # by node; 0 while its contents are counted
    heights: dict[int, int] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        below = _children(node)
        if id(node) not in sizes:
            sizes[id(node)] = 0
            waiting.extend(child for child in below if id(child) not in sizes)
            if any(sizes.get(id(child)) == 0 for child in below):
                raise _refused("refers to itself through an alias; write the value out", node)
            continue
        waiting.pop()
        if sizes[id(node)]:
            continue  # two aliases in one value put it into the list twice
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in below)
        heights[id(node)] = 1 + max((heights[id(child)] for child in below), default=0)
        if sizes[id(node)] > len(sizes) + MAX_NODES_BY_ALIASES:
            raise _refused(
                f"stands for over {MAX_NODES_BY_ALIASES} values through its aliases; write fewer", node
            )
        if heights[id(node)] > DEEPEST:
            raise _refused(f"is nested over {DEEPEST} levels deep; make it flatter", node)
    return root


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _refused(problem: str, node: yaml.Node | None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=None if node is None else node.start_mark)
