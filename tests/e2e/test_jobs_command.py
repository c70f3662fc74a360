"""`policy-server jobs …` at a real gateway, as someone types it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from policy_server import cli
from tests.support import wired
from tests.support.echo_upstream import running_upstream
from tests.support.gateway_command import running_gateway


async def jobs(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, the line on stderr; in this process, because a start costs a second."""
    result = await asyncio.to_thread(CliRunner().invoke, cli.app, ["jobs", *arguments])
    error = result.exception
    if error is None or isinstance(error, SystemExit):
        return result.exit_code, result.stdout, result.stderr
    assert isinstance(error, Exception)
    code, line = cli._explained(error)
    return code, result.stdout, line


async def test_a_redirect_is_shown_and_not_followed() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/response"):
            return web.Response(status=302, headers={"location": "/elsewhere"}, body=b"moved")
        return web.json_response({"status": "done", "response_status": 302})

    app = web.Application()
    app.router.add_get("/policy/{tail:.*}", answer)  # elsewhere is nothing
    async with TestServer(app) as server:
        code, out, _ = await jobs("show", "one", "--url", str(server.make_url("")), "--response")
    assert (code, out) == (0, "moved")


async def test_a_job_from_the_command_line(tmp_path: Path) -> None:
    where = wired.ports()
    body = tmp_path / "body.json"
    body.write_text('{"model": "m"}')
    operator = f"http://127.0.0.1:{where['http']}"
    async with running_upstream(where["upstream"]), running_gateway(tmp_path, where) as gateway:
        code, out, err = await jobs(
            *("submit", "--url", gateway.url, "--data", f"@{body}", "--tenant", "acme"),
            *("--path", "/mirror", "--header", "x-request-priority: 0"),
        )
        assert code == 0, err
        job_id = out.strip()
        async with asyncio.timeout(20):
            while True:
                _, out, _ = await jobs("show", job_id, "--url", operator)
                if json.loads(out)["status"] == "done":
                    break
        assert (await jobs("show", job_id, "--url", operator, "--response"))[1] == body.read_text()
        assert job_id in (await jobs("ls", "--url", operator))[1]
        code, out, _ = await jobs("ls", "--url", gateway.url, "--tenant", "evil", "--json")
        assert (code, json.loads(out)) == (0, [])
        code, _, err = await jobs("cancel", job_id, "--url", operator)
        assert (code, err) == (1, "409: The job has ended already.")
        code, _, err = await jobs("show", "none", "--url", operator)
        assert code == 1
        assert "no such job" in err
        code, _, err = await jobs("ls", "--header", "nonsense")
        assert code == 2
        assert "NAME: VALUE" in err
