"""The doctor's judgement on Redis and on state files; the rest of it is shown by the stack's own test."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_deploy.doctor import examine, judge_redis
from headrace_deploy.state import StateError, load_state


@pytest.mark.parametrize(
    ("version", "policy", "level"),
    [
        ("7.0.15", "volatile-ttl", "ok"),
        ("8.2.3", "noeviction", "ok"),
        ("7.2.4", "allkeys-lru", "fail"),
        ("6.2.14", "volatile-ttl", "fail"),
        ("7.2.4", "", "warn"),
    ],
)
def test_a_redis_that_may_drop_live_streams_is_refused(version: str, policy: str, level: str) -> None:
    """1. A server of some version and policy. 2. It is judged, and what is not ok names a next step."""
    finding = judge_redis({"redis_version": version}, policy)
    assert finding.level == level
    assert bool(finding.next_step) == (level != "ok")


def test_a_valkey_is_shown_as_one_and_judged_by_the_redis_that_it_speaks() -> None:
    """1. A Valkey answers. 2. The finding names product, version and the version of Redis that it speaks."""
    about = {"server_name": "valkey", "valkey_version": "9.1.2", "redis_version": "7.2.4"}
    finding = judge_redis(about, "volatile-ttl")
    assert (finding.level, finding.detail.split(", max")[0]) == ("ok", "Valkey 9.1.2, speaks Redis 7.2.4")
    assert judge_redis(about | {"redis_version": "6.2.0"}, "volatile-ttl").level == "fail"


def test_where_nothing_was_started_the_next_step_is_named(tmp_path: Path) -> None:
    """1. An empty folder is examined. 2. The last finding says `make up`; nothing was created there."""
    finding = examine(tmp_path)[-1]
    assert (finding.level, finding.next_step) == ("warn", "`make up`")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_state_file_is_a_finding_not_a_crash(tmp_path: Path) -> None:
    """1. state.json is of another kind. 2. Loading says so without showing its content; the doctor goes on."""
    (tmp_path / "state.json").write_text('{"services": "secret-thing"}')
    with pytest.raises(StateError) as caught:
        load_state(tmp_path)
    assert "secret-thing" not in str(caught.value)
    assert examine(tmp_path)[-1].level == "fail"
