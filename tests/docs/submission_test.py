#!/usr/bin/env python3
"""scripts/slurm/make_submission.py: names and order of the results, what is refused, what is a warning."""
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm" / "make_submission.py"


def event(key, value, **metadata):
    return "0: :::MLLOG " + json.dumps({"key": key, "value": value, "metadata": metadata})


# What the closed division has, and a value of eval_accuracy that reaches the target.
CLOSED = {
    "llama31_8b": ({"max_sequence_length": 8192, "eval_samples": 1024, "init_checkpoint_step": 0, "opt_name": "adamw", "opt_base_learning_rate": 4e-4,
                    "opt_adamw_beta_1": 0.9, "opt_adamw_beta_2": 0.95, "opt_adamw_epsilon": 1e-5, "opt_adamw_weight_decay": 0.1,
                    "opt_gradient_clip_norm": 1.0, "opt_end_learning_rate": 0.1 * 4e-4, "opt_learning_rate_warmup_steps": 16,
                    "opt_learning_rate_decay_steps": 1199984, "max_steps": 1200000,
                    "opt_learning_rate_decay_schedule": "cosine with linear warmup"}, 3.3),
    "llama2_70b_lora": ({"opt_base_learning_rate": 4e-4, "opt_adamw_weight_decay": 1e-4, "opt_gradient_clip_norm": 0.3, "lora_rank": 16,
                         "lora_alpha": 32, "train_samples": 3901, "eval_samples": 173}, 0.925),
    "bert": ({"max_predictions_per_seq": 76, "opt_lamb_learning_rate_decay_poly_power": 1.0, "eval_samples": 10000}, 0.72),
}


def text(seed, benchmark="llama31_8b", status="success", caches=True, org="Trireme", division="closed", platform="1x8xH200", batch=16, reached=None,
         system=None, **changed):
    values, target = CLOSED[benchmark]
    lines = ["PROLOG_START 1", *([":::SYSJSON " + json.dumps(system)] if system else []), event("cache_clear", caches), event("init_start", None),
             event("submission_benchmark", benchmark), event("submission_org", org), event("submission_division", division),
             event("submission_platform", platform), event("seed", seed), event("global_batch_size", batch),
             *(event(key, value) for key, value in {**values, **changed}.items()), event("init_stop", None), event("run_start", None), "1: step 3",
             event("eval_accuracy", target if reached is None else reached), event("run_stop", None, status=status), "RUNANDTIME_STOP 2"]
    return "\n".join(lines) + "\n"


WORD = {"llama31_8b": "3.31", "llama2_70b_lora": "0.93", "bert": "0.71"}
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
    ([text(1).replace('"success"}}', '"succ')], "a.log:29: not an event"),
    ([text(1), text(2, opt_base_learning_rate=5e-4, opt_end_learning_rate=5e-5)], "b.log: opt_base_learning_rate is 0.0005, in "),
    ([text(1, division="open"), text(2, division="open", max_steps=4)], "b.log: max_steps is 4, in "),
    ([text(1, benchmark="bert", extra=1), text(2, benchmark="bert")], "b.log: extra is None, in "),
    ([text(1, system={}).replace("PROLOG_START 1", ":::SYSJSON {")], "is no JSON"),
    ([text(1, opt_end_learning_rate=4e-4)], "opt_end_learning_rate is 0.0004, the closed division has 4"),
    ([text(1, opt_learning_rate_decay_steps=1200000)], "opt_learning_rate_decay_steps is 1200000, the closed division has 1199984"),
    *(([text(1, benchmark=name, reached=float(value))], "run_stop says success, and no eval_accuracy is at ") for name, value in WORD.items()),
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

        # Every value that the closed division fixes.
        for name, (values, _) in CLOSED.items():
            fixed = [key for key in values if key not in ("opt_base_learning_rate", "opt_learning_rate_warmup_steps")]
            out = make([text(1, benchmark=name, **{key: 3 for key in fixed})], "never")
            assert out.returncode == 2 and not (work / "never").exists(), out
            for key in fixed:
                assert f"{key} is 3, the closed division has " in out.stderr, (key, out.stderr)

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

        # doctor names the same fields in the same order.
        source = (SCRIPT.parents[2] / "src/apps/doctor_system.cpp").read_text()
        assert "".join(re.findall(r'"([^"]+)"', re.search(r"kSystemFields =(.*?);", source, re.S)[1])).split() == list(fields), list(fields)

        # What doctor found stands in the logs.
        found = {"host_memory_capacity": "2 TiB", "accelerator_model_name": "NVIDIA H200", "cooling": "", "framework": "Trireme 3", "number_of_nodes": "2"}
        out = make([text(seed, benchmark="bert", system=found) for seed in range(10)], "described")
        fields = json.loads((work / "described/Trireme/systems/8xH200.json").read_text())
        assert out.returncode == 0 and all(fields[key] == (value or "FILL IN") for key, value in found.items()) and fields["system_name"] == "8xH200", out
        assert "number_of_nodes is 2, submission_platform of the logs has 1" in out.stderr and "per_node" not in out.stderr, out
        # Another division, and a run that missed its target, may have any value.
        assert make([text(1, division="open", max_steps=4, reached=9.0)], "open").returncode == 0
        assert make([text(1, status="aborted", reached=9.0)], "missed").returncode == 0

        out = make([text(1, status="aborted"), text(2, status="aborted", caches=False)], "poor")
        assert out.returncode == 0 and len(out.stderr.splitlines()) == 4, out
        for sentence in ("10 runs, here are 2", "2 runs missed the target", "1 of the logs do not say", "26 fields say FILL IN"):
            assert sentence in out.stderr, out
        assert make(ten, "named", system="8x H200").returncode == 2
        out = make(ten, "a.log")
        assert out.returncode == 2 and "cannot be made: Not a directory" in out.stderr, out
    print(f"make_submission.py: {len(REFUSED)} kinds of wrong logs are refused, ten good ones are in order")


if __name__ == "__main__":
    main()
