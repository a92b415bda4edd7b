"""The look at the container engine, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from sandbox_provisioner.adapters.docker_engine import THREADS, DaemonThreads, DockerEngine

from tests.integration.sandbox_provisioner.process import answering_engine, stalled_engine

POOL = IPv4Network("10.253.240.0/20")


async def test_an_engine_that_comes_and_goes(tmp_path: Path) -> None:
    """1. An engine answers: its facts and the free subnets are told, and that it is not used yet.
    2. It is gone: the next look tells that instead.
    """
    engine = DockerEngine(host=f"unix://{tmp_path}/engine.sock", pool=POOL)
    subnets = ["172.17.0.0/16", "10.253.240.0/28", "10.253.241.32/27", "fd00::/64"]
    async with answering_engine(tmp_path / "engine.sock", subnets=subnets):
        await engine.probe()
        report = await engine.latest()
        assert (report.engine, report.version, report.engine_id) == ("docker", "27.1.2", "engine-one")
        assert report.subnets_free == 256 - 3
        assert "docker 27.1.2 answers" in report.unavailable_reason
        assert "does not make sandboxes yet" in report.unavailable_reason

    await engine.probe()
    report = await engine.latest()
    assert (report.engine, report.subnets_free) == ("", 0)
    assert "no container engine answers" in report.unavailable_reason


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"hello", "it does not talk as one (JSONDecodeError)"),
        (b"[1,2]", "it does not talk as one (TypeError)"),
        (b"{}", "it does not talk as one (KeyError)"),
    ],
)
async def test_an_answer_that_is_not_an_engines(tmp_path: Path, body: bytes, problem: str) -> None:
    """1. Something else listens on the socket: its answer is no JSON, or JSON of another shape.
    2. That is a report, not an error.
    """

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_unix_server(talk, tmp_path / "engine.sock")
    async with server:
        report = await DockerEngine(host=f"unix://{tmp_path}/engine.sock", pool=POOL).probe()
    assert report.engine == ""
    assert report.problem == problem


async def test_a_stalled_engine_never_takes_more_than_its_threads(tmp_path: Path) -> None:
    """1. The engine accepts and never answers.  2. Many looks at once each end within their bound.
    3. No more than THREADS threads were ever stuck.
    """
    engine = DockerEngine(host=f"unix://{tmp_path}/engine.sock", pool=POOL)
    async with stalled_engine(tmp_path / "engine.sock") as accepted, asyncio.timeout(10.0):
        looks = asyncio.gather(*(engine.probe() for _ in range(8)))
        await accepted.wait()
        stuck = probing()
        assert {report.problem for report in await looks} == {"it did not answer within 2 s"}
        for thread in {*stuck, *probing()}:
            await asyncio.to_thread(thread.join)
    assert 0 < len(stuck) <= THREADS


def probing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "docker-probe"]


async def test_a_call_in_a_thread_returns_and_raises() -> None:
    """1. Work that returns, work that raises.  2. Its caller gets the same; each gave its place back."""
    threads = DaemonThreads(1)

    def fail() -> None:
        raise OSError("no engine")

    for _ in range(3):
        assert await threads.call(lambda: 42, name="work") == 42
        with pytest.raises(OSError, match="no engine"):
            await threads.call(fail, name="work")


async def test_a_caller_that_leaves_does_not_free_the_thread() -> None:
    """1. The caller of stuck work gives up.  2. The place stays taken until the work ends, then it is free again."""
    threads = DaemonThreads(1)
    release = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await threads.call(release.wait, name="work")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await threads.call(lambda: 1, name="work")
    release.set()
    async with asyncio.timeout(5.0):
        assert await threads.call(lambda: 2, name="work") == 2
