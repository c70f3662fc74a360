"""What docker/ says, read as an engine would: instructions, environment, objects."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).resolve().parents[2] / "docker"
DOCKERFILE = DOCKER / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """(INSTRUCTION, arguments) of the Dockerfile, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last(instruction: str) -> str:
    """The arguments of the last such instruction, which is of the final stage."""
    return [rest for word, rest in instructions() if word == instruction][-1]


def command(instruction: str) -> list[str]:
    """An exec form."""
    found: list[str] = json.loads(last(instruction)[last(instruction).index("[") :])
    return found


def environment() -> dict[str, str]:
    """The variables of the final stage."""
    return dict(re.findall(r"(\w+)=(\S+)", last("ENV")))


def compose() -> dict[str, Any]:
    """The Compose file, anchors resolved."""
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
    return found


def command_lines() -> dict[str, list[str]]:
    """Whose → what the image's entry point is given: by itself, by Compose, by Kubernetes."""
    found = {"image": command("CMD")}
    for name, service in compose()["services"].items():
        if service["image"] == "policy-server":
            found[f"compose {name}"] = service["command"]
    (container,) = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return found | {"kubernetes": container["args"]}


def manifests() -> dict[str, dict[str, Any]]:
    """Kind → the Kubernetes object."""
    folder = DOCKER / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    found = [yaml.safe_load((folder / name).read_text()) for name in kustomization["resources"]]
    return {one["kind"]: one for one in found}
