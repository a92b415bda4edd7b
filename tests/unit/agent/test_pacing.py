"""Reading many answers together, over real sockets."""

from __future__ import annotations

import asyncio

from headrace_agent.pacing import WINDOW_MAX_SECONDS, ReadPacer


class Received(asyncio.Protocol):
    """Collects what comes; `arrived` is set with every piece."""

    def __init__(self) -> None:
        self.data = b""
        self.arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrived.set()


class Greeter(asyncio.Protocol):
    """Sends one byte at once and keeps the connection for more."""

    def __init__(self, opened: list[asyncio.Transport]) -> None:
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._opened.append(transport)
        transport.write(b"1")


async def test_a_paused_socket_is_read_whole_when_the_window_closes() -> None:
    """
    1. Thirty sockets have had their first byte and are paused.
    2. Their servers send three more pieces each: nothing is read while the window is open.
    3. The window closes by itself: every socket has every byte, in order.
    """
    loop = asyncio.get_running_loop()
    opened: list[asyncio.Transport] = []
    server = await loop.create_server(lambda: Greeter(opened), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pacer = ReadPacer(loop)
    clients = [await loop.create_connection(Received, "127.0.0.1", port) for _ in range(30)]
    async with asyncio.timeout(10):
        for _, received in clients:
            await received.arrived.wait()
            received.arrived.clear()
        for transport, _ in clients:
            pacer.pause(transport)
        for transport in opened:
            for piece in (b"2", b"3", b"4"):
                transport.write(piece)
        assert {received.data for _, received in clients} == {b"1"}
        for _, received in clients:
            while received.data != b"1234":
                await received.arrived.wait()
                received.arrived.clear()
    for transport, _ in clients:
        transport.close()
    server.close()
    await server.wait_closed()


async def test_a_socket_that_closes_while_paused_is_left_alone() -> None:
    """
    1. A socket is paused and then closed by its owner, as a cancel does.
    2. The window closes without an error, and a socket paused afterwards is still resumed.
    """
    loop = asyncio.get_running_loop()
    opened: list[asyncio.Transport] = []
    server = await loop.create_server(lambda: Greeter(opened), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pacer = ReadPacer(loop)
    async with asyncio.timeout(10):
        closing, _ = await loop.create_connection(Received, "127.0.0.1", port)
        pacer.pause(closing)
        closing.close()
        pacer.pause(closing)
        await asyncio.sleep(2 * WINDOW_MAX_SECONDS)
        living, received = await loop.create_connection(Received, "127.0.0.1", port)
        pacer.pause(living)
        await received.arrived.wait()
        assert received.data == b"1"
    living.close()
    server.close()
    await server.wait_closed()
