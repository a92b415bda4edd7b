"""One answer on its way: what is due by the clock is written, and the script's faults happen where it says.

Invariant: an answer tells its end to `on_end` exactly once.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from headrace_loadtest.scripts import Turn
from headrace_loadtest.stats import Facts
from headrace_loadtest.wire import DONE, STREAM_HEAD, Chunks, error_body, framed, json_response, usage_of

BURST = 256
"""Tokens per write of an unpaced answer: between two writes a slow client can pause it."""
BREAK_DELAY_S = 0.05
"""Between the last token and a broken connection: the client has read the tokens by then."""
SPLIT_DELAY_S = 0.001
"""Between the pieces of a split answer, so that they arrive one by one."""
EARLY_S = 0.001
"""uvloop's timers have whole milliseconds and may fire this much early."""


class Answer:
    """Sends one turn over a connection."""

    def __init__(
        self,
        transport: asyncio.Transport,
        turn: Turn,
        facts: Facts,
        *,
        on_end: Callable[[Facts, str], None],
        name: str,
        prompt_tokens: int,
        include_usage: bool,
        whole: dict[str, Any] | None,
    ) -> None:
        self._transport = transport
        self._turn = turn
        self._facts = facts
        self._on_end = on_end
        self._chunks = Chunks(name, facts.model)
        self._prompt_tokens = prompt_tokens
        self._include_usage = include_usage
        self._whole = whole
        self._loop = asyncio.get_running_loop()
        self._first_at = facts.started + turn.first_s
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        script = turn.script
        faults = [
            (script.stall_after, self._fall_silent),
            (script.disconnect_after, self._reset),
            (script.close_after, self._close),
            (script.error_after, self._tell_error),
        ]
        # The earliest fault, if any, stands where the end would be.
        self._stop_at, self._finish = min(
            ((after, act) for after, act in faults if after is not None and after <= len(turn.deltas)),
            key=lambda fault: fault[0],
            default=(len(turn.deltas), self._complete),
        )

    def start(self) -> None:
        """Begin, by the clock that started when the request came."""
        if self._turn.script.stall:
            return
        if self._whole is not None:
            self._at(self._facts.started + self._turn.ideal_seconds, self._send_whole)
        else:
            self._at(self._first_at, self._begin)

    def pause(self) -> None:
        """Write nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Write what became due meanwhile."""
        self._paused = False
        if self._timer is None and self._facts.outcome == "open" and not self._turn.script.stall:
            self._at(0.0, self._step)

    def connection_lost(self) -> None:
        """Take note that the client has left."""
        self._end("disconnected")

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(max(0.0, moment - time.monotonic()), act)

    def _end(self, outcome: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._facts.outcome == "open":
            self._on_end(self._facts, outcome)

    def _send_whole(self) -> None:
        self._facts.tokens = len(self._turn.deltas)
        self._transport.write(json_response(200, self._whole))
        self._end("completed")

    def _begin(self) -> None:
        opening = STREAM_HEAD + framed(self._chunks.delta(b'{"role":"assistant","content":""}'))
        if self._turn.script.split_bytes is not None:
            tokens = b"".join(map(self._chunks.delta, self._turn.deltas))
            self._trickle(opening + framed(tokens) + self._tail(), 0, self._turn.script.split_bytes)
            return
        self._transport.write(opening)
        self._step()

    def _trickle(self, data: bytes, at: int, size: int) -> None:
        """Send a piece per turn of the loop, since writes of one turn leave together."""
        self._transport.write(data[at : at + size])
        if at + size < len(data):
            self._timer = self._loop.call_later(SPLIT_DELAY_S, self._trickle, data, at + size, size)
        else:
            self._facts.tokens = len(self._turn.deltas)
            self._end("completed")

    def _step(self) -> None:
        self._timer = None
        if self._paused:
            return
        rate, sent = self._turn.rate, self._facts.tokens
        if rate:
            now = time.monotonic()
            due = math.floor((now + EARLY_S - self._first_at) * rate) + 1
            self._facts.late_ms = max(self._facts.late_ms, (now - self._first_at - sent / rate) * 1000)
        else:
            due = sent + BURST
        upto = min(due, self._stop_at)
        if upto > sent:
            self._facts.tokens = upto
            self._transport.write(framed(b"".join(map(self._chunks.delta, self._turn.deltas[sent:upto]))))
        if upto < self._stop_at:
            self._at(self._first_at + upto / rate if rate else 0.0, self._step)
        elif self._finish == self._complete:
            self._at(self._first_at + upto / rate if rate else 0.0, self._complete)
        else:
            self._at(time.monotonic() + BREAK_DELAY_S, self._finish)

    def _complete(self) -> None:
        self._transport.write(self._tail())
        self._end("completed")

    def _tail(self) -> bytes:
        tail = self._chunks.last(self._turn.finish_reason)
        if self._include_usage:
            tail += self._chunks.usage(usage_of(self._turn, self._prompt_tokens))
        return framed(tail + DONE) + b"0\r\n\r\n"

    def _fall_silent(self) -> None:
        self._timer = None

    def _reset(self) -> None:
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends RST
        self._end("reset")
        self._transport.abort()

    def _close(self) -> None:
        self._end("closed")
        self._transport.close()

    def _tell_error(self) -> None:
        data = json_response(500, error_body("the script breaks here", "server_error")).partition(b"\r\n\r\n")[2]
        self._transport.write(framed(b"data: " + data + b"\n\n") + b"0\r\n\r\n")
        self._end("error")
