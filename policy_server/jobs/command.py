"""`policy-server jobs …`: hand a job in, list, look, cancel, over the HTTP API.

At the gateway a caller sees the jobs of its tenant; at the policy server's own HTTP port
(`server.http`) the operator sees all.
"""

# ruff: noqa: PLC0415 - what runs is imported when it runs, so that --help stays fast

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from policy_server.commands import console, header_lines, reason

if TYPE_CHECKING:
    from rich.table import Table

GATEWAY = "http://127.0.0.1:10000"
OPERATOR = "http://127.0.0.1:9003"
CHAT = "/v1/chat/completions"
JOBS_PATH = "/policy/jobs"
RESPONSE = "/response"
TIMEOUT_S = 120.0
ID_CHARS = 32
WIDE = 120
"""Characters that all columns need."""
GIVE_ONE = "; give --token-file"

jobs_app = typer.Typer(
    name="jobs", help="Hand in, list, show and cancel jobs.", no_args_is_help=True
)

Url = Annotated[
    str, typer.Option("--url", help="The gateway, or server.http for the jobs of all tenants.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="Sent as x-tenant-id.")]
Header = Annotated[
    list[str] | None, typer.Option("--header", help="NAME: VALUE to send; may be repeated.")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="The admin token, for server.http.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
JobId = Annotated[str, typer.Argument(help="The job's id.", metavar="ID")]


class JobsError(OSError):
    """The server could not be reached, or says no."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> dict[str, Any]:
        """The JSON in it; `JobsError` when the server refuses or talks of something else."""
        try:
            document = json.loads(self.body)
        except ValueError:
            document = None
        if self.status >= 400 or not isinstance(document, dict):
            text = self.body[:200].decode("latin-1").strip().removeprefix(f"{self.status}: ")
            why = _reason(document) or f"{text}; is the --url right?"
            raise JobsError(f"{self.status}: {why}{GIVE_ONE if self.status == 401 else ''}")
        return document


@jobs_app.command()
def submit(
    data: Annotated[str, typer.Option("--data", help="The body: text, @FILE, or - for stdin.")],
    url: Annotated[str, typer.Option("--url", help="The gateway.")] = GATEWAY,
    path: Annotated[str, typer.Option("--path", help="Where the request goes.")] = CHAT,
    tenant: Tenant = "",
    header: Header = None,
    key: Annotated[str, typer.Option("--key", help="Idempotency key.")] = "",
    webhook: Annotated[str, typer.Option("--webhook", help="URL to call at the end.")] = "",
) -> None:
    """Hand a job in; prints its id."""
    headers = {
        "content-type": "application/json",
        **_headers(tenant, header, None),
        "prefer": "respond-async",
    }
    if key:
        headers["idempotency-key"] = key
    if webhook:
        headers["x-webhook-url"] = webhook
    if not path.startswith("/"):
        raise typer.BadParameter(f"--path {path!r} does not start with /; write for example {CHAT}")
    reply = _ask("POST", url.rstrip("/") + path, headers, _body(data))
    document = reply.document()
    if reply.status != 202:
        raise JobsError(f"{url} answered {reply.status} at once: it takes no jobs (jobs.via)")
    print(document["id"])


@jobs_app.command()
def ls(
    url: Url = OPERATOR,
    tenant: Tenant = "",
    header: Header = None,
    token_file: TokenFile = None,
    limit: Annotated[int, typer.Option("--limit", help="How many, newest first.", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs."""
    headers = _headers(tenant, header, token_file)
    jobs = _ask("GET", f"{_all(url)}?limit={limit}", headers).document()["jobs"]
    if as_json:
        print(json.dumps(jobs, indent=1))
        return
    screen = console()
    screen.print(listing(jobs, screen.width, time.time()))


def listing(jobs: list[dict[str, Any]], width: int, now: float) -> Table:
    """The jobs as a table; in a narrow terminal without what `jobs show` has as well."""
    from rich.table import Table

    names = ("status", "class", "tenant")
    more = ("path", "attempts", "detail") if width >= WIDE else ()
    table = Table()
    table.add_column("id", no_wrap=True, min_width=ID_CHARS)  # half an id is of no use
    for name in ("age", *names, "answer", *more):
        table.add_column(name, overflow="fold")
    for job in jobs:
        told = (_age(now - job["created_at"]), *(str(job[name]) for name in names))
        answer = str(job["response_status"] or "")
        table.add_row(job["id"], *told, answer, *(str(job[name]) for name in more))
    return table


@jobs_app.command()
def show(
    job_id: JobId,
    url: Url = OPERATOR,
    tenant: Tenant = "",
    header: Header = None,
    token_file: TokenFile = None,
    response: Annotated[
        bool, typer.Option("--response", help="The stored answer's body instead.")
    ] = False,
) -> None:
    """Show where a job stands, or what it was answered."""
    headers = _headers(tenant, header, token_file)
    where = _one(url, job_id)
    document = _ask("GET", where, headers).document()
    if not response:
        print(json.dumps(document, indent=1))
        return
    if document["response_status"] is None:
        raise JobsError(f"job {job_id} is {document['status']}: there is no answer")
    sys.stdout.buffer.write(_ask("GET", where + RESPONSE, headers).body)
    sys.stdout.buffer.flush()


@jobs_app.command()
def cancel(
    job_id: JobId,
    url: Url = OPERATOR,
    tenant: Tenant = "",
    header: Header = None,
    token_file: TokenFile = None,
) -> None:
    """Cancel a job that has not ended."""
    headers = _headers(tenant, header, token_file)
    document = _ask("DELETE", _one(url, job_id), headers).document()
    print(f"{document['id']} {document['status']}")


def _age(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _all(url: str) -> str:
    return url.rstrip("/") + JOBS_PATH


def _one(url: str, job_id: str) -> str:
    return f"{_all(url)}/{quote(job_id, safe='')}"


def _ask(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
    return asyncio.run(_exchange(method, url, headers, body))


async def _exchange(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
    import aiohttp

    follow = not url.endswith(RESPONSE)  # a model server's redirect is what it answered
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--url: {url!r} is no URL; write for example {GATEWAY}")
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.request(
                *(method, url), headers=headers, data=body, allow_redirects=follow
            ) as answer,
        ):
            return Reply(answer.status, dict(answer.headers), await answer.read())
    except aiohttp.ClientConnectorError as error:
        why = reason(error.os_error)
        raise JobsError(f"{url}: cannot connect ({why}); --url names another") from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise JobsError(f"{url}: {error or type(error).__name__}") from None


def _headers(tenant: str, header: list[str] | None, token_file: Path | None) -> dict[str, str]:
    headers = {"x-tenant-id": tenant} if tenant else {}
    try:
        headers |= header_lines(header or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if token_file is not None:
        token = _read("--token-file", token_file).decode("ascii", "replace").strip()
        if not token.isprintable() or "\ufffd" in token:
            raise typer.BadParameter(f"--token-file: {token_file} holds no token of one line")
        headers["authorization"] = f"Bearer {token}"
    return headers


def _body(data: str) -> bytes:
    if data == "-":
        return sys.stdin.buffer.read()
    return _read("--data", Path(data[1:])) if data.startswith("@") else data.encode()


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{option}: {path} cannot be read ({error.strerror})") from None


def _reason(document: object) -> str:
    if not isinstance(document, dict):
        return ""
    error = document.get("error")
    text = document.get("detail") or (error.get("message") if isinstance(error, dict) else "")
    return str(text or "")
