#!/usr/bin/env python3
"""Non-finite and unusual values (faults F16, F17, F18). Exit code 77 = skipped."""
import os
import re
import shutil

import fault_site
from fault_site import SEQ, VOCAB, needed, np


def parameter_names(site):
    from safetensors import safe_open
    with safe_open(f"{site.work}/whole/adapter/adapter_model.safetensors", "np") as file:
        return sorted(key.removeprefix("base_model.model.") for key in file.keys())


def stops(site):
    """F16: one NaN in one gradient of one rank at step 7: nothing changes on any rank, the run ends, its checkpoints are sound."""
    site.train("output.dir=whole", "output.save_every_samples=8", ranks=2)
    name = [n for n in parameter_names(site) if "layers.1" in n and "v_proj" in n and "lora_A" in n][0]
    run = site.train("output.dir=bad", "output.save_every_samples=8", ranks=2, expect=70, TRIREME_FAULT=f"nan@gradient:{name}:rank1:step7")
    words = run.last_words()
    assert f"the gradient of {name} on rank 1" in words and "step 7" in words and "no parameter was changed" in words, run.text()[-3000:]
    assert site.checkpoints("bad")[-1] == 6, site.checkpoints("bad")
    assert [m["step"] for m in site.metrics("bad")][-1] == 7 and site.metrics("bad")[-1]["grad_norm"] == "nan"
    print(words)
    # The checkpoints before it equal those of the clean run, and the run resumes from them with the same numbers.
    site.train("output.dir=bad", "output.save_every_samples=8", ranks=2)
    site.same_run("whole", "bad")


def skips(site):
    """F16: the same with train.on_nonfinite: skip; then too many in a row."""
    site.train("output.dir=whole")
    name = [n for n in parameter_names(site) if "layers.0" in n and "q_proj" in n and "lora_B" in n][0]
    fault = {"TRIREME_FAULT": f"nan@gradient:{name}:rank2:step7"}
    run = site.train("output.dir=skip", "train.on_nonfinite=skip", "output.save_every_samples=8", **fault)
    assert re.search(rf"warning: step 7: .*the gradient of {re.escape(name)} on rank 2 .*the step is skipped \(1 of 20 in a row\)", run.text()), run.text()[-3000:]
    metrics = site.metrics("skip")
    assert [m["step"] for m in metrics] == list(range(1, 13))
    assert metrics[6]["grad_norm"] == "nan" and all(isinstance(m["grad_norm"], float) for m in metrics if m["step"] != 7), metrics
    # The skipped step changed nothing: step 8 starts from the weights after step 6, so all before equal the clean run's.
    assert [m["loss"] for m in metrics[:6]] == [m["loss"] for m in site.metrics("whole")[:6]]
    # Nor does the schedule count it.
    rates = [m["lr"] for m in site.metrics("whole")]
    assert len(set(rates)) == len(rates), rates
    assert [m["lr"] for m in metrics] == rates[:7] + rates[6:-1], (rates, metrics)
    # The recomputed step is finite, because the step after the bad one has changed the weights: no memory error is
    # reported.
    run = site.train("output.dir=once", "train.on_nonfinite=skip", TRIREME_FAULT=f"nan@gradient:{name}:rank2:step7:x1")
    said = re.search(r"warning: step 7: .*", run.text())
    assert said and "(1 of 20 in a row)" in said[0] and "with the weights after step 8" in said[0] and "memory" not in said[0], run.text()[-3000:]
    run = site.train("output.dir=often", "train.on_nonfinite=skip", "train.max_steps=40", expect=70,
                     TRIREME_FAULT=f"nan@gradient:{name}:rank0")
    assert "(21 steps in a row)" in run.last_words(), run.text()[-2000:]
    assert site.checkpoints("often") == [], "a checkpoint after a step with bad numbers"


def never_saved(site):
    """A save at the bad step is delayed to the next finite step, and holds exactly the weights of a run without that save."""
    site.train("output.dir=whole", "train.max_steps=8")
    name = parameter_names(site)[0]
    site.train("output.dir=late", "train.on_nonfinite=skip", "output.save_every_samples=48", TRIREME_FAULT=f"nan@gradient:{name}:rank1:step6")
    assert 6 not in site.checkpoints("late") and 7 in site.checkpoints("late"), site.checkpoints("late")
    from safetensors import safe_open
    folder = f"{site.work}/late/checkpoints"
    for path, _, names in os.walk(folder):
        for file_name in names:
            if file_name.endswith(".safetensors"):
                with safe_open(f"{path}/{file_name}", "np") as file:
                    for key in file.keys():
                        assert np.isfinite(file.get_tensor(key)).all(), (path, key)


