"""What KEDA's client sends and reads, and what a trigger's metadata may say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from policy_server.adapters.keda_messages import file_descriptor
from policy_server.adapters.keda_trigger import Trigger, TriggerError, read_trigger
from policy_server.core.demand import Demand

ROOT = Path(__file__).resolve().parents[3]


def test_the_descriptors_are_what_protoc_makes_of_our_file(tmp_path: Path) -> None:
    made = tmp_path / "set.bin"
    protoc = (sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos"))
    out = f"--descriptor_set_out={made}"
    subprocess.run([*protoc, out, "externalscaler.proto"], check=True, timeout=60)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    ours = file_descriptor()
    assert _without_json_names(file) == _without_json_names(ours)


def _without_json_names(file: descriptor_pb2.FileDescriptorProto) -> str:
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    for message in copy.message_type:
        for one in (message, *message.nested_type):
            for field in one.field:
                field.ClearField("json_name")
    for method in copy.service[0].method:
        method.ClearField("options")
    return str(copy)


def trigger(metadata: dict[str, str], *pools: str) -> Trigger:
    return read_trigger(metadata, pools or ("chat",))


def test_without_words_it_is_two_waiting_per_replica_of_the_only_pool() -> None:
    assert trigger({"scalerAddress": "x:9002"}) == Trigger("chat", "waitingPerReplica", 2.0)


@pytest.mark.parametrize(
    ("metadata", "metric", "target"),
    [
        ({"waitingPerReplica": "5"}, "waitingPerReplica", 5.0),
        ({"utilization": "0.75"}, "utilization", 0.75),
        ({"jobsPerReplica": "50"}, "jobsPerReplica", 50.0),
    ],
)
def test_one_metric_with_its_target(metadata: dict[str, str], metric: str, target: float) -> None:
    assert trigger({"pool": "b", **metadata}, "a", "b") == Trigger("b", metric, target)


@pytest.mark.parametrize(
    ("metadata", "pools", "words"),
    [
        ({}, ("a", "b"), "several; write pool: a, b"),
        ({"pool": "c"}, ("a", "b"), "no pool 'c'; there is: a, b"),
        ({"waitingPerReplicas": "2"}, ("a",), "did you mean 'waitingPerReplica'"),
        ({"Pool": "a"}, ("a",), "did you mean 'pool'"),
        ({"utilisation": "0.8"}, ("a",), "did you mean 'utilization'"),
        ({"waitingPerReplica": "two"}, ("a",), "'two' is no target"),
        ({"waitingPerReplica": "0"}, ("a",), "'0' is no target"),
        ({"waitingPerReplica": "nan"}, ("a",), "'nan' is no target"),
        ({"waitingPerReplica": "inf"}, ("a",), "'inf' is no target"),
        ({"threshold": "3"}, ("a",), "'threshold' is not known; known are pool, waitingPerReplica"),
        ({"target": "9"}, ("a",), "'target' is not known"),
        ({"waiting": "5"}, ("a",), "'waiting' is not known"),
        ({"waitingPerReplica": "2", "metricType": "Value"}, ("a",), "'metricType' is not known"),
        ({"thresholdFromEnv": "3"}, ("a",), "'thresholdFromEnv' is not known"),
        ({"utilization": "80"}, ("a",), 'write for example "0.8" for 80 %'),
        ({"utilization": ".8", "jobsPerReplica": "1"}, ("a",), "one trigger for each"),
    ],
)
def test_what_is_wrong_is_said_with_its_fix(
    metadata: dict[str, str], pools: tuple[str, ...], words: str
) -> None:
    with pytest.raises(TriggerError) as found:
        read_trigger(metadata, pools)
    assert words in str(found.value)


KEDAS = "scalerAddress enableTLS unsafeSsl caCert tlsClientCert tlsClientKey tlsCertFile"


@pytest.mark.parametrize("key", KEDAS.split())
def test_keda_s_own_keys_are_left_alone(key: str) -> None:
    """It hands on all that the trigger's metadata says."""
    for spelled in (key, f"{key}FromEnv"):
        assert trigger({spelled: "x"}).metric == "waitingPerReplica"


def test_what_keda_read_from_the_environment_counts_like_what_is_written() -> None:
    given = {"poolFromEnv": "b", "utilizationFromEnv": "0.5"}
    assert trigger(given, "a", "b") == Trigger("b", "utilization", 0.5)
    assert trigger({**given, "pool": "a"}, "a", "b").pool == "a"


def test_metric_names_fit_into_a_path_of_kubernetes() -> None:
    assert Trigger("Chat_7.b", "waitingPerReplica", 2.0).name == "waiting-per-replica-chat-7-b"


@pytest.mark.parametrize(
    ("demand", "values"),
    [
        (Demand(waiting=7, jobs=3, inflight=12, limit=16.0, ready=1), (7.0, 3.0, 0.75)),
        (Demand(waiting=7, jobs=0, inflight=0, limit=16.0, ready=0), (7.0, 0.0, 1.0)),
        (Demand(waiting=0, jobs=0, inflight=0, limit=16.0, ready=0), (0.0, 0.0, 0.0)),
        (Demand(waiting=1, jobs=0, inflight=20, limit=16.0), (1.0, 0.0, 1.25)),
    ],
)
def test_what_each_metric_counts(demand: Demand, values: tuple[float, ...]) -> None:
    metrics = ("waitingPerReplica", "jobsPerReplica", "utilization")
    assert tuple(Trigger("a", m, 1.0).value(demand) for m in metrics) == values
