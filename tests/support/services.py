"""All the services of the gRPC port around a gate, as `app` builds them."""

from __future__ import annotations

from policy_server.adapters.access_log import AccessLog
from policy_server.adapters.desk import Desk
from policy_server.adapters.ext_authz import ExtAuthz
from policy_server.adapters.ext_proc import ExtProc
from policy_server.adapters.ext_proc_dialogue import GateJobs
from policy_server.adapters.ext_proc_stream import SingleStream
from policy_server.adapters.grpc_server import Services
from policy_server.adapters.job_intake import JobIntake
from policy_server.adapters.keda import KedaScaler
from policy_server.adapters.observer import AnswerObserver
from policy_server.adapters.ports import Gate, JobDesk
from policy_server.adapters.rules import ClassifyRules
from policy_server.core.demand import Demand
from policy_server.signals.observer import parser_for
from policy_server.signals.orca import read_report


def services_of(
    gate: Gate,
    rules: ClassifyRules | None = None,
    *,
    streams_by_default: bool = False,
    jobs: JobDesk | None = None,
    keda: KedaScaler | None = None,
) -> tuple[Desk, Services]:
    """The desk and the services in front of it."""
    desk = Desk(gate, rules or ClassifyRules())
    desk.jobs = jobs
    intake = JobIntake(jobs, gate) if jobs is not None else None
    observer = AnswerObserver(gate, parser_for, read_report)
    return desk, Services(
        gate=ExtProc(desk, observer),
        jobs=GateJobs(desk, observer, intake),
        stream=SingleStream(desk, observer, read_report, intake),
        authz=ExtAuthz(desk, intake),
        access_log=AccessLog(gate, read_report),
        keda=keda or KedaScaler(lambda: ["default"], lambda _: Demand(0, 0, 0, 16.0)),
        streams_by_default=streams_by_default,
    )
