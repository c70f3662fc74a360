"""How much memory Envoy may use, and what it does before that is gone.

Whose body is under way costs its bytes, whether it will ever end or not, and the policy server
hears of it at its end only. So Envoy bounds itself, by its heap:

    80 %   streams with the largest bodies are cut, from 16 MiB down to 128 KiB at 95 %; HTTP/1.1
           connections that still send, and silent streams, more of them the nearer to 95 %
    90 %   memory that is free goes back to the machine
    95 %   new requests are answered 503 with Retry-After (see `local_reply`)

What is promised to those who wait stays below the first of these, unless `envoy.max_heap` is set
to less:

    .8 · heap = 64 MiB                                 Envoy itself
              + 256 MiB                                bodies on their way to the gate, and large
                                                       JSON while it is read
              + per pool: room.max_requests · 84 KiB   streams and connections, measured
                          1.1 · room.max_bytes         bodies of those who wait, measured
                          limit.max · 84 KiB           answers under way
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.overload.v3 import (
    BufferFactoryConfig,
    LoadShedPoint,
    OverloadAction,
    OverloadManager,
    ResourceMonitor,
    ScaledTrigger,
    ScaleTimersOverloadActionConfig,
    ScaleTimersOverloadActionConfigScaleTimer,
    ScaleTimersOverloadActionConfigTimerType,
    ShrinkHeapConfig,
    ThresholdTrigger,
    Trigger,
)
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import (
    DownstreamConnectionsConfig,
)
from envoy_data_plane.envoy.extensions.resource_monitors.fixed_heap.v3 import FixedHeapConfig
from envoy_data_plane.google.protobuf import Any

from policy_server.config import MIN_ENVOY_HEAP_BYTES, Config
from policy_server.envoy_config.wire import seconds
from policy_server.envoy_config.wirings import ANSWER_MARGIN_S

# Bounds Envoy's memory and file descriptors; far above what one policy server lets through.
MAX_CONNECTIONS = 50_000
HEAP = "envoy.resource_monitors.fixed_heap"
ACTIONS = "envoy.overload_actions."
CUT_FROM, CUT_ALL, SHRINK, REFUSE = 0.80, 0.95, 0.90, 0.95
# Eight sizes, each twice the one before, are told apart: from 128 KiB to 16 MiB and more.
LEAST_CUT_POWER_OF_TWO = 17
# Loopback brings some 2 GB in a second; at the default of a second a look would come too late.
LOOK_EVERY_S = 0.1
MIB = 1024 * 1024
ENVOY_ITSELF, UNDER_WAY = 64 * MIB, 256 * MIB
STREAM_BYTES = 84 * 1024
BODY_FACTOR = 1.1
MACHINE_SHARE = 0.6  # the rest is for two policy servers, Envoy's code and what lies in pieces
OVERLOAD_RUNTIME = {
    # Heap that is free but kept is no pressure: after one large body Envoy would refuse for good.
    "envoy.reloadable_features.fixed_heap_use_allocated": True,
}


def heap_bytes(config: Config, machine_bytes: int = 0) -> int:
    """The bound: as set, else what the waiting rooms of this configuration may need, and where
    the machine is known (not 0) no more than its share of that."""
    if config.envoy.max_heap is not None:
        return int(config.envoy.max_heap)
    streams = sum(config.room.max_requests + pool.limit.max for pool in config.pools)
    bodies = BODY_FACTOR * int(config.room.max_bytes) * len(config.pools)
    need = ENVOY_ITSELF + UNDER_WAY + streams * STREAM_BYTES + bodies
    heap = int(-(-need / CUT_FROM // MIB)) * MIB
    share = int(MACHINE_SHARE * machine_bytes)
    return min(heap, max(MIN_ENVOY_HEAP_BYTES, share)) if share else heap


def overload_manager(config: Config, machine_bytes: int = 0) -> OverloadManager:
    """The bounds of connections and heap, and what happens near the latter."""
    return OverloadManager(
        refresh_interval=seconds(LOOK_EVERY_S),
        resource_monitors=[_connections(), _heap(heap_bytes(config, machine_bytes))],
        actions=[
            _action("reset_high_memory_stream", _between(CUT_FROM, CUT_ALL)),
            _shrink_heap(),
            _shorten_silence(config),
            _action("stop_accepting_requests", _above(REFUSE)),
        ],
        loadshed_points=[
            LoadShedPoint(
                name="envoy.load_shed_points.http1_server_abort_dispatch",
                triggers=[_between(CUT_FROM, CUT_ALL)],
            )
        ],
        buffer_factory_config=BufferFactoryConfig(
            minimum_account_to_track_power_of_two=LEAST_CUT_POWER_OF_TWO
        ),
    )


def _connections() -> ResourceMonitor:
    limit = DownstreamConnectionsConfig(max_active_downstream_connections=MAX_CONNECTIONS)
    return ResourceMonitor(
        name="envoy.resource_monitors.global_downstream_max_connections",
        typed_config=Any.pack(limit),
    )


def _heap(most_bytes: int) -> ResourceMonitor:
    bound = FixedHeapConfig(max_heap_size_bytes=most_bytes)
    return ResourceMonitor(name=HEAP, typed_config=Any.pack(bound))


def _action(name: str, trigger: Trigger) -> OverloadAction:
    return OverloadAction(name=ACTIONS + name, triggers=[trigger])


def _shrink_heap() -> OverloadAction:
    action = _action("shrink_heap", _above(SHRINK))
    action.typed_config = Any.pack(ShrinkHeapConfig(timer_interval=seconds(1)))
    return action


def _shorten_silence(config: Config) -> OverloadAction:
    timer = ScaleTimersOverloadActionConfigScaleTimer(
        timer=ScaleTimersOverloadActionConfigTimerType.HTTP_DOWNSTREAM_STREAM_IDLE,
        min_timeout=seconds(config.longest_hold_s + ANSWER_MARGIN_S),
    )
    action = _action("reduce_timeouts", _between(CUT_FROM, CUT_ALL))
    action.typed_config = Any.pack(ScaleTimersOverloadActionConfig(timer_scale_factors=[timer]))
    return action


def _above(value: float) -> Trigger:
    return Trigger(name=HEAP, threshold=ThresholdTrigger(value=value))


def _between(begin: float, end: float) -> Trigger:
    scaled = ScaledTrigger(scaling_threshold=begin, saturation_threshold=end)
    return Trigger(name=HEAP, scaled=scaled)
