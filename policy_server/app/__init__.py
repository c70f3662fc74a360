"""The composition root: builds and wires everything; nothing else does."""

from policy_server.app.parent import Parent
from policy_server.app.reload import Reload
from policy_server.app.run import run_server
from policy_server.app.server import PolicyServer

__all__ = ["Parent", "PolicyServer", "Reload", "run_server"]
