"""What a test needs of the machine beyond our own environment."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """What is missing and the command that installs it. A failure where `CI` is set, as nothing
    may be left out there; a skip elsewhere.
    """
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
