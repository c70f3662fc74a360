"""The tickets of one server, with what they need on disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from policy_server.adapters.ticket_keys import KeyFile, KeyRing, TicketKeyError
from policy_server.adapters.tickets import Keys, Tickets
from policy_server.adapters.used_tickets import UsedInFile, UsedInMemory, UsedTicketsError
from policy_server.config import ConfigError
from policy_server.core.outcome import TicketOutcome

KEYS_NAME, USED_NAME = "ticket-keys", "used-tickets"
DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
Told = Callable[[TicketOutcome], None]


class TicketOffice:
    """`tickets`, and the files behind them: keys that rotate, a memory of those used.

    `data_dir` None = nothing on disk: tickets end with the process.
    """

    def __init__(self, data_dir: Path | None, wall: float, told: Told) -> None:
        self._disk: str | None = None
        self.problem: str | None = None
        """What is wrong with the key file now, for `/statusz`."""
        self._keys: KeyFile | None = None
        self._used: UsedInFile | None = None
        self.tickets = Tickets(KeyRing.fresh(wall), UsedInMemory(), told)
        if data_dir is not None:
            self._keys, self._used = KeyFile(data_dir / KEYS_NAME), UsedInFile(data_dir / USED_NAME)

    def open(self, wall: float) -> None:
        """Take the files over. Only for who owns the data directory: the file of those used is
        made anew, and another process would go on with the old one. Raises ConfigError when one
        can't be used."""
        if self._keys is None or self._used is None:
            return
        keys: Keys = self._keys
        try:
            self._used.open(wall)
        except UsedTicketsError as error:
            self._bear(error)  # what it has read it remembers, as long as this process lives
        try:
            self._keys.open(wall)
            self.tick(wall)
        except TicketKeyError as error:
            self._bear(error)
            self._keys, keys = None, KeyRing.fresh(wall)
        self.tickets.use(keys, self._used)

    def _bear(self, error: Exception) -> None:
        """A disk in trouble must not keep held requests from being served; a mistake may."""
        cause = error.__context__
        if not isinstance(cause, OSError) or cause.errno not in DISK_TROUBLE:
            raise ConfigError(f"--data-dir: {error}") from None
        self._disk = f"tickets are forgotten with this process: {error}"
        self.problem = self._disk

    def tick(self, wall: float) -> None:
        """Once a second: take up changes of the key file, rotate when it is time."""
        if self._keys is not None:
            self.problem = self._keys.tick(wall) or self._disk

    def close(self) -> None:
        """Let go of the files."""
        if self._used is not None:
            self._used.close()
