#!/usr/bin/env python3
"""What a run of train_llama leaves for people: the summary, TensorBoard's events, NeMo's results folder, a stop by train.max_time. Exit code 77 = skipped."""
import glob
import json
import os
import shutil
import struct
import sys
import time

from run_test import Site, np
from run_site import main

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    EventAccumulator, missing = None, error

TAGS = {"train/loss", "train/grad_norm", "train/lr", "train/epoch", "train/skipped_steps", "perf/step_time_s", "perf/samples_per_s",
        "perf/tokens_per_s", "perf/memory_gib", "eval/loss", "eval/time_s", "test/loss", "test/time_s"}
NEMO_TAGS = {"reduced_train_loss", "lr", "global_step", "consumed_samples", "grad_norm", "train_step_timing", "epoch", "global_batch_size",
             "val_loss", "validation_step_timing"}


def scalars(folder):
    """Tag -> [(step, value)] of a folder's event files in their order, read without TensorBoard."""
    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 0:
                yield key >> 3, varint()
                continue
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, data[at:at + size]
            at += size

    found = {}
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        data, at = open(path, "rb").read(), 0
        while at < len(data):
            size = struct.unpack_from("<Q", data, at)[0]
            event = dict(fields(data[at + 12:at + 12 + size]))
            at += 16 + size
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                if 2 in value:
                    found.setdefault(value[1].decode(), []).append((event.get(2, 0), struct.unpack("<f", value[2])[0]))
    return found


def check_with_tensorboard(folder, tags, steps):
    if EventAccumulator is None:
        print(f"not compared with TensorBoard's own reader: {missing}; pip install tensorboard")
        return
    read = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0}).Reload()
    assert set(read.Tags()["scalars"]) == tags, read.Tags()
    first = next(tag for tag in ("train/loss", "reduced_train_loss") if tag in tags)
    assert [event.step for event in read.Scalars(first)] == steps, "every step is there once"
    assert set(read.Tags()["tensors"]) == {"config", "run"}, read.Tags()
    text = read.Tensors("config")[-1].tensor_proto.string_val[0].decode()
    assert "    optimizer:" in text and "      lr: 0.001" in text, text
    assert read.SummaryMetadata("config").plugin_data.plugin_name == "text"


