"""The image: a linter of its own, and what has to be true of it for it to run."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.container import DOCKER, DOCKERFILE, command, environment, instructions, last

ROOT = DOCKER.parent
PACKAGE = ROOT / "policy_server"


def test_hadolint_has_nothing_to_say() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    result = subprocess.run(
        [linter, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_it_runs_without_root_and_without_a_shell() -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last("USER"))
    for instruction in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
        assert command(instruction), instruction
    words = [word for word, _ in instructions()]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")


def test_nothing_of_the_build_but_the_venv_is_in_it() -> None:
    stages = [i for i, (word, _) in enumerate(instructions()) if word == "FROM"]
    final = instructions()[stages[-1] :]
    assert len(stages) == 2
    assert [rest for word, rest in final if word in ("COPY", "ADD")] == [
        "--from=build /opt/policy-server /opt/policy-server"
    ]


def test_what_it_writes_goes_into_its_volume() -> None:
    (volume,) = command("VOLUME")
    assert command("CMD")[-2:] == ["--data-dir", volume]
    assert last("WORKDIR") == volume
    assert environment()["PYTHONDONTWRITEBYTECODE"] == "1"


def test_what_is_copied_exists_and_is_let_through() -> None:
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    ignored, *let_through = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert ignored == "*"
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in let_through, source


def test_every_file_of_the_package_is_installed_with_it() -> None:
    """The image has what a wheel has, and no checkout."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["policy_server"]
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py"]
    names = [str(path.relative_to(PACKAGE)) for path in files if "__pycache__" not in path.parts]
    missing = [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in patterns)]
    assert names
    assert not missing
