"""The demonstration moves what it says, and draws it."""

from xfer import demo


def test_demo(capsys):
    assert demo.main() == 0
    printed = capsys.readouterr().out
    lines = [line.strip() for line in printed.splitlines()]
    assert lines.count("0" * 18 + "1" * 18) == 4
    assert lines.count("2" * 18 + "3" * 18) == 4
    assert lines.count("4" * 12 + "5" * 12 + "6" * 12) == 8
    assert "all 288 elements" in printed


def test_demo_notices_what_does_not_arrive(capsys, monkeypatch):
    monkeypatch.setattr(demo.xfer.Plan, "run", lambda *_: None)
    monkeypatch.setattr(demo.xfer.Plan, "wait", lambda *_: None)
    assert demo.main() == 1
    assert "rank 4 has wrong elements" in capsys.readouterr().out
