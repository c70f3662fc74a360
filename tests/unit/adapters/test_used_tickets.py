"""A ticket that was used stays used: over a crash, at the bound, beside garbage."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from policy_server.adapters.used_tickets import UsedInFile, UsedInMemory, UsedTicketsError
from policy_server.core.outcome import TicketOutcome

NOW = 1_800_000_000.0
EXPIRES = int(NOW) + 100
HONOURED, USED, FULL = TicketOutcome.HONOURED, TicketOutcome.USED, TicketOutcome.FULL


def nonce(number: int) -> bytes:
    return number.to_bytes(8, "big")


def opened(path: Path, wall: float = NOW, slots: int = 8) -> UsedInFile:
    used = UsedInFile(path, slots)
    used.open(wall)
    return used


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_that_is_killed_forgets_nothing(tmp_path: Path, *, hangs: bool) -> None:
    """Not even what the disk has not taken yet."""
    script = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "from policy_server.adapters.used_tickets import UsedInFile\n"
        f"used = UsedInFile(Path(sys.argv[1])); used.open({NOW})\n"
        f"if {hangs}: os.pwrite = lambda *_: time.sleep(60)\n"
        f"used.use((7).to_bytes(8, 'big'), {EXPIRES}, {NOW})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "used"
    done = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert done.returncode == -signal.SIGKILL
    after = opened(path)
    assert after.use(nonce(7), EXPIRES, NOW) is USED
    assert after.use(nonce(8), EXPIRES, NOW) is HONOURED
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_no_request_waits_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, pwrite = threading.Event(), os.pwrite

    def hanging(file: int, data: bytes, offset: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        disk.wait(30.0)
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", hanging)
    used = opened(tmp_path / "used")
    assert [used.use(nonce(n), EXPIRES, NOW) for n in (1, 2, 1)] == [HONOURED, HONOURED, USED]
    assert opened(tmp_path / "used").use(nonce(2), EXPIRES, NOW) is USED, "though not on disk"
    used = opened(tmp_path / "used")
    used.use(nonce(3), EXPIRES, NOW)
    disk.set()
    used.close()
    assert opened(tmp_path / "used").use(nonce(3), EXPIRES, NOW) is USED


def test_it_is_still_used_after_many_restarts(tmp_path: Path) -> None:
    for number in range(6):
        used = opened(tmp_path / "used")
        assert used.use(nonce(number), EXPIRES, NOW) is HONOURED
        used.close()
    last = opened(tmp_path / "used")
    assert [last.use(nonce(n), EXPIRES, NOW) for n in range(6)] == [USED] * 6
    assert last.use(nonce(6), EXPIRES, NOW) is HONOURED


def test_the_expired_make_room(tmp_path: Path) -> None:
    used = opened(tmp_path / "used")
    for number in range(8):
        assert used.use(nonce(number), EXPIRES, NOW) is HONOURED
    assert used.use(nonce(8), EXPIRES, NOW) is FULL
    assert used.use(nonce(8), EXPIRES + 50, EXPIRES + 1) is HONOURED
    assert len(used) == 8
    used.close()
    after = opened(tmp_path / "used", wall=EXPIRES + 1)
    assert len(after) == 1
    assert after.use(nonce(8), EXPIRES + 50, EXPIRES + 1) is USED


def test_the_bound_holds_over_a_restart(tmp_path: Path) -> None:
    used = opened(tmp_path / "used")
    for number in range(8):
        used.use(nonce(number), EXPIRES, NOW)
    used.close()
    after = opened(tmp_path / "used")
    assert after.use(nonce(9), EXPIRES, NOW) is FULL
    assert after.use(nonce(0), EXPIRES, NOW) is USED


def test_one_killed_while_it_starts_leaves_nothing_for_ever(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from policy_server.adapters.used_tickets import UsedInFile\n"
        "os.posix_fallocate = lambda _, at, size: size == 2**20 and os.kill(os.getpid(), 9)\n"
        f"UsedInFile(Path(sys.argv[1])).open({NOW})\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script, tmp_path / "used"], check=False)
        assert len(list(tmp_path.iterdir())) == 1
    opened(tmp_path / "used").close()
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


@pytest.mark.parametrize("content", [b"", b"\0" * 31, os.urandom(4096), b"x" * 129])
def test_a_file_that_is_none_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "used").write_bytes(content)
    used = opened(tmp_path / "used", slots=1024)
    assert used.use(nonce(1), EXPIRES, NOW) is HONOURED


def test_what_claims_to_live_for_ever_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "used").write_bytes(b"\xff" * 16 * 8)
    used = opened(tmp_path / "used")
    assert len(used) == 0
    assert used.use(nonce(1), EXPIRES, NOW) is HONOURED


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsedTicketsError, match=r"data-dir"):
        opened(tmp_path / "file" / "used")


def test_memory_is_bounded() -> None:
    used = UsedInMemory(slots=50)
    for number in range(1000):
        used.use(nonce(number), int(NOW) + number, NOW + number)
    assert len(used) == 50
