"""Reads the configuration file, keeps the line of every key, and turns errors into one clear line.

The order of authority: environment over file over defaults. `POLICY_SERVER__GRPC` sets
`server.grpc`, `POLICY_POOLS__0__LIMIT__MAX` the first pool's `limit.max`; values are YAML.
"""

from __future__ import annotations

import difflib
import itertools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Union

import yaml
from pydantic import BaseModel, ValidationError

ENV_PREFIX = "POLICY_"
Key = tuple[str | int, ...]


class ConfigError(Exception):
    """A mistake in the configuration; its message is one line for the person who made it."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


@dataclass
class Source:
    """The raw data, and where each key of it came from."""

    path: Path | None = None
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Key, int] = field(default_factory=dict)
    variables: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """The place of `key`, of something set below it, or of its nearest located parent."""
        below = [name for path, name in self.variables.items() if path[: len(key)] == key]
        if below and key not in self.lines:
            return f"environment variable {below[0]}"
        for length in range(len(key), 0, -1):
            if key[:length] in self.variables:
                return f"environment variable {self.variables[key[:length]]}"
            if key[:length] in self.lines:
                return f"{self.path}:{self.lines[key[:length]]}"
        return str(self.path or "configuration")


def read(path: Path | None) -> Source:
    """The file's data; an empty or absent (None) file is an empty mapping."""
    if path is None:
        return Source()
    text = _read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(_yaml_problem(path, error)) from None
    if data is None:
        return Source(path)
    if not isinstance(data, dict) or not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: the file must hold keys such as `pools:`; see the README")
    return Source(path, data, _lines(path, node))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; check the --config path") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read ({reason}); give a readable file") from None


def _yaml_problem(path: Path, error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        place = f"{path}:{error.problem_mark.line + 1}"
        return f"{place}: not valid YAML ({error.problem}); check indentation and quotes"
    reason = str(error) or type(error).__name__
    return f"{path}: not valid YAML ({reason}); check indentation and quotes"


def _lines(path: Path, root: yaml.MappingNode) -> dict[Key, int]:
    lines: dict[Key, int] = {}
    for key, node in _walk((), root, set()):
        if key in lines:
            name, first = dotted(key), lines[key]
            line = node.start_mark.line + 1
            raise ConfigError(f"{path}:{line}: {name}: already set on line {first}; remove one")
        lines[key] = node.start_mark.line + 1
    return lines


def _walk(prefix: Key, node: yaml.Node, open_nodes: set[int]) -> Iterator[tuple[Key, yaml.Node]]:
    """Every key under `node` with the node that carries its line; recursive anchors end there."""
    if id(node) in open_nodes:
        return
    open_nodes.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if isinstance(name, yaml.ScalarNode) and name.tag != "tag:yaml.org,2002:merge":
                yield (*prefix, name.value), name
                yield from _walk((*prefix, name.value), value, open_nodes)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*prefix, index), value
            yield from _walk((*prefix, index), value, open_nodes)
    open_nodes.discard(id(node))


def apply_env(source: Source, env: Mapping[str, str], root: type[BaseModel]) -> None:
    """Writes the overrides of `env` into `source`. Names without `__` that are no key are not ours.

    Raises ConfigError for a name that looks like ours and leads nowhere.
    """
    for variable in sorted(env):
        parts = variable.removeprefix(ENV_PREFIX).split("__")
        if not variable.startswith(ENV_PREFIX):
            continue
        if len(parts) == 1 and parts[0].lower() not in root.model_fields:
            continue
        key = _resolve(variable, parts, root)
        _set(source, variable, key, _value(env[variable]))