def fp16(site):
    """F17: fp16 with and without overflow at the initial loss scale of 65536: the scale is reduced and the run trains."""
    name = None
    site.train("output.dir=whole", ranks=2)
    name = parameter_names(site)[0]
    run = site.start("output.dir=half", "precision.compute=fp16", ranks=2, TRIREME_FAULT=f"nan@gradient:{name}:rank1:step3,nan@gradient:{name}:rank1:step4")
    code = run.end(90)
    text = run.text()
    assert code == 0, text[-2500:]
    assert len(re.findall(r"gradients overflowed in fp16, the step was skipped and the loss scale halved", text)) >= 2, text[-3000:]
    assert all(isinstance(m["loss"], float) for m in site.metrics("half"))
    run = site.train("output.dir=capped", "precision.compute=fp16", "train.max_steps=40", ranks=2, expect=70, TRIREME_FAULT=f"nan@gradient:{name}:rank1")
    assert "(21 steps in a row)" in run.last_words(), run.text()[-2000:]


def zero_norm(site):
    """F17: steps without any target: loss and gradient norm are 0, nothing is divided by zero, and no weight changes. Rows none of
    which has a target are refused."""
    with needed():
        import h5py
    with h5py.File(f"{site.work}/none.h5", "w") as file:
        file["input_ids"] = np.random.default_rng(1).integers(0, VOCAB, size=(40, SEQ)).astype(np.int32)
        file["loss_mask"] = np.zeros((40, SEQ), np.int32)
    shutil.copy(f"{site.work}/none.h5", f"{site.work}/late.h5")
    with h5py.File(f"{site.work}/late.h5", "r+") as file:
        file["loss_mask"][39] = 1
    for optimizer in ("adamw", "lamb"):
        site.train(f"output.dir=zero-{optimizer}", "data.train=late.h5", "data.shuffle=false", f"optimizer.name={optimizer}", "optimizer.weight_decay=0", "train.max_steps=3", ranks=2)
        metrics = site.metrics(f"zero-{optimizer}")
        assert [m["loss"] for m in metrics] == [0, 0, 0] and [m["grad_norm"] for m in metrics] == [0, 0, 0], metrics
    evals = [site.metrics(f"zero-{optimizer}", "eval")[-1]["loss"] for optimizer in ("adamw", "lamb")]
    assert evals[0] == evals[1], evals
    assert site.metrics("zero-adamw", "end")[-1]["train_loss"] is None
    run = site.train("output.dir=late-valid", "data.valid=late.h5", "eval.samples=39", "train.max_steps=1", ranks=2, expect=3)
    assert "none of the 39 rows that eval.samples takes has a target" in run.last_words(), run.text()[-2500:]
    starts = np.empty(8, dtype=object)
    for row in range(8):
        starts[row] = {"input_ids": np.ones(SEQ, np.int32), "loss_mask": [1] * SEQ, "seq_start_id": list(range(SEQ))}
    np.save(f"{site.work}/starts.npy", starts, allow_pickle=True)
    run = site.train("output.dir=starts", "data.train=starts.npy", "train.max_steps=1", ranks=2, expect=3)
    assert "starts.npy: no row has a target (every token starts a sequence)" in run.last_words(), run.text()[-2500:]
    run = site.train("output.dir=untaught", "data.train=none.h5", "train.max_steps=3", ranks=2, expect=3)
    assert "none.h5: no row has a target (every loss_mask is 0), so there is nothing to learn" in run.last_words(), run.text()[-2500:]
    # An evaluation on them would be 0 / 0: refused before the first step. (An MLPerf run must not read a row before its
    # clock starts.)
    for name, more in (("valid", ()), ("mlperf", ("logging.mlperf=true",))):
        run = site.train(f"output.dir={name}", "data.valid=none.h5", "train.max_steps=1", *more, ranks=2, expect=3, MLPERF_SUBMISSION_DIVISION="open")
        assert "none.h5" in run.last_words() and "no row has a target" in run.last_words(), run.text()[-2500:]
        assert ("step 1/1" in run.text()) == (name == "mlperf"), run.text()[-2500:]


