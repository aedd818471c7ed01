#!/usr/bin/env python3
"""scripts/slurm/make_submission.py: names and order of the results, what is refused, what is a warning."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm" / "make_submission.py"


def event(key, value, **metadata):
    return "0: :::MLLOG " + json.dumps({"key": key, "value": value, "metadata": metadata})


def text(seed, benchmark="llama31_8b", status="success", caches=True, org="Trireme"):
    lines = ["PROLOG_START 1", event("cache_clear", caches), event("submission_benchmark", benchmark), event("submission_org", org),
             event("seed", seed), event("run_start", None), "1: step 3", event("run_stop", None, status=status), "RUNANDTIME_STOP 2"]
    return "\n".join(lines) + "\n"


REFUSED = [
    ([text(1), text(1)], "have the same seed 1"),
    ([text(1), text(2, benchmark="bert")], "several values of submission_benchmark: bert, llama31_8b"),
    ([text(1), text(2, org="Other")], "several values of submission_org"),
    ([text(1) + text(1)], "2 run_stop lines"),
    ([text(1).replace("run_stop", "block_stop")], "0 run_stop lines"),
    ([text(1).replace('"seed"', '"sead"')], "0 values of seed"),
    ([text(1, org="../up")], "no name of a folder"),
    ([text(1).replace('"success"}}', '"succ')], "a.log:8: not an event"),
]


def main():
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)

        def make(texts, output):
            logs = [work / f"{chr(ord('a') + i)}.log" for i in range(len(texts))]
            for log, content in zip(logs, texts):
                log.write_text(content)
            return subprocess.run([sys.executable, SCRIPT, "--output", work / output, "--system", "8xH200", *logs],
                                  capture_output=True, text=True)

        for number, (texts, sentence) in enumerate(REFUSED):
            out = make(texts, f"refused{number}")
            assert out.returncode == 2 and sentence in out.stderr and len(out.stderr.splitlines()) == 1, (sentence, out)
            assert not (work / f"refused{number}").exists(), f"{sentence}: something was written"

        ten = [text(seed) for seed in (107, 99, 101, 102, 103, 104, 105, 106, 100, 108)]
        out = make(ten, "whole")
        assert out.returncode == 0 and out.stderr == "", out
        folder = work / "whole/Trireme/results/8xH200/llama31_8b"
        assert sorted(p.name for p in folder.iterdir()) == [f"result_{i}.txt" for i in range(10)]
        assert [(folder / f"result_{i}.txt").read_text() for i in range(10)] == [text(seed) for seed in range(99, 109)]
        out = make(ten, "whole")
        assert out.returncode == 2 and "has results" in out.stderr, out

        out = make([text(1, status="aborted"), text(2, status="aborted", caches=False)], "poor")
        assert out.returncode == 0 and len(out.stderr.splitlines()) == 3, out
        for sentence in ("10 runs, here are 2", "2 runs missed the target", "1 of the logs do not say"):
            assert sentence in out.stderr, out
    print(f"make_submission.py: {len(REFUSED)} kinds of wrong logs are refused, ten good ones are in order")


if __name__ == "__main__":
    main()
