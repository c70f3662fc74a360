"""The emulator as a server: `run_backend` for a process, `serving` inside another event loop."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiohttp import web

from policy_server.backend.handlers import Handlers
from policy_server.backend.params import BackendParams

MAX_BODY_BYTES = 64 * 1024 * 1024
BACKLOG = 4096
"""Thousands of clients may connect in one instant."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A serving emulator."""

    host: str
    port: int
    handlers: Handlers

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@asynccontextmanager
async def serving(
    params: BackendParams, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Backend]:
    """Serve inside the block; port 0 takes a free one. Raises OSError when it cannot bind."""
    handlers = Handlers(params)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    handlers.add_routes(app)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, handle_signals=False, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        sock = _bind(host, port)
        await web.SockSite(runner, sock, backlog=BACKLOG).start()
        yield Backend(host, sock.getsockname()[1], handlers)
    finally:
        handlers.driver.close()
        await runner.cleanup()


async def run_backend(
    params: BackendParams,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until cancelled, SIGTERM or SIGINT. `on_ready` gets the base URL once it listens.

    Run it on uvloop: a token then costs a third less. Raises OSError with one clear line when the
    port is taken.
    """
    async with serving(params, host, port) as backend:
        with _stop_signal() as stop:
            if on_ready is not None:
                on_ready(backend.url)
            await stop.wait()


@contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, while the block runs.

    Only the main thread hears signals; in another one they are the caller's affair.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    heard = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if heard else ()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno, f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from None
    sock.setblocking(False)
    return sock