def summary(site):
    work = site.work
    np.save(f"{work}/test.npy", np.load(f"{work}/valid.npy")[:5])
    settings = ["logging.tensorboard=true", "eval.every_samples=16", "data.test=test.npy", "eval.test_samples=3", "output.save_every_samples=16"]
    done = site.train(*settings)
    lines = [json.loads(line) for line in open(f"{work}/run/metrics.jsonl")]
    end = lines[-1]
    kept = json.load(open(f"{work}/run/summary.json"))
    assert end["event"] == "end" and end == kept, (end, kept)
    steps, evals = site.metrics("run"), site.metrics("run", "eval")
    assert (end["outcome"], end["exit_code"], end["step"], end["max_steps"]) == ("done", 0, 6, 6), end
    assert (end["samples"], end["tokens"]) == (48, 48 * 48), end
    assert abs(end["train_loss"] - np.mean([line["loss"] for line in steps])) < 1e-12
    assert [end[key]["loss"] for key in ("eval_first", "eval_last")] == [evals[0]["loss"], evals[-1]["loss"]]
    assert end["eval_best"]["loss"] == min(line["loss"] for line in evals)
    test = site.metrics("run", "test")
    assert len(test) == 1 and test[0]["step"] == 6 and test[0]["loss"] == end["test"]["loss"], test
    assert end["train_runtime"] > sum(line["step_time_s"] for line in steps) * 0.99, end
    assert abs(end["train_samples_per_second"] * end["train_runtime"] - 48) < 0.5, end
    assert "adapter/" in end["files"] and "tensorboard/" in end["files"] and "metrics.jsonl" in end["files"], end["files"]
    printed = [eval(line) for line in done.stdout.splitlines() if line.startswith("{'train_runtime'")]  # a dict of Python
    assert len(printed) == 1 and set(printed[0]) == {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "epoch"}
    assert printed[0]["train_loss"] == end["train_loss"] and abs(printed[0]["train_runtime"] - end["train_runtime"]) < 1e-4
    assert printed[0]["epoch"] == 1.2, "48 of 40 rows"
    assert "run ended after step 6 of 6: all steps are done" in done.stdout and "test after step 6 | loss" in done.stdout
    assert "ETA 0 ms" not in done.stdout

    found = scalars(f"{work}/run/tensorboard")
    assert set(found) == TAGS, set(found) ^ TAGS
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in found["eval/loss"]] == [line["step"] for line in evals]
    for tag, key in (("train/loss", "loss"), ("train/lr", "lr"), ("train/grad_norm", "grad_norm"), ("perf/tokens_per_s", "tokens_per_s")):
        assert [value for _, value in found[tag]] == [np.float32(line[key]) for line in steps], tag
    assert [value for _, value in found["train/epoch"]] == [np.float32(8 * step / 40) for step in range(1, 7)], found["train/epoch"]
    check_with_tensorboard(f"{work}/run/tensorboard", TAGS, [1, 2, 3, 4, 5, 6])

    # The same run, extended: another file of events, every step once, the end's line is the new one.
    site.train(*settings, "train.max_steps=8")
    lines = [json.loads(line) for line in open(f"{work}/run/metrics.jsonl")]
    assert lines[-1]["event"] == "end" and lines[-1]["step"] == 8 and lines[-1]["resumed_after_step"] == 6, lines[-1]
    assert lines[-1]["eval_first"]["step"] == evals[0]["step"], "evaluations before the resume count"
    assert [line["step"] for line in lines if line["event"] == "train"] == list(range(1, 9))
    assert len(glob.glob(f"{work}/run/tensorboard/events*")) == 2
    check_with_tensorboard(f"{work}/run/tensorboard", TAGS, list(range(1, 9)))

    # A start with no step left, as after a signal in the last evaluation: the same numbers.
    os.remove(f"{work}/run/finished.json")
    site.train(*settings, "train.max_steps=8")
    again = json.load(open(f"{work}/run/summary.json"))
    assert [again[key] for key in ("step", "samples", "tokens", "epoch")] == [lines[-1][key] for key in ("step", "samples", "tokens", "epoch")], again
    print(f"summary, events of {len(TAGS)} tags and a resumed run are right")


def nemo(site):
    work = site.work
    settings = ["logging.style=nemo", "logging.every_steps=2", "eval.every_samples=16", "output.save_every_samples=16"]
    site.train(*settings, "train.max_steps=4")
    run = f"{work}/run"
    read = lambda name: open(f"{run}/{name}").read()  # noqa: E731
    assert read("cmd-args.log").startswith(f"{site.args.bin}/train_llama --config {work}/run.yaml --set logging.style=nemo")
    assert read("git-info.log").startswith("commit hash: ") and len(read("git-info.log").split()[2]) >= 7
    assert "max_steps: 4" in read("hparams.yaml")
    log = read("nemo_log_globalrank-0_localrank-0.txt")
    assert "[NeMo I 20" in log and "step 4/4 | loss" in log and "run ended after step 4 of 4" in log, log
    assert read("nemo_error_log.txt") == "", "no warning"
    assert "`Trainer.fit` stopped: `max_steps=4` reached." in read("lightning_logs.txt")
    assert os.path.isdir(f"{run}/checkpoints") and not os.path.exists(f"{run}/tensorboard")
    found = scalars(run)
    assert set(found) == NEMO_TAGS, set(found) ^ NEMO_TAGS
    assert found["global_step"] == [(1, 1), (2, 2), (4, 4)] and found["consumed_samples"] == [(1, 8), (2, 16), (4, 32)], found
    assert found["global_batch_size"][0][1] == 8 and [step for step, _ in found["val_loss"]] == [2, 4]
    times = [line["step_time_s"] for line in site.metrics("run")]
    assert abs(found["train_step_timing"][-1][1] - np.mean(times)) < 1e-6, "the mean of the last steps, at most five"
    check_with_tensorboard(run, NEMO_TAGS, [1, 2, 4])
    site.train(*settings, "train.max_steps=6")
    earlier = set(os.listdir(f"{run}/run_0"))
    assert {"cmd-args.log", "git-info.log", "hparams.yaml", "nemo_error_log.txt", "lightning_logs.txt", "nemo_log_globalrank-0_localrank-0.txt"} <= earlier
    assert len(earlier) == 7, earlier
    assert "max_steps: 6" in read("hparams.yaml") and [step for step, _ in scalars(run)["global_step"]] == [6]
    print("NeMo's results folder is right, and so is that of the run's continuation")


