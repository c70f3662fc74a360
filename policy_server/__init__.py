"""Overload control for model APIs behind Envoy."""

__version__ = "0.1.0"
