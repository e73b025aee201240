"""The benchmark runs, and its report says what it has and what it lacks."""

import json
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).parent.parent / "bench" / "handover.py"


def test_the_benchmark_of_hand_overs_runs(tmp_path):
    out = tmp_path / "handover.json"
    ran = subprocess.run([sys.executable, str(BENCH), "--quick", "--json", str(out)], capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(out.read_text())
    rows = report["handover_us"]
    assert set(rows) == {"portolan", "multiprocessing.Queue", "shared_memory", "pyzmq", "iceoryx2"}
    for name, row in rows.items():
        if report["versions"].get(name, "there") is None:
            assert row["left out"] == "not installed"
            continue
        assert row["left out"] is None, (name, ran.stderr)
        for mode in ("edges", "whole"):
            assert [int(size) for size in row[mode]] == report["sizes"]
            for times in row[mode].values():
                assert 0 < times["low"] <= times["median"] <= times["high"]
    for part, lines in [("pool_map_ms", 3), ("message_us", 6)]:
        assert len(report[part]) == lines
        assert all(times["median"] > 0 for times in report[part].values())
    assert report["machine"]["processors"] > 0 and report["seconds"] > 0
    assert all(name in ran.stdout for name in rows)
