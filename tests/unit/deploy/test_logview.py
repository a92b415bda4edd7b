"""The log view names each line's service and begins with the last lines only."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_deploy import logview
from headrace_deploy.state import StateError


def test_each_line_names_its_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1. Two services wrote logs. 2. The last two lines of each are shown, behind the service's name."""
    (tmp_path / "api-gateway.log").write_text("one\ntwo\nthree\n")
    (tmp_path / "relay.log").write_bytes(b"caf\xff\n")
    logview.show(tmp_path, only="", lines=2, follow=False)
    shown = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" ", 1)[-1] for line in shown] == ["two", "three", "caf\ufffd"]
    assert "api-gateway" in shown[0]
    assert "relay" in shown[2]


def test_color_is_for_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1. Without color no escape code is written. 2. With it there is one."""
    (tmp_path / "relay.log").write_text("here\n")
    for color in (False, True):
        logview.show(tmp_path, only="", lines=1, follow=False, color=color)
        assert ("\x1b" in capsys.readouterr().out) == color


def test_one_service_alone_and_one_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1. One service is asked for: only its lines come. 2. Another name: the error lists those that exist."""
    (tmp_path / "relay.log").write_text("here\n")
    (tmp_path / "worker.log").write_text("elsewhere\n")
    logview.show(tmp_path, only="relay", lines=5, follow=False)
    assert "elsewhere" not in capsys.readouterr().out
    with pytest.raises(StateError, match="there are: relay, worker"):
        logview.show(tmp_path, only="rely", lines=5, follow=False)
