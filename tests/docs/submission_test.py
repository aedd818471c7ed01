#!/usr/bin/env python3
"""scripts/slurm/make_submission.py: names and order of the results, what is refused, what is a warning."""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm" / "make_submission.py"


def event(key, value, **metadata):
    return "0: :::MLLOG " + json.dumps({"key": key, "value": value, "metadata": metadata})


def text(seed, benchmark="llama31_8b", status="success", caches=True, org="Trireme", division="closed", platform="1x8xH200", batch=16):
    lines = ["PROLOG_START 1", event("cache_clear", caches), event("submission_benchmark", benchmark), event("submission_org", org),
             event("submission_division", division), event("submission_platform", platform), event("seed", seed), event("global_batch_size", batch), event("run_start", None), "1: step 3", event("run_stop", None, status=status), "RUNANDTIME_STOP 2"]
    return "\n".join(lines) + "\n"


REFUSED = [
    ([text(1), text(1)], "have the same seed 1"),
    ([text(1), text(2, benchmark="bert")], "several values of submission_benchmark: bert, llama31_8b"),
    ([text(1), text(2, org="Other")], "several values of submission_org"),
    ([text(1), text(2, division="open")], "several values of submission_division"),
    ([text(1), text(2, platform="2x8xH200")], "several values of submission_platform"),
    ([text(1), text(2, batch=32)], "several values of global_batch_size: 16, 32"),
    ([text(1, org="Our Company")], "no name of a folder"),
    ([text(1) + text(1)], "2 run_stop lines"),
    ([text(1).replace("run_stop", "block_stop")], "0 run_stop lines"),
    ([text(1).replace('"seed"', '"sead"')], "0 values of seed"),
    ([text(1, org="../up")], "no name of a folder"),
    ([text(1).replace('"success"}}', '"succ')], "a.log:11: not an event"),
]


def main():
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)

        def make(texts, output, system="8xH200"):
            logs = [work / f"{chr(ord('a') + i)}.log" for i in range(len(texts))]
            for log, content in zip(logs, texts):
                log.write_text(content)
            return subprocess.run([sys.executable, SCRIPT, "--output", work / output, "--system", system, *logs],
                                  capture_output=True, text=True)

        for number, (texts, sentence) in enumerate(REFUSED):
            out = make(texts, f"refused{number}")
            assert out.returncode == 2 and sentence in out.stderr and len(out.stderr.splitlines()) == 1, (sentence, out)
            assert not (work / f"refused{number}").exists(), f"{sentence}: something was written"

        ten = [text(seed) for seed in (107, 99, 101, 102, 103, 104, 105, 106, 100, 108)]
        out = make(ten, "whole")
        assert out.returncode == 0 and len(out.stderr.splitlines()) == 1 and "26 fields say FILL IN" in out.stderr, out
        folder = work / "whole/Trireme/results/8xH200/llama31_8b"
        assert sorted(p.name for p in folder.iterdir()) == [f"result_{i}.txt" for i in range(10)]
        assert [(folder / f"result_{i}.txt").read_text() for i in range(10)] == [text(seed) for seed in range(99, 109)]
        description = work / "whole/Trireme/systems/8xH200.json"
        fields = json.loads(description.read_text())
        assert len(fields) == 33 and fields["status"] == "FILL IN", fields
        assert (fields["submitter"], fields["division"], fields["number_of_nodes"], fields["accelerators_per_node"]) == ("Trireme", "closed", "1", "8")
        out = make(ten, "whole")
        assert out.returncode == 2 and "has results" in out.stderr, out

        # A description that is there is left as it is; what is wrong with it is said.
        fields = {field: value.replace("FILL IN", "known") for field, value in fields.items()}
        for changed, sentence in ((fields, ""), ({**fields, "division": "open"}, "division is 'open', the logs say 'closed'"),
                                  ({k: v for k, v in fields.items() if k != "cooling"}, "lacks cooling"), ([1], "is not a JSON object")):
            shutil.rmtree(folder)
            description.write_text(json.dumps(changed))
            out = make(ten, "whole")
            assert out.returncode == 0 and sentence in out.stderr and bool(out.stderr) == bool(sentence), (sentence, out)
            assert json.loads(description.read_text()) == changed

        out = make([text(1, status="aborted"), text(2, status="aborted", caches=False)], "poor")
        assert out.returncode == 0 and len(out.stderr.splitlines()) == 4, out
        for sentence in ("10 runs, here are 2", "2 runs missed the target", "1 of the logs do not say", "26 fields say FILL IN"):
            assert sentence in out.stderr, out
        assert make(ten, "named", system="8x H200").returncode == 2
    print(f"make_submission.py: {len(REFUSED)} kinds of wrong logs are refused, ten good ones are in order")


if __name__ == "__main__":
    main()
