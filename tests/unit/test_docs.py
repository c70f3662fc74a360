"""The documentation keeps up: what exists is documented, what is documented exists."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel

from policy_server import cli
from policy_server.config import Config, load_config
from policy_server.core.outcome import Outcome, ShedReason
from policy_server.telemetry import names
from policy_server.telemetry.names import MetricId

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
ROOT_COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


def commands_of(commands: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All commands by what one types; those of a group behind its name."""
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            yield prefix + name, command
        else:
            yield from commands_of(inner, f"{prefix}{name} ")


COMMANDS = dict(commands_of(ROOT_COMMANDS))
METRICS = [value for value in vars(names).values() if isinstance(value, MetricId)]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of each table."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def section(heading: str) -> str:
    """What stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", README, re.M | re.S)
    assert found is not None, f"README.md has no section {heading!r}"
    return found[1]


def first_cells(heading: str) -> set[str]:
    return {row[0].strip("`") for row in rows(section(heading))}


# -- commands -------------------------------------------------------------------------------------


def options_of(command: Any) -> list[Any]:
    options = (p for p in command.params if p.param_type_name == "option")
    return [p for p in options if p.name != "help" and not p.hidden]


def test_every_command_is_documented_and_no_other() -> None:
    headings = set(re.findall(r"^### `policy-server ([a-z -]+)`$", README, re.M))
    assert headings == {name for name, command in COMMANDS.items() if not command.hidden}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_is_documented_and_no_other(name: str) -> None:
    documented = set()
    for row in rows(section(f"`policy-server {name}`")):
        documented |= set(re.findall(r"--[a-z-]+", row[0]))
    options = options_of(COMMANDS[name])
    assert documented == {flag for o in options for flag in (*o.opts, *o.secondary_opts)}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_defaults_of_flags_are_the_documented_ones(name: str) -> None:
    shown = {row[0].split("`")[1]: row[1] for row in rows(section(f"`policy-server {name}`"))}
    for option in options_of(COMMANDS[name]):
        none = option.default in (None, "") or isinstance(option.default, bool)
        default = "required" if option.required else "–" if none else str(option.default)
        assert shown[option.opts[0]] == default, option.opts[0]


def test_the_version_flag_is_documented() -> None:
    assert "policy-server --version" in README


# -- configuration --------------------------------------------------------------------------------


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all values; a list of sections is written `pools[].…`."""
    for name, info in model.model_fields.items():
        path = prefix + (info.alias or name)
        kinds = (info.annotation, *typing.get_args(info.annotation))
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inner is None:
            yield path
            continue
        if not info.is_required() and info.default is None:
            yield path  # a section that is absent by default has a row of its own
        yield from keys(inner, f"{path}[]." if typing.get_origin(kinds[0]) is tuple else f"{path}.")


def config_rows() -> dict[str, str]:
    return {row[0].strip("`"): row[1] for row in rows(section("Configuration"))}


def test_every_configuration_key_is_documented_and_no_other() -> None:
    assert set(config_rows()) == set(keys(Config))


def test_the_documented_defaults_are_the_defaults() -> None:
    data: dict[str, Any] = {}
    for key, shown in config_rows().items():
        if key.startswith("server.tls."):
            continue  # of a section that is absent by default
        *parents, last = key.split(".")
        here = data
        for step in parents:
            name = step.removesuffix("[]")
            here = here.setdefault(name, [{}] if step != name else {})
            here = here[0] if isinstance(here, list) else here
        here[last] = yaml.safe_load(shown.strip("`"))
    assert Config.model_validate(data) == Config()


YAML_BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S)


@pytest.mark.parametrize("block", YAML_BLOCKS)
def test_the_examples_are_valid(block: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(block)
    load_config(file, {})


def test_there_is_an_example() -> None:
    assert YAML_BLOCKS


# -- metrics, outcomes, reasons -------------------------------------------------------------------


def test_every_metric_is_documented_with_its_labels_and_no_other() -> None:
    table = {row[0].strip("`"): row[1:] for row in rows(section("Watching it"))}
    table = {name: cells for name, cells in table.items() if name.startswith("policy_")}
    assert table.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        labels, meaning = table[metric.name]
        assert labels == (", ".join(metric.labels) or "–"), metric.name
        assert meaning.replace("`", "") == metric.help, metric.name


def test_every_outcome_and_reason_is_documented() -> None:
    documented = first_cells("What clients see")
    assert {outcome.value for outcome in Outcome} <= documented
    assert {reason.value for reason in ShedReason} <= documented


def test_the_status_of_each_reason_is_the_documented_one() -> None:
    shown = {row[0].strip("`"): row[1] for row in rows(section("What clients see"))}
    for reason in ShedReason:
        assert shown[reason.value] == ("429" if reason.capacity_exists else "503"), reason.value


# -- files ----------------------------------------------------------------------------------------


def test_every_path_in_the_architecture_exists() -> None:
    paths = set(
        re.findall(r"`((?:policy_server|tests|envoy|docker|protos)/[^\s`*…]*)`", ARCHITECTURE)
    )
    assert len(paths) > 30
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert not missing


def test_every_unit_of_the_package_has_a_place_in_the_architecture() -> None:
    units = {
        path.name
        for path in (ROOT / "policy_server").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists())
        or (path.suffix == ".py" and not path.name.startswith("__"))
    }
    missing = sorted(unit for unit in units if f"policy_server/{unit}" not in ARCHITECTURE)
    assert not missing


DOCUMENTS = [
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docker/kubernetes/README.md"),
    *("envoy/istio/README.md", "envoy/envoy-gateway/README.md", "envoy/keda/README.md"),
]


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.M)
    return {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name: str) -> None:
    here = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text("utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = here.parent / path if path else here
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_target_named_in_the_readme_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"(?:`|^|\$ )make ([a-z]+)\b", README + ARCHITECTURE, re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target
