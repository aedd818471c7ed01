#!/usr/bin/env python3
"""scripts/slurm/collect_results.sh: logs of run.sub become result_N.txt, and what does not belong together is refused."""
import json
import pathlib
import subprocess
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "slurm" / "collect_results.sh"


def event(key, value, **metadata):
    return ":::MLLOG " + json.dumps({"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value,
                                     "metadata": {"file": "run.cpp", "lineno": 1, **metadata}})


def write_log(folder, number, seed, stop=True, benchmark="llama31_8b", platform="1x8xH200", stamp="2611"):
    lines = ["PROLOG_START 1", "0: " + event("submission_benchmark", benchmark), "0: " + event("submission_platform", platform),
             "0: " + event("seed", seed), "0: " + event("eval_accuracy", 3.2, samples_count=12288)]
    if stop:
        lines.append("0: " + event("run_stop", None, status="success"))
    (folder / f"{stamp}_{number}.log").write_text("\n".join(lines) + "\n")


def run(*arguments, code=0):
    done = subprocess.run([str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done)
    return done.stdout + done.stderr


def main():
    with tempfile.TemporaryDirectory() as work:
        logs, out = pathlib.Path(work) / "logs", pathlib.Path(work) / "system" / "llama31_8b"
        run(logs, out, code=2)
        run(logs, code=2)
        logs.mkdir()
        (logs / "notes.log").write_text("nothing\n")
        assert "has no *_N.log with a run_stop" in run(logs, out, code=3)
        for number in range(1, 13):
            write_log(logs, number, 100 + number, stop=number != 3)
        text = run(logs, out)
        assert "_3.log has no run_stop: not taken" in text and 'llama31_8b: 11 results of "llama31_8b" on "1x8xH200"' in text, text
        assert "name the job" in text, text
        assert sorted(p.name for p in out.iterdir()) == sorted(f"result_{i}.txt" for i in range(11))
        # In the order of the experiments: 10 after 9, not after 1.
        for result, number in ((0, 1), (2, 4), (10, 12)):
            assert (out / f"result_{result}.txt").read_bytes() == (logs / f"2611_{number}.log").read_bytes(), result
        assert "holds result_*.txt already" in run(logs, out, code=73)
        other = pathlib.Path(work) / "other"
        write_log(logs, 13, 101)
        assert "have the same seed 101" in run(logs, other, code=3)
        write_log(logs, 13, 200, platform="2x8xH200")
        assert "submission_platform" in run(logs, other, code=3)
        write_log(logs, 13, 200, benchmark="bert")
        assert "submission_benchmark" in run(logs, other, code=3)
        (logs / "2611_13.log").unlink()
        write_log(logs, 1, 900, stamp="2612")
        assert "a submission has 10: 9 more" in run(logs, other, "2612") and (other / "result_0.txt").exists() and len(list(other.iterdir())) == 1
    print("results are collected")


if __name__ == "__main__":
    main()
