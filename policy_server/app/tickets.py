"""The tickets of one server, with what they need on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from policy_server.adapters.ticket_keys import KeyFile, KeyRing, TicketKeyError
from policy_server.adapters.tickets import Tickets
from policy_server.adapters.used_tickets import UsedInFile, UsedInMemory, UsedTicketsError
from policy_server.config import ConfigError
from policy_server.core.outcome import TicketOutcome

KEYS_NAME, USED_NAME = "ticket-keys", "used-tickets"
Told = Callable[[TicketOutcome], None]


class TicketOffice:
    """`tickets`, and the files behind them: keys that rotate, a memory of those used.

    `data_dir` None = nothing on disk: tickets end with the process. Raises ConfigError when a
    file can't be used.
    """

    def __init__(self, data_dir: Path | None, wall: float, told: Told) -> None:
        self.problem: str | None = None
        """What is wrong with the key file now, for `/statusz`."""
        self._keys: KeyFile | None = None
        self._used: UsedInFile | None = None
        if data_dir is None:
            self.tickets = Tickets(KeyRing.fresh(wall), UsedInMemory(), told)
            return
        self._keys = KeyFile(data_dir / KEYS_NAME)
        self._used = UsedInFile(data_dir / USED_NAME)
        try:
            self._keys.open(wall)
            self._used.open(wall)
        except (TicketKeyError, UsedTicketsError) as error:
            raise ConfigError(f"--data-dir: {error}") from None
        self.tickets = Tickets(self._keys, self._used, told)
        self.tick(wall)

    def tick(self, wall: float) -> None:
        """Once a second: take up changes of the key file, rotate when it is time."""
        if self._keys is not None:
            self.problem = self._keys.tick(wall)

    def close(self) -> None:
        """Let go of the files."""
        if self._used is not None:
            self._used.close()
