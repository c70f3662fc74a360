"""The schemas under `schemas/`, by the kind of object that they are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parent / "schemas"
Plain = dict[str, Any]


def schema(name: str) -> Plain:
    """The schema of one file."""
    found: Plain = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def check(data: Any, against: Plain) -> None:
    """Raises with every mistake, each with its place."""
    errors = jsonschema.Draft202012Validator(against).iter_errors(data)
    found = [f"{error.json_path}: {error.message[:300]}" for error in errors]
    assert not found, "\n".join(found)


def check_object(data: Plain, *files: str) -> None:
    """A Kubernetes object against the schema of its kind in one of these files."""
    kind = f"{data['apiVersion']} {data['kind']}"
    known = {name: one for file in files for name, one in schema(file).items()}
    assert kind in known, f"no schema for {kind}"
    check(data, known[kind])