def _value(text: str) -> Any:
    """The variable's value as YAML; what is none, such as `[::1]:9002`, is meant as text."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return text


def _resolve(variable: str, parts: list[str], root: type[BaseModel]) -> Key:
    key: Key = ()
    for part in parts:
        kind = _type_at(root, key)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names = {name.lower(): name for name in _names(kind)}
            if part.lower() not in names:
                hint = _nearest(part.lower(), list(names))
                raise ConfigError(f"environment variable {variable}: no key {part.lower()!r}{hint}")
            key = (*key, names[part.lower()])
        else:
            key = (*key, int(part) if part.isascii() and part.isdigit() else part)
    return key


def _set(source: Source, variable: str, key: Key, value: Any) -> None:
    target: Any = source.data
    for step, following in itertools.pairwise(key):
        target = _child(variable, target, step, [] if isinstance(following, int) else {})
    _child(variable, target, key[-1], value)
    if isinstance(target, list):
        target[typing.cast(int, key[-1])] = value
    else:
        target[key[-1]] = value
    source.variables[key] = variable


def _child(variable: str, target: Any, step: str | int, default: Any) -> Any:
    """The value under `step`, put there if absent. A list grows by one at its end at most."""
    if isinstance(target, list) and isinstance(step, int):
        if step > len(target):
            raise ConfigError(
                f"environment variable {variable}: index {step} is past the end; "
                f"the next free one is {len(target)}"
            )
        if step == len(target):
            target.append(default)
        return target[step]
    if isinstance(target, dict):
        if target.get(step) is None:
            target[step] = default
        return target[step]
    raise ConfigError(
        f"environment variable {variable}: {step!r} is no key of {type(target).__name__} value; "
        "check the name"
    )


def explain(error: ValidationError, source: Source, root: type[BaseModel]) -> ConfigError:
    """The first problem as one line: place, key, problem and fix."""
    problem = error.errors(include_url=False)[0]
    key: Key = tuple(problem["loc"])
    name = dotted(key)
    text = _problem_text(problem, key, root)
    more = error.error_count() - 1
    tail = f" (and {more} more)" if more else ""
    return ConfigError(f"{source.where(key)}: {name + ': ' if name else ''}{text}{tail}")


def _problem_text(problem: Any, key: Key, root: type[BaseModel]) -> str:
    kind, message = problem["type"], str(problem["msg"])
    if kind == "extra_forbidden":
        return "unknown key" + _unknown_hint(key, root)
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    shown = "null" if problem["input"] is None else repr(problem["input"])
    shown = shown if len(shown) < 80 else shown[:77] + "..."
    shown = "a value not shown here" if "secrets" in key else shown
    fixes = {
        "model_type": "must hold keys (key: value); indent its keys below it or remove it",
        "missing": "required here but missing; add it",
        "byte_size": f"{shown} is no size; write for example 256MiB",
        "byte_size_unit": f"{shown} is no size; write for example 256MiB",
        "tuple_type": f"must be a list such as [a, b], got {shown}",
    }
    return fixes.get(kind, f"{message[:1].lower()}{message[1:]}, got {shown}")


def _unknown_hint(key: Key, root: type[BaseModel]) -> str:
    name = str(key[-1])
    parent = _type_at(root, key[:-1])
    siblings = _names(parent) if isinstance(parent, type) and issubclass(parent, BaseModel) else []
    if difflib.get_close_matches(name, siblings, n=1, cutoff=0.75):
        return _nearest(name, siblings)
    elsewhere = [path for path in _all_paths(root) if path.rsplit(".", 1)[-1] == name]
    if elsewhere:
        return f"; it belongs at {elsewhere[0]}"
    return _nearest(name, siblings)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    if close and difflib.SequenceMatcher(None, name, close[0]).ratio() >= 0.6:
        return f"; did you mean {close[0]!r}?"
    nearest = f"the nearest is {close[0]!r}; " if close else ""
    return f"; {nearest}known here: {', '.join(known)}"


def _names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _all_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name in _names(model):
        yield prefix + name
        kind = _type_at(model, (name,))
        element = _type_at(model, (name, 0))
        for inner, suffix in ((kind, "."), (element, "[].")):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _all_paths(inner, prefix + name + suffix)
                break


def _type_at(root: type[BaseModel], key: Key) -> Any:
    """The declared type at `key`, or None where the schema is free-form."""
    kind: Any = root
    for step in key:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {info.alias or name: info for name, info in kind.model_fields.items()}
            kind = _bare(fields[str(step)].annotation) if str(step) in fields else None
        else:
            arguments = typing.get_args(kind)
            kind = _bare(arguments[0]) if isinstance(step, int) and arguments else None
    return kind


def _bare(annotation: Any) -> Any:
    """`X | None` and `Annotated[X, …]` as X."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _bare(typing.get_args(annotation)[0])
    if origin in {Union, UnionType}:
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        return _bare(inner[0])
    return annotation


def dotted(key: Key) -> str:
    """`pools[0].limit.max` for the key path."""
    text = ""
    for step in key:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".")
