"""OpenTelemetry: OTLP when an endpoint is configured, otherwise OTLP JSON lines in the data folder.

Export never blocks or fails a run: spans wait in a bounded queue of a thread of the SDK's own.
"""

from __future__ import annotations

import json
import os
import re
import threading
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from headrace_kit.ids import new_id

ROTATE_BYTES = 64 * 1024 * 1024
"""A trace file is renamed to `.1` at this size: at most two of them per process."""
LEFT_FILES_MAX = 20
"""Files of processes that are gone, kept per service: enough to look back over some restarts."""

_ID_FIELDS = ("traceId", "spanId", "parentSpanId")


class JsonLinesExporter(SpanExporter):
    """Appends each batch as one line of OTLP JSON (ids in hex, as the OTLP JSON mapping asks)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append one batch; a full disk loses traces, never runs."""
        document = MessageToDict(encode_spans(spans))
        for resource in document.get("resourceSpans", []):
            for scope in resource.get("scopeSpans", []):
                for span in scope.get("spans", []):
                    _hex_ids(span)
                    for link in span.get("links", []):
                        _hex_ids(link)
        line = json.dumps(document, separators=(",", ":")) + "\n"
        try:
            with self._lock:
                if self._path.exists() and self._path.stat().st_size > ROTATE_BYTES:
                    self._path.replace(self._path.with_suffix(self._path.suffix + ".1"))
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line)
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS


def _hex_ids(item: dict[str, Any]) -> None:
    for field in _ID_FIELDS:
        if field in item:
            item[field] = b64decode(item[field]).hex()


def drop_old_files(folder: Path, *, service: str) -> None:
    """Delete the oldest files of the service's processes that are gone, all but LEFT_FILES_MAX."""
    name = re.compile(rf"{re.escape(service)}-(\d+)\.jsonl(?:\.1)?")
    left = []
    for path in folder.iterdir():
        found = name.fullmatch(path.name)
        if found is not None and not _lives(int(found[1])):
            # Another process of the service may be deleting the same files.
            with suppress(FileNotFoundError):
                left.append((path.stat().st_mtime, path))
    for _, path in sorted(left)[: max(0, len(left) - LEFT_FILES_MAX)]:
        path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def setup(*, service: str, data_dir: Path, version: str = "0.1.0") -> TracerProvider:
    """Install the process's tracer provider; call its `shutdown()` last.

    The standard OTEL_* variables choose endpoint, sampler and queue sizes; without an endpoint the spans of the process
    go to `<data_dir>/traces/<service>-<pid>.jsonl`: a service may be several processes, and each rotates its own file.
    """
    facts = {"service.name": service, "service.version": version, "service.instance.id": str(new_id())}
    provider = TracerProvider(resource=Resource.create(facts))
    exporter: SpanExporter
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        exporter = OTLPSpanExporter()
    else:
        folder = data_dir / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        drop_old_files(folder, service=service)
        exporter = JsonLinesExporter(folder / f"{service}-{os.getpid()}.jsonl")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
    trace.set_tracer_provider(provider)
    return provider