def max_time(site):
    """Steps of half a second, four seconds: the run stops in time, says so, and goes on."""
    os.environ["TRIREME_FAULT"] = "sleep@step:0.5s"
    done = site.train("train.max_steps=20", "train.max_time=00:00:00:04")
    end = json.load(open(f"{site.work}/run/summary.json"))
    assert (end["outcome"], end["exit_code"]) == ("max_time", 0) and 2 <= end["step"] <= 7, end
    assert end["train_runtime"] < 4, end
    assert f"stopped by train.max_time after step {end['step']}; state saved" in done.stderr, done.stderr[-800:]
    assert os.path.isdir(f"{site.work}/run/checkpoints/step-{end['step']:08}") and not os.path.exists(f"{site.work}/run/adapter")
    del os.environ["TRIREME_FAULT"]
    site.train("train.max_steps=20", "train.max_time=null")
    lines = [json.loads(line) for line in open(f"{site.work}/run/metrics.jsonl")]
    assert [line["outcome"] for line in lines if line["event"] == "end"] == ["max_time", "done"]
    assert [line["step"] for line in lines if line["event"] == "train"] == list(range(1, 21))
    # A save under way and the one of the stop are within the time.
    begin = time.time()
    site.train("train.max_steps=200", "train.max_time=00:00:00:08", "output.dir=slow", "output.save_every_samples=40",
               TRIREME_FAULT="sleep@step:0.1s,sleep@save:write:1.5s")
    assert time.time() - begin < 8 and json.load(open(f"{site.work}/slow/summary.json"))["outcome"] == "max_time", time.time() - begin
    print("train.max_time stops a run with its state saved")


def failed(site):
    """A run that fails in its fourth step says how it ended."""
    os.environ["TRIREME_FAULT"] = "nan@gradient:model.layers.1.self_attn.v_proj.lora_A.weight:rank0:step4"
    site.train(expect=70)
    end = json.loads(open(f"{site.work}/run/metrics.jsonl").read().splitlines()[-1])
    assert (end["event"], end["outcome"], end["exit_code"]) == ("end", "failed", 70), end
    assert "step 4" in end["reason"] and json.load(open(f"{site.work}/run/summary.json")) == end, end
    # A start that fails before its first step leaves the summary of the steps before.
    for _ in range(2):
        site.train("output.dir=again", "output.save_every_samples=8", expect=70)
        end, before = json.load(open(f"{site.work}/again/summary.json")), end
    assert end == before and end["step"] == 4, (end, before)
    # And before its first: nothing of it stays in the way of a corrected start.
    os.environ["TRIREME_FAULT"] = "nan@gradient:model.layers.1.self_attn.v_proj.lora_A.weight:rank0:step1"
    site.train("output.dir=other", "logging.tensorboard=true", "logging.style=nemo", expect=70)
    assert not os.path.exists(f"{site.work}/other/summary.json")
    del os.environ["TRIREME_FAULT"]
    site.train("output.dir=other", "train.max_steps=1", "optimizer.lr=2e-3")
    print("a run that failed says so")


