"""Tests that take minutes; `make soak` runs them, `make test` does not."""
