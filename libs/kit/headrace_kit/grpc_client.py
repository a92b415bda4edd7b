"""Channels to other services: one per address, with keepalive, stated sizes and retries of UNAVAILABLE where safe."""

from __future__ import annotations

import json
from collections.abc import Iterable

import grpc

from headrace_kit.grpc_server import MAX_MESSAGE_BYTES


def open_channel(address: str, *, retry_methods: Iterable[str] = ()) -> grpc.aio.Channel:
    """Open a lazy channel to `address` (host:port).

    `retry_methods` are full names (`headrace.run.v1.RunService/GetRun`) of reads and keyed writes; these alone are
    retried, on UNAVAILABLE only, at most 3 tries inside the caller's deadline.
    """
    names = [dict(zip(("service", "method"), name.split("/", 1), strict=True)) for name in retry_methods]
    config = {
        "methodConfig": [
            {
                "name": names,
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "0.5s",
                    "backoffMultiplier": 3,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
        if names
        else []
    }
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
            # A restarted neighbour is found again within a second, not after minutes of back-off.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.service_config", json.dumps(config)),
        ],
    )