def best(site):
    """output.keep_best and train.patience: the best evaluation's adapter, the end, and the same with a stop in between."""
    common = ("optimizer.lr=0.05", "schedule.name=constant", "lora.dropout=0", "eval.every_samples=8", "train.patience=3", "output.keep_best=true", "output.save_every_samples=8")
    read = lambda run: open(f"{site.work}/{run}/adapter_model.safetensors", "rb").read()
    done = site.train("train.max_steps=200", *common)
    evals = [(m["loss"], m["step"]) for m in site.metrics("run", "eval")]
    loss, step = min(evals)
    summary = json.load(open(f"{site.work}/run/summary.json"))
    assert summary["outcome"] == "patience" and summary["exit_code"] == 0 and summary["step"] == evals[-1][1] == step + 3 < 200, (summary, evals)
    assert summary["eval_best"] == {"step": step, "loss": loss} and "best/" in done.stdout, done.stdout
    assert "train.patience evaluations in a row were not better" in done.stdout, done.stdout
    # The steps up to the best evaluation alone, and two starts of which the second goes on.
    site.train(f"train.max_steps={step}", *common, "output.dir=short")
    assert read("run/best/adapter") == read("short/adapter") == read("short/best/adapter") != read("run/adapter")
    site.train(f"train.max_steps={step + 1}", *common, "output.dir=parts")
    site.train("train.max_steps=200", *common, "output.dir=parts")
    assert [(m["loss"], m["step"]) for m in site.metrics("parts", "eval")] == evals
    assert read("parts/best/adapter") == read("run/best/adapter") and read("parts/adapter") == read("run/adapter")
    # Killed after the best evaluation, with a checkpoint from before it, and no better evaluation after that.
    site.train("train.max_steps=200", *common, f"output.save_every_samples={8 * (step - 1)}", "output.dir=killed", expect=-9,
               TRIREME_FAULT=f"sleep@step:0.3s,sigkill@step:step{step + 1}")
    done = site.train("train.max_steps=200", *common, "output.dir=killed", f"eval.every_samples={8 * 200}")
    before = min(evals[:step - 1])[1]
    assert f"best/ is of the evaluation after step {step}, and the best one that this run has is that after step {before}" in done.stderr, done.stderr
    # Killed while best/ is written.
    site.train("train.max_steps=200", *common, "output.dir=half", expect=-9, TRIREME_FAULT=f"sleep@step:0.3s,sigkill@best:step{step}")
    done = site.train("train.max_steps=200", *common, "output.dir=half", f"eval.every_samples={8 * 200}")
    assert "best/ does not say which evaluation it is of" in done.stderr, done.stderr
    # Other rows of evaluation are compared with none before; the same ones elsewhere are, also where their number is named.
    rows = len(np.load(f"{site.work}/valid.npy", allow_pickle=True))
    for name, changes, other in (("other", ("eval.samples=1",), True), ("moved", (f"data.valid={site.work}/moved.npy", f"eval.samples={rows}"), False)):
        site.train(f"train.max_steps={step + 1}", *common, f"output.dir={name}")
        shutil.copy(f"{site.work}/valid.npy", f"{site.work}/moved.npy")
        done = site.train("train.max_steps=200", *common, f"output.dir={name}", *changes)
        summary = json.load(open(f"{site.work}/{name}/summary.json"))
        assert (f"eval.samples is not what the evaluations up to step {step + 1} read" in done.stderr) == other, done.stderr
        assert (summary["eval_first"]["step"] == step + 2) == other and (summary["eval_best"]["step"] > step + 1) == other, summary
    # A best copy that cannot be written does not end the run, and a lost record of the best evaluation is told.
    for ranks in (1, 2):
        site.train("train.max_steps=1", *common, f"output.dir=full{ranks}", ranks=ranks)
        shutil.rmtree(f"{site.work}/full{ranks}/best")
        open(f"{site.work}/full{ranks}/best", "w").close()
        done = site.train("train.max_steps=200", *common, f"output.dir=full{ranks}", ranks=ranks)
        assert "best/ is left as it was: the evaluation after step 2 is the best so far" in done.stderr, done.stderr
    assert read("full1/adapter") == read("run/adapter")
    site.train(f"train.max_steps={step + 1}", *common, "output.dir=lost")
    os.remove(f"{site.work}/lost/metrics.jsonl")
    done = site.train("train.max_steps=200", *common, "output.dir=lost")
    assert f"metrics.jsonl lacks the evaluation after step {step}, the best before this start" in done.stderr, done.stderr
    # On two ranks; without data.valid it is refused.
    site.train("train.max_steps=200", *common, "output.dir=ranks", ranks=2)
    assert [m["step"] for m in site.metrics("ranks", "eval")] == [s for _, s in evals]
    done = site.train(*common[-3:], "data.valid=null", expect=2)
    assert "train.patience needs data.valid" in done.stderr and "output.keep_best needs data.valid" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(main({"best": best, "summary": summary, "nemo": nemo, "max-time": max_time, "failed": failed}, Site))
