"""What a user can get wrong."""

from __future__ import annotations


class InputError(Exception):
    """A bad trace, parameter or option; the message is one line that says what and where."""
