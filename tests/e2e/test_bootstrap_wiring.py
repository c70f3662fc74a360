"""The generated bootstrap on the real Envoy: what each side of the gate wiring sees.

The policy server is a script (tests/support/scripted_policy.py), so a failure here is Envoy's
configuration and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from tests.support import wired as support
from tests.support.echo_upstream import running_upstream
from tests.support.envoy_process import running_envoy
from tests.support.scripted_policy import headers_of
from tests.support.wired import TLS, Wired, bootstrap_for, http_filter, wired


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Wired]:
    where = support.ports()
    async with wired(tmp_path, bootstrap_for(where), where) as running:
        yield running


def seen_by_upstream(answer: support.Answer) -> dict[str, str]:
    return {k.lower(): v for k, v in json.loads(answer.body)["headers"].items()}


async def test_each_request_has_an_identity_of_its_own(gateway: Wired) -> None:
    forged = {"x-policy-uid": "mine", "x-request-id": "same"}
    for _ in range(2):
        assert (await gateway.post(headers=forged)).status == 200
    uids = [headers_of(m.request_headers)["x-policy-uid"] for m in gateway.seen.gate]
    assert len(set(uids)) == 2
    assert "mine" not in uids
    request_ids = {headers_of(m.request_headers)["x-request-id"] for m in gateway.seen.gate}
    assert request_ids == {"same"}


async def test_nothing_of_ours_reaches_the_upstream_or_comes_from_outside(gateway: Wired) -> None:
    forged = {"x-policy-observe": "1", "x-policy-node": "me", "X-Policy-Class": "P0"}
    answer = await gateway.post(headers=forged)
    assert not [name for name in seen_by_upstream(answer) if name.startswith("x-policy")]
    at_gate = headers_of(gateway.seen.gate[0].request_headers)
    assert [name for name in at_gate if name.startswith("x-policy")] == ["x-policy-uid"]
    assert gateway.seen.gate_metadata[0]["x-policy-node"] == "policy-gateway"


async def test_fields_of_a_json_body_arrive_with_the_headers(gateway: Wired) -> None:
    await gateway.post(
        json={"model": "m", "stream": True, "max_tokens": 5, "messages": [{"model": "no"}]}
    )
    message = gateway.seen.gate[0]
    fields = message.metadata_context.filter_metadata["policy.request"].fields
    assert fields["model"].string_value == "m"
    assert fields["stream"].bool_value is True
    assert fields["max_tokens"].number_value == 5
    attributes = message.attributes["envoy.filters.http.ext_proc"].fields
    assert attributes["xds.route_name"].string_value == "governed"
    assert attributes["xds.cluster_name"].string_value == "upstream"


@pytest.mark.parametrize("body", [b"{bad", b"", b"[1]", b"\xff\xfe", b'{"max_tokens": "many"}'])
async def test_a_body_that_is_no_such_json_passes_on(gateway: Wired, body: bytes) -> None:
    answer = await gateway.post(data=body, headers={"content-type": "application/json"})
    assert answer.status == 200
    fields = gateway.seen.gate[0].metadata_context.filter_metadata["policy.request"].fields
    assert "model" not in fields


async def test_a_large_body_passes_whole(gateway: Wired) -> None:
    body = json.dumps({"model": "m", "pad": "x" * 20_000_000}).encode()
    answer = await gateway.post(data=body, headers={"content-type": "application/json"})
    assert json.loads(answer.body)["bytes"] == len(body)


async def test_what_is_not_governed_never_meets_the_policy_server(gateway: Wired) -> None:
    answer = await gateway.ask("GET", "/v1/models")
    assert answer.status == 200
    assert "x-policy-class" not in answer.headers
    assert not [name for name in seen_by_upstream(answer) if name.startswith("x-policy")]
    await gateway.post()
    await gateway.seen.until(lambda: gateway.seen.entries)
    assert (len(gateway.seen.gate), len(gateway.seen.entries)) == (1, 1)


async def test_the_policy_api_is_routed_past_the_gate(tmp_path: Path) -> None:
    where = support.ports()
    async with (
        running_upstream(where["http"]) as api,
        wired(tmp_path, bootstrap_for(where), where) as gateway,
    ):
        assert (await gateway.post("/policy/jobs/1")).status == 200
        assert [r.path for r in api.requests] == ["/policy/jobs/1"]
        assert not gateway.seen.gate


async def test_a_websocket_works_and_takes_a_seat(gateway: Wired) -> None:
    async with gateway.http.ws_connect("/ws") as socket:
        await socket.send_str("hello")
        assert (await socket.receive()).data == "hello"
    assert headers_of(gateway.seen.gate[0].request_headers)["upgrade"] == "websocket"


async def test_a_connect_tunnel_works_and_takes_a_seat(tmp_path: Path) -> None:
    where = support.ports()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()

    bootstrap = bootstrap_for(where, upstream=f"http://127.0.0.1:{where['http']}")
    server = await asyncio.start_server(tunnel, "127.0.0.1", where["http"])
    async with server, wired(tmp_path, bootstrap, where) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", where["gateway"])
        writer.write(b"CONNECT a.test:1 HTTP/1.1\r\nhost: a.test:1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        assert headers_of(gateway.seen.gate[0].request_headers)[":method"] == "CONNECT"


async def test_the_answer_tells_class_and_wait(gateway: Wired) -> None:
    answer = await gateway.post()
    assert (answer.headers["x-policy-class"], answer.headers["x-queue-wait-ms"]) == ("P1", "12")
    passed = await gateway.post(script="passed")
    assert "x-policy-class" not in passed.headers
    assert "x-queue-wait-ms" not in passed.headers


async def test_the_observer_sees_the_sample_only(gateway: Wired) -> None:
    await gateway.post("/stream")
    await gateway.post(script="shed")
    await gateway.post(script="unavailable")
    assert b"data" in (await gateway.post("/stream", script="observe")).body
    uid = headers_of(gateway.seen.gate[-1].request_headers)["x-policy-uid"]
    streams = gateway.seen.observed
    await gateway.seen.until(lambda: uid in streams and ended(streams[uid][-1]))
    assert set(streams) == {uid}
    assert streams[uid][0].WhichOneof("request") == "response_headers"
    assert b"".join(m.response_body.body for m in streams[uid]) == b"data: {}\n\n" * 3
    await gateway.seen.until(lambda: uid in map(uid_of, gateway.seen.entries))
    (entry,) = (e for e in gateway.seen.entries if uid_of(e) == uid)
    who: Any = entry.common_properties.upstream_remote_address.socket_address  # type: ignore[attr-defined]
    said = streams[uid][0].attributes["envoy.filters.http.ext_proc"].fields["upstream.address"]
    assert said.string_value == f"{who.address}:{who.port_value}"


def ended(message: Any) -> bool:
    return bool(message.response_body.end_of_stream or message.HasField("response_trailers"))


def uid_of(entry: Any) -> str:
    metadata = entry.common_properties.metadata.filter_metadata
    return str(metadata["policy.request"].fields["uid"].string_value)


async def test_the_log_ends_what_the_gate_began(gateway: Wired) -> None:
    for script in ("", "shed"):
        await gateway.post(script=script)
    await gateway.seen.until(lambda: len(gateway.seen.entries) == 2)
    at_gate = [headers_of(m.request_headers)["x-policy-uid"] for m in gateway.seen.gate]
    assert [uid_of(e) for e in gateway.seen.entries] == at_gate
    served: Any = gateway.seen.entries[0]
    assert served.response.response_headers["endpoint-load-metrics"] == "JSON {}"
    assert served.response.response_code.value == 200
    assert served.request.request_headers["x-request-id"]


async def test_a_client_that_leaves_while_held_is_logged_with_its_uid(gateway: Wired) -> None:
    held = asyncio.create_task(gateway.post(script="hold"))
    await gateway.seen.until(lambda: gateway.seen.gate)
    held.cancel()
    await gateway.seen.until(lambda: gateway.seen.entries)
    uid = headers_of(gateway.seen.gate[0].request_headers)["x-policy-uid"]
    assert uid_of(gateway.seen.entries[0]) == uid


async def test_an_answer_under_way_sends_heartbeats_and_a_held_one_none(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where)
    manager = support.connection_manager(bootstrap)
    assert manager["access_log_options"]["access_log_flush_interval"] == "2s"
    manager["access_log_options"]["access_log_flush_interval"] = "0.1s"
    async with wired(tmp_path, bootstrap, where) as gateway:
        held = asyncio.create_task(gateway.post(script="hold"))
        slow = asyncio.create_task(gateway.post("/slow"))
        await gateway.seen.until(lambda: len(gateway.seen.entries) >= 3)
        beats: list[Any] = list(gateway.seen.entries)
        gateway.upstream.finish.set()
        gateway.policy.release.set()
        assert [(await task).status for task in (held, slow)] == [200, 200]
        at_gate = {
            headers_of(m.request_headers)[":path"]: headers_of(m.request_headers)["x-policy-uid"]
            for m in gateway.seen.gate
        }
        assert {uid_of(entry) for entry in beats} == {at_gate["/slow"]}


async def test_held_requests_survive_a_restart_of_the_policy_server(gateway: Wired) -> None:
    held = [asyncio.create_task(gateway.post(script="hold")) for _ in range(20)]
    await gateway.seen.until(lambda: len(gateway.seen.gate) == 20)
    await gateway.policy.stop()
    gateway.policy.release.set()
    await gateway.policy.start(gateway.ports["grpc"])
    assert {(await task).status for task in held} == {200}
    uids = [headers_of(m.request_headers)["x-policy-uid"] for m in gateway.seen.gate]
    assert sorted(uids[:20]) == sorted(uids[20:])


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "server_error"), ("/v1/messages", "overloaded")]
)
async def test_an_outage_is_a_503_that_says_when(tmp_path: Path, path: str, kind: str) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where)
    retry = http_filter(bootstrap, "policy.gate")["grpc_service"]["retry_policy"]
    assert retry["num_retries"] * 0.25 >= 60  # the window of the contract, too long for a test
    retry["num_retries"] = 1
    async with wired(tmp_path, bootstrap, where) as gateway:
        await gateway.policy.stop()
        answer = await gateway.post(path)
        models = await gateway.ask("GET", "/v1/models")
    assert (answer.status, models.status) == (503, 200)
    assert answer.headers["content-type"] == "application/json"
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("5", "5000")
    assert answer.headers["x-policy-reason"] == "overloaded"
    body = json.loads(answer.body)
    assert kind in body["error"]["type"]
    assert body["status"] == 503
    assert not gateway.upstream.requests or gateway.upstream.requests[0].path == "/v1/models"


async def test_a_gate_that_never_answers_is_an_outage_too(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where)
    http_filter(bootstrap, "policy.gate")["message_timeout"] = "0.2s"
    async with wired(tmp_path, bootstrap, where) as gateway:
        answer = await gateway.post(script="hold")
        gateway.policy.release.set()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")


async def test_own_503s_of_the_policy_server_stay_as_they_are(gateway: Wired) -> None:
    answer = await gateway.post(script="unavailable")
    assert (answer.status, answer.body) == (503, b'{"mine": true}')
    assert answer.headers["x-policy-reason"] == "room_full"
    assert "retry-after" not in answer.headers


async def test_fail_open_passes_traffic_on_within_a_second(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where, on_outage="open")
    retry = http_filter(bootstrap, "policy.gate")["grpc_service"]["retry_policy"]
    assert retry["num_retries"] * 0.25 <= 1
    async with wired(tmp_path, bootstrap, where) as gateway:
        await gateway.policy.stop()
        answers = await asyncio.gather(*(gateway.post() for _ in range(10)))
    assert {answer.status for answer in answers} == {200}


async def test_an_upstream_that_is_down_is_a_503(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where, upstream=f"http://127.0.0.1:{where['http']}")
    async with wired(tmp_path, bootstrap, where) as gateway:
        answer = await gateway.post()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        await gateway.seen.until(lambda: gateway.seen.entries)
        entry: Any = gateway.seen.entries[0]
        assert entry.common_properties.response_flags.upstream_connection_failure


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_above_the_ceiling_the_lower_classes_are_refused_first(
    tmp_path: Path, path: str
) -> None:
    where = support.ports()
    async with wired(tmp_path, bootstrap_for(where, gate_rate_per_s=1), where) as gateway:
        while (answer := await gateway.post(path)).status == 200:
            pass
        urgent = [{"x-request-priority": "P0"}, {"priority": "u=1, i"}]
        assert [(await gateway.post(path, headers=h)).status for h in urgent] == [200, 200]
        not_urgent = {"x-request-priority": "2", "priority": "u=0"}
        assert (await gateway.post(path, headers=not_urgent)).status == 429
        assert (await gateway.ask("GET", "/v1/models")).status == 200
        asked = [headers_of(m.request_headers)["x-policy-uid"] for m in gateway.seen.gate]
        # The last entry of what went through: nothing that was refused before it is in the log.
        await gateway.seen.until(lambda: asked[-1] in gateway.seen.entry_uids())
        assert sorted(gateway.seen.entry_uids()) == sorted(asked)
    assert answer.status == 429
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("1", "1000")
    assert answer.headers["x-policy-reason"] == "overloaded"
    assert answer.headers["x-envoy-ratelimited"] == "true"
    assert answer.headers["content-type"] == "application/json"
    body = json.loads(answer.body)
    assert body["error"]["type"] == "rate_limit_error"
    assert body["status"] == 429
    assert ("code" in body["error"]) == (path == "/v1/chat/completions")
    assert "quota" not in answer.body.decode()


async def test_a_flood_of_the_jobs_api_ends_at_envoy(tmp_path: Path) -> None:
    where = support.ports()
    async with wired(tmp_path, bootstrap_for(where, gate_rate_per_s=2), where) as gateway:
        asked = [await gateway.ask("GET", "/policy/jobs/x") for _ in range(20)]
        assert asked[0].status == 503  # it came through; nobody listens there
        assert asked[-1].status == 429
        assert asked[-1].headers["x-policy-reason"] == "overloaded"
        assert (await gateway.post()).status == 200  # its bucket is its own


async def test_tls_on_the_listener_to_the_upstream_and_to_the_policy_server(tmp_path: Path) -> None:
    where = support.ports()
    file = tmp_path / "policy.yaml"
    keys = {
        "cert": TLS / "localhost.pem",
        "key": TLS / "localhost.key",
        "client_ca": TLS / "ca.pem",
    }
    listed = ", ".join(f"{key}: {path}" for key, path in keys.items())
    file.write_text(f"server: {{tls: {{{listed}}}}}")
    bootstrap = bootstrap_for(
        where,
        file,
        upstream=f"https://localhost:{where['http']}",
        upstream_ca=str(TLS / "ca.pem"),
        tls_cert=str(keys["cert"]),
        tls_key=str(keys["key"]),
    )
    credentials = grpc.ssl_server_credentials(
        [(keys["key"].read_bytes(), keys["cert"].read_bytes())],
        root_certificates=keys["client_ca"].read_bytes(),
        require_client_auth=True,
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(keys["cert"], keys["key"])
    client = ssl.create_default_context(cafile=str(keys["client_ca"]))
    async with (
        running_upstream(where["http"], server) as models,
        wired(tmp_path, bootstrap, where, credentials) as gateway,
        aiohttp.ClientSession() as http,
        http.post(f"https://localhost:{where['gateway']}/v1/x", ssl=client) as response,
    ):
        assert response.status == 200
        assert response.headers["x-policy-class"] == "P1"
        assert len(gateway.seen.gate) == len(models.requests) == 1
        assert models.requests[0].headers["host"] == "localhost"


async def test_an_upstream_whose_certificate_is_not_trusted_gets_nothing(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where, upstream=f"https://localhost:{where['http']}")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")
    async with (
        running_upstream(where["http"], server) as models,
        wired(tmp_path, bootstrap, where) as gateway,
    ):
        assert (await gateway.post()).status == 503
        assert not models.requests


async def test_grpc_callers_over_http2_reach_a_grpc_upstream(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where, upstream=f"grpc://127.0.0.1:{where['http']}")

    async def echo(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"Do": handler}),))
    server.add_insecure_port(f"127.0.0.1:{where['http']}")
    await server.start()
    async with (
        wired(tmp_path, bootstrap, where) as gateway,
        grpc.aio.insecure_channel(f"127.0.0.1:{where['gateway']}") as channel,
    ):
        call = channel.unary_unary("/t.T/Do")
        assert await call(b"hello") == b"hello"
        await gateway.policy.stop()
    await server.stop(0)


async def test_two_upstreams_share_and_one_that_is_down_is_left_out(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where)
    second = support.Upstream.parse(f"http://127.0.0.1:{where['http']}")
    bootstrap = support.build_bootstrap(
        support.load_config(None, {}),
        support.GatewayOptions(
            upstreams=(support.Upstream.parse(f"http://127.0.0.1:{where['upstream']}"), second),
            host="127.0.0.1",
            port=where["gateway"],
            grpc_port=where["grpc"],
            admin_port=where["admin"],
        ),
    )
    async with wired(tmp_path, bootstrap, where) as gateway:
        answers = [await gateway.post() for _ in range(12)]  # the second is not up yet
        assert {answer.status for answer in answers} == {200}
        async with running_upstream(where["http"]) as other:
            while not other.requests:
                await asyncio.gather(*(gateway.post() for _ in range(4)))


async def test_the_admin_port_is_loopback_only(tmp_path: Path) -> None:
    where = support.ports()
    bootstrap = bootstrap_for(where)
    assert bootstrap["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    async with running_envoy(bootstrap, tmp_path) as process:
        assert process.returncode is None