def spike(site):
    """F18: rows of one token, then a batch of noise: reported with its z-score; the window survives a stop and resume."""
    rows = np.full((400, SEQ), 7, np.int32)
    rows[320:328] = np.random.default_rng(9).integers(0, VOCAB, size=(8, SEQ))
    np.save(f"{site.work}/calm.npy", rows)
    settings = ("data.train=calm.npy", "data.shuffle=false", "data.valid=null", "train.max_steps=45", "optimizer.lr=0.02", "output.save_every_samples=160")
    run = site.train("output.dir=calm", *settings, ranks=2)
    warnings = re.findall(r"warning: step (\d+): the loss .* is a spike, ([0-9.]+) standard .*rows 320 to 327 of", run.text())
    assert [w[0] for w in warnings] == ["41"] and float(warnings[0][1]) > 6, (warnings, run.text()[-3000:])
    events = site.metrics("calm", "spike")
    assert len(events) == 1 and events[0]["step"] == 41
    # Killed in step 30: the window is restored from the checkpoint, so the same spike has the same score.
    run = site.start("output.dir=killed", *settings, ranks=2, TRIREME_FAULT="sigkill@rank0:step30")
    assert run.end(60) != 0
    site.train("output.dir=killed", *settings, ranks=2)
    assert site.metrics("killed", "spike") == events, (site.metrics("killed", "spike"), events)


def spike_skipped(site):
    """F18 with train.on_spike: skip: the noisy step changes nothing, and a run that died in it decides the same after it resumes."""
    rows = np.full((400, SEQ), 7, np.int32)
    rows[320:328] = np.random.default_rng(9).integers(0, VOCAB, size=(8, SEQ))
    np.save(f"{site.work}/calm.npy", rows)
    settings = ("data.train=calm.npy", "data.shuffle=false", "data.valid=null", "schedule.name=constant", "optimizer.lr=0.02")
    skip = (*settings, "train.on_spike=skip")
    site.train("output.dir=before", *settings, "train.max_steps=40", ranks=2)
    site.train("output.dir=reported", *settings, "train.max_steps=41", ranks=2)
    run = site.train("output.dir=skipped", *skip, "train.max_steps=41", ranks=2)
    assert re.search(r"warning: step 41: the loss .* is a spike, .*; the step is skipped", run.text()), run.text()[-2500:]
    assert site.adapter("skipped") == site.adapter("before"), "the skipped step changed a weight"
    assert site.adapter("reported") != site.adapter("before"), "the noise would not have changed anything: this test shows nothing"
    assert [(e["step"], e["skipped"]) for e in site.metrics("skipped", "spike")] == [(41, True)]
    assert [(e["step"], e["skipped"]) for e in site.metrics("reported", "spike")] == [(41, False)]
    # Neither the optimizer nor the schedule counts it.
    cosine = [setting for setting in skip if "schedule" not in setting]
    site.train("output.dir=cosine", *cosine, "train.max_steps=45", ranks=2)
    rates = {m["step"]: m["lr"] for m in site.metrics("cosine")}
    assert [e["step"] for e in site.metrics("cosine", "spike")] == [41] and rates[40] != rates[41] == rates[42] != rates[43], rates
    longer = (*skip, "train.max_steps=50", "output.save_every_samples=160")
    site.train("output.dir=whole", *longer, ranks=2)
    run = site.start("output.dir=parts", *longer, ranks=2, TRIREME_FAULT="sigkill@rank0:step48")
    assert run.end(60) != 0
    assert site.checkpoints("parts")[-1] == 40, site.checkpoints("parts")
    site.train("output.dir=parts", *longer, ranks=2)
    site.same_run("whole", "parts")
    assert site.metrics("parts", "spike")[-1:] == site.metrics("whole", "spike"), site.metrics("parts", "spike")


if __name__ == "__main__":
    fault_site.main({"stops": stops, "skips": skips, "never-saved": never_saved, "fp16": fp16, "zero-norm": zero_norm, "spike": spike,
                     "spike-skipped": spike_skipped})
