"""The shape of the project, held by reading the source (nothing is imported).

Imports point one way:

    cli → gateway, app → adapters, jobs, signals, telemetry, … → driver → journal → core

and beside it `config`, which everything but the core may read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "policy_server"

LAYERS = (
    {"core"},
    {"process_lock", "private_file", "lasting", "memory"},
    {"journal"},
    {"driver", "commands", "processes"},
    {
        *("adapters", "jobs", "signals", "telemetry", "envoy_config", "backend", "load"),
        *("simulate", "top", "garbage"),
    },
    {"views"},
    {"app"},
    {"gateway", "demo"},
    {"cli"},
    {"__main__"},
)
"""Lowest first. A unit is a folder or module right under the package; it imports itself and what
lies below, never a sibling. A new unit needs a place here."""

OWN_RULES = {"config", "simulate"}
CONFIG_READS = {"core"}
CORE_LIBRARIES = {"sortedcontainers"}
CORE_SHUNS = {
    *("asyncio", "concurrent", "datetime", "logging", "os", "pathlib", "random", "secrets"),
    *(
        "select",
        "signal",
        "socket",
        "sqlite3",
        "subprocess",
        "threading",
        "time",
        "multiprocessing",
    ),
}
ONLY_IN = {
    "envoy_data_plane": {"envoy_config"},  # its import takes 0.7 s
    "sqlite3": {"journal"},
    "envoy": {"adapters"},  # protobuf types stop there
    "google": {"adapters"},
}
FOLDERS = {"policy_server", "envoy", "protos", "docker", "tests", ".ci", ".github"}
MAX_LINES = 400


class Module:
    """One source file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.package = ".".join(parts[:-1])
        self.source = path.read_text("utf-8")
        self.tree = ast.parse(self.source)
        self.unit = unit_of(self.name)

    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, absolute dotted name) of everything it imports, wherever in the file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def own_imports(self) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of imports of this project."""
        return ((line, name) for line, name in self.imports() if top(name) == "policy_server")

    def foreign_imports(self) -> Iterator[tuple[int, str]]:
        """(line, top-level name) of imports of anything else."""
        for line, name in self.imports():
            if top(name) not in {"policy_server", "__future__"}:
                yield line, top(name)

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)


def top(name: str) -> str:
    return name.partition(".")[0]


def unit_of(name: str) -> str:
    """`policy_server.core.room` → `core`; `config_types` counts as `config`; the root is ""."""
    parts = name.split(".")
    unit = parts[1] if len(parts) > 1 else ""
    return "config" if unit.startswith("config") else unit


MODULES = [Module(path) for path in sorted(PACKAGE.rglob("*.py")) if "_pb2" not in path.name]
UNITS = {module.unit for module in MODULES} - {""}


def rank(unit: str) -> int | None:
    return next((n for n, layer in enumerate(LAYERS) if unit in layer), None)


def may_import(module: str, target: str) -> bool:
    """Whether the module of that name may import from the unit `target`."""
    unit = unit_of(module)
    if target in {unit, ""}:  # the package's root holds the version only
        return True
    if unit == "simulate":
        command = module == "policy_server.simulate.command"
        return target == "core" or (target == "config" and command)
    if unit == "config":
        return target in CONFIG_READS
    if target == "config":
        return unit != "core"
    own, other = rank(unit), rank(target)
    return own is not None and other is not None and other < own


def names_a_unit(name: str) -> bool:
    """Tells `from policy_server import app` from `from policy_server import __version__`."""
    return unit_of(name) in UNITS


@pytest.mark.parametrize(
    ("module", "target", "allowed"),
    [
        ("core.admission", "core", True),
        ("core.admission", "journal", False),
        ("core.admission", "config", False),
        ("journal.memory", "core", True),
        ("driver", "journal", True),
        ("driver", "adapters", False),
        ("adapters.http_api", "telemetry", False),
        ("telemetry.status", "core", True),
        ("app", "adapters", True),
        ("app", "gateway", False),
        ("gateway", "app", True),
        ("cli", "simulate", True),
        ("adapters.rules", "config", True),
        ("config_types", "core", True),
        ("config", "adapters", False),
        ("simulate.engine", "core", True),
        ("simulate.engine", "driver", False),
        ("simulate.engine", "config", False),
        ("simulate.command", "config", True),
    ],
)
def test_the_rules_say_what_the_design_says(module: str, target: str, allowed: bool) -> None:
    assert may_import(f"policy_server.{module}", target) is allowed


def test_every_unit_has_a_place_in_the_layers() -> None:
    homeless = sorted(unit for unit in UNITS if rank(unit) is None and unit not in OWN_RULES)
    assert not homeless, f"give {homeless} a place in LAYERS"


def test_imports_point_one_way() -> None:
    wrong = [
        f"{module.at(line)} ({module.unit or 'the package root'}) imports {name}"
        for module in MODULES
        for line, name in module.own_imports()
        if names_a_unit(name) and not may_import(module.name, unit_of(name))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_core_is_pure() -> None:
    wrong = [
        f"{module.at(line)} imports {library}"
        for module in MODULES
        if module.unit == "core"
        for line, library in module.foreign_imports()
        if library in CORE_SHUNS
        or (library not in sys.stdlib_module_names and library not in CORE_LIBRARIES)
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_core_says_what_its_values_are() -> None:
    wrong = [
        module.at(node.lineno)
        for module in MODULES
        if module.unit == "core"
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
    ]
    assert not wrong, f"Any in the core: {wrong}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_stays_where_it_belongs(library: str) -> None:
    wrong = [
        f"{module.at(line)} imports {library}"
        for module in MODULES
        if module.unit not in ONLY_IN[library]
        for line, imported in module.foreign_imports()
        if imported == library
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_python_in_envoy() -> None:
    """A package of that name would shadow the generated `envoy` protos."""
    assert not list((ROOT / "envoy").rglob("*.py"))


def test_the_top_level_folders_are_the_agreed_ones() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    found = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not any(fnmatch(path.name, name) for name in (".git", *ignored))
    }
    assert found <= FOLDERS


def test_modules_fit_on_a_few_screens() -> None:
    long = {
        str(module.path.relative_to(ROOT)): lines
        for module in MODULES
        if (lines := len(module.source.splitlines())) > MAX_LINES
    }
    assert not long, f"longer than {MAX_LINES} lines, wants splitting: {long}"


def metric_names() -> list[str]:
    names = next(m for m in MODULES if m.name == "policy_server.telemetry.names")
    return sorted(
        node.value
        for node in ast.walk(names.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"policy_[a-z_]+", node.value)
    )


def test_metric_names_live_in_one_file() -> None:
    names = set(metric_names())
    assert len(names) > 10
    strays = [
        module.at(node.lineno)
        for module in MODULES
        if module.name != "policy_server.telemetry.names"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not strays


def test_every_metric_is_documented() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8") if readme.exists() else ""
    missing = [name for name in metric_names() if name not in text]
    assert not missing, f"not in README.md: {missing}"
