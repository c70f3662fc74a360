"""What the policy server can't see: the operator is told, at the start and while it lasts."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub

from tests.support.ext_proc_messages import request_headers
from tests.support.stack import chat, running_stack, stop


@pytest.mark.parametrize("orca", [True, False], ids=["with reports", "without"])
async def test_the_operator_is_told_what_the_limit_cannot_see(tmp_path: Path, orca: bool) -> None:
    backend = ("--orca",) if orca else ()
    async with running_stack(tmp_path, {}, backend, wiring="authz") as stack:
        await stop(stack.policy)
        await stack.start_policy("--wiring", "authz")
        (warning,) = (await stack.status())["warnings"]
        assert "pool default: ext_authz without load reports" in warning
        assert warning in (tmp_path / "policy.log").read_text()
        async with stack.client.post(
            f"{stack.url}/v1/chat/completions", json=chat(), headers={"x-request-priority": "0"}
        ) as answer:
            assert answer.status == 200
        await stack.until(inflight=0)
        assert bool((await stack.status())["warnings"]) is not orca


async def test_the_operator_is_told_of_requests_whose_end_nobody_can_tell(tmp_path: Path) -> None:
    async with running_stack(tmp_path, {"default_class": "P0"}) as stack:
        address = f"127.0.0.1:{stack.where['grpc']}"
        assert (await stack.status())["warnings"] == []
        async with grpc.aio.insecure_channel(address) as foreign:  # an Envoy that stamps nothing
            call = ExternalProcessorStub(foreign).Process()
            await call.write(request_headers(uid=""))
            await call.read()
        (warning,) = (await stack.status())["warnings"]
        assert "1 requests came without x-policy-uid" in warning
        assert (await stack.pool())["inflight"]["requests"] == 1
