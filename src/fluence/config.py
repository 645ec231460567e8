"""Config: settings as one struct, from its defaults, a file, the environment and flags, in that order.

A setting is a field with a type and a description; everything else follows from it: the key in the file
(``queue-policy``), the variable (``FLUENCE_QUEUE_POLICY``), the flag (``--queue-policy``) and the row in the
documentation. An unknown key is an error that names the nearest known one: a setting that is silently ignored
is worse than a program that does not start.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import yaml

from fluence import yaml_loader
from fluence.errors import InvalidInput
from fluence.units import parse_duration

PREFIX = "FLUENCE_"
_PASSWORD = re.compile(r"(://[^/@:]*:).*(?=@)|([?&]password=)[^&]*")
S = TypeVar("S", bound=msgspec.Struct)

_UNIONS = (typing.Union, types.UnionType)
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One field, and its names everywhere."""

    field: str
    type: Any
    default: Any
    text: str  # what it does
    unit: str  # "seconds", "ms", …; "" if it has none
    choices: tuple[str, ...]
    also: str = ""  # another variable that is also read
    secret: bool = False  # it may hold a password

    @property
    def key(self) -> str:
        return self.field.replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()

    @property
    def kind(self) -> str:
        """bool, int, float, str, list or map."""
        return _kind(self.type)

    @property
    def value_kind(self) -> str:
        """The kind of the values of a map; for other settings, their own kind."""
        return _kind(typing.get_args(_plain(self.type))[1]) if self.kind == "map" else self.kind

    @property
    def is_optional(self) -> bool:
        return typing.get_origin(self.type) in _UNIONS and type(None) in typing.get_args(self.type)

    def show(self, value: Any) -> str:
        """A value as it would be written in the environment."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, Mapping):
            return ",".join(f"{key}={part}" for key, part in value.items())
        if isinstance(value, tuple):
            return ",".join(value)
        if self.secret:
            return masked(str(value))
        return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(of: Any) -> Any:
    """A type without `None` and without annotations."""
    if typing.get_origin(of) in _UNIONS:
        of = next(alternative for alternative in typing.get_args(of) if alternative is not type(None))
    return typing.get_args(of)[0] if typing.get_origin(of) is typing.Annotated else of


def _kind(of: Any) -> str:
    plain = _plain(of)
    origin = typing.get_origin(plain) or plain
    return {tuple: "list", dict: "map"}.get(origin, getattr(origin, "__name__", "str"))


@dataclass(frozen=True, slots=True)
class Loaded(typing.Generic[S]):
    """Settings, and the source of each that is not the default."""

    settings: S
    origins: Mapping[str, str]


def settings_of(shape: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """The fields of a struct as settings, in their order."""
    hints = typing.get_type_hints(shape, include_extras=True)
    settings = []
    for field in msgspec.structs.fields(shape):
        hint = hints[field.name]
        meta = next(
            (
                annotation
                for annotation in getattr(hint, "__metadata__", ())
                if isinstance(annotation, msgspec.Meta)
            ),
            None,
        )
        extra = (meta.extra if meta is not None else None) or {}
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        settings.append(
            Setting(
                field=field.name,
                type=typing.get_args(hint)[0] if meta is not None else hint,
                default=default,
                text=(meta.description if meta is not None else "") or "",
                unit=str(extra.get("unit", "")),
                choices=tuple(extra.get("choices", ())),
                also=str(extra.get("also", "")),
                secret=bool(extra.get("secret", False)),
            )
        )
    return tuple(settings)


def load(
    shape: type[S],
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    base: Mapping[str, object] | None = None,
) -> Loaded[S]:
    """Settings from all sources; a later source wins. ``flags``: by field, only those that were given.
    ``base``: by field, in place of the defaults."""
    values: dict[str, object] = dict(base or {})
    origins: dict[str, str] = {}
    for setting, value, origin in (
        *_from_file(shape, file),
        *_from_environment(shape, environ or {}),
        *_from_flags(shape, flags or {}),
    ):
        values[setting.field] = _convert(setting, value, origin)
        origins[setting.field] = origin
    try:
        return Loaded(msgspec.convert(values, shape), origins)
    except msgspec.ValidationError as error:
        raise _explain(shape, error, origins, values) from None
    except InvalidInput as error:
        where = origins.get(error.where.replace("-", "_"))
        raise InvalidInput(f"{error} (from {where})" if where else str(error)) from None


def _from_file(shape: type[msgspec.Struct], file: str | None) -> Iterator[tuple[Setting, object, str]]:
    if file is None:
        return
    try:
        with open(file, encoding="utf-8") as stream:  # noqa: PTH123 - a name for messages, not a Path
            document = yaml_loader.load(stream.read())
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}: give --config a file that can be read") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = f" at line {line + 1}" if line is not None else ""
        raise InvalidInput(f"{file}: this is not valid YAML{place}: write KEY: VALUE lines") from None
    if document is None:
        return
    if not isinstance(document, dict):
        raise InvalidInput(f"{file}: must be a mapping of settings, such as queue-policy: easy")
    known = {setting.key: setting for setting in settings_of(shape)}
    for key, value in document.items():
        name = str(key).replace("_", "-")
        if name not in known:
            raise InvalidInput(f"{file}: no setting is called {key!r}{_nearest(name, known)}")
        yield known[name], value, f"{file}: {key}"


def _from_environment(
    shape: type[msgspec.Struct], environ: Mapping[str, str]
) -> Iterator[tuple[Setting, object, str]]:
    # Unknown variables are ignored: other programs share the prefix (FLUENCE_HANDLERS).
    for setting in settings_of(shape):
        for variable in (setting.also, setting.variable):  # the later one wins
            if variable in environ:
                yield setting, environ[variable], variable


def _from_flags(
    shape: type[msgspec.Struct], flags: Mapping[str, object]
) -> Iterator[tuple[Setting, object, str]]:
    for setting in settings_of(shape):
        value = flags.get(setting.field)
        if value is not None and value != ():
            yield setting, value, setting.flag


def _nearest(name: str, known: Mapping[str, Setting]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else f": there are {', '.join(known)}"


# -- values --------------------------------------------------------------------------------------------------


def _convert(setting: Setting, value: object, origin: str) -> object:
    """Convert text from a file, a variable or a flag to the type of the setting."""
    kind = setting.kind
    if value is None or (value == "" and setting.is_optional):
        if setting.is_optional:
            return None
        raise InvalidInput(f"{origin}: needs a value, such as {setting.show(setting.default)!r}")
    if kind == "list":
        return _items(setting, value, origin)
    if kind == "map":
        return {
            key: _value(setting, part, f"{origin}: {key}") for key, part in _pairs(setting, value, origin)
        }
    value = _value(setting, value, origin)
    if setting.choices and value not in setting.choices:
        raise InvalidInput(f"{origin}: {value!r} is not one of {', '.join(setting.choices)}")
    return value


def _value(setting: Setting, value: object, origin: str) -> object:
    """One value, or one of a map."""
    kind = setting.value_kind
    if isinstance(value, str) and kind != "str":
        return _number(setting, value.strip(), origin)
    if kind == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def _number(setting: Setting, text: str, origin: str) -> object:
    kind = setting.value_kind
    if kind == "bool":
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise InvalidInput(f"{origin}: {text!r} is neither true nor false")
    if setting.unit in ("seconds", "ms"):
        amount = parse_duration(text) if not (setting.unit == "ms" and text.isdecimal()) else int(text)
        if amount is None:
            raise InvalidInput(f"{origin}: {text!r} is not a valid time: write {setting.unit}, or 2h30m")
        if setting.unit == "ms":
            return amount
        return amount / 1000 if kind == "float" else -(-amount // 1000)
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise InvalidInput(f"{origin}: {text!r} is not a valid number") from None


def _pairs(setting: Setting, value: object, origin: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
        return
    for item in _items(setting, value, origin):
        key, equals, part = item.partition("=")
        if not (key and equals and part):
            raise InvalidInput(f"{origin}: {item!r} must be NAME=VALUE")
        yield key, part


def _items(setting: Setting, value: object, origin: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Sequence):
        return tuple(part for item in value for part in _items(setting, str(item), origin))
    if isinstance(value, dict):
        return tuple(f"{key}={part}" for key, part in value.items())
    raise InvalidInput(f"{origin}: must be a list, such as [{setting.show(setting.default)}]")


def _explain(
    shape: type[msgspec.Struct],
    error: msgspec.ValidationError,
    origins: Mapping[str, str],
    values: Mapping[str, object],
) -> InvalidInput:
    """The message of msgspec with the place where the user wrote the value."""
    text = str(error)
    for setting in settings_of(shape):
        if f"$.{setting.field}`" in text or f"$.{setting.field}[" in text:
            reason = text.partition(" - at")[0]
            origin = origins.get(setting.field, setting.key)
            return InvalidInput(f"{origin}: {setting.show(values.get(setting.field))!r}: {reason}")
    return InvalidInput(text)


def masked(text: str) -> str:
    """A URL without its password."""
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2]}***", text)


# -- tables --------------------------------------------------------------------------------------------------


def markdown(shape: type[msgspec.Struct]) -> str:
    """The table of all settings, for the documentation."""
    lines = ["| Key, flag and variable | Default | What it does |", "|---|---|---|"]
    for setting in settings_of(shape):
        default = f"`{setting.show(setting.default)}`" if setting.show(setting.default) else "–"
        unit = f" {setting.unit}" if setting.unit and setting.default is not None else ""
        one = f" One of {', '.join(f'`{choice}`' for choice in setting.choices)}." if setting.choices else ""
        text = setting.text.replace("|", "\\|")
        if setting.unit and setting.default is None:
            text += f" In {setting.unit}."
        if setting.also:
            text += f" The variable `{setting.also}` is read, too."
        lines.append(
            f"| `{setting.key}`<br>`{setting.flag}`<br>`{setting.variable}` | {default}{unit} | {text}{one} |"
        )
    return "\n".join(lines) + "\n"
