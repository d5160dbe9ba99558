"""Who works on a run: one process at a time, and the dead let go."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from headcount.study import claims
from headcount.study.claims import Owner, claim, holder


def test_one_holds_and_the_next_may_when_it_lets_go(tmp_path):
    with claim(tmp_path) as ours:
        assert ours is not None and ours.holds()
        assert holder(tmp_path) == ours.owner
        with claim(tmp_path) as second:
            assert second is None
    assert holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_of_many_at_once_exactly_one_wins(tmp_path):
    start, won, done = threading.Barrier(16), [], threading.Event()

    def try_to():
        start.wait()
        with claim(tmp_path) as ours:
            won.append(ours is not None)
            if ours:
                done.wait(20)

    threads = [threading.Thread(target=try_to) for _ in range(16)]
    for thread in threads:
        thread.start()
    while len(won) < 16:
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert sum(won) == 1


def test_a_killed_holder_lets_go_at_once(tmp_path):
    code = (
        "import sys, time, pathlib\n"
        "from headcount.study.claims import claim\n"
        "with claim(pathlib.Path(sys.argv[1])) as c:\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    assert holder(tmp_path).pid == child.pid
    child.kill()
    child.wait()
    assert holder(tmp_path) is None
    with claim(tmp_path) as ours:
        assert ours.path.name == ".claim.2"


@pytest.mark.parametrize("owner", ["another host", "unreadable"])
def test_a_holder_that_cannot_be_looked_up_lives_by_its_heartbeat(tmp_path, owner):
    path = tmp_path / ".claim.1"
    elsewhere = replace(Owner.this_process(), host="far", machine="far away")
    path.write_text(json.dumps(asdict(elsewhere)) if owner == "another host" else "")
    with claim(tmp_path) as ours:
        assert ours is None
    then = time.time() - claims.EXPIRY - 1
    os.utime(path, (then, then))
    with claim(tmp_path) as ours:
        assert ours is not None
    assert not path.exists()


def test_a_recycled_process_id_is_not_the_holder(tmp_path):
    before = replace(Owner.this_process(), started=Owner.this_process().started - 1000)
    (tmp_path / ".claim.1").write_text(json.dumps(asdict(before)))
    assert holder(tmp_path) is None


def test_the_heart_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT", 0.05)
    with claim(tmp_path) as ours:
        os.utime(ours.path, (0, 0))
        deadline = time.monotonic() + 10
        while ours.path.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_who_slept_while_another_took_over_must_let_go(tmp_path):
    with claim(tmp_path) as ours:
        successor = replace(Owner.this_process(), machine="far away", token="theirs")
        (tmp_path / ".claim.2").write_text(json.dumps(asdict(successor)))
        assert not ours.holds()
    assert (tmp_path / ".claim.2").exists()  # what it leaves is the successor's
    (tmp_path / ".claim.1").unlink()
    (tmp_path / ".claim.2").unlink()
    with claim(tmp_path) as ours:
        (tmp_path / ".claim.1").write_text(json.dumps(asdict(successor)))  # begun anew at 1
        assert not ours.holds()
