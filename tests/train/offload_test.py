#!/usr/bin/env python3
"""Runs whose master weights and moments wait on the host: the bits of runs without, saved, resumed, killed, refused. Exit code 77 = skipped."""
import json
import os
import shutil
import subprocess
import sys

from run_site import RunSite, last_line, main, np

SEQ, VOCAB = 64, 512
ON_HOST = "parallel.offload=optimizer"


class Site(RunSite):
    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        with open(f"{work}/config.json", "w") as out:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
                       "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": VOCAB, "max_position_embeddings": SEQ, "rms_norm_eps": 1e-5,
                       "tie_word_embeddings": False, "hidden_act": "silu"}, out)
        rng = np.random.default_rng(5)
        for name, rows in (("train", 40), ("valid", 4)):
            data = rng.integers(0, VOCAB, size=(rows, SEQ)).astype(np.int32)
            data[:, 1::2] = data[:, 0:-1:2]
            np.save(f"{work}/{name}.npy", data)
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: config.json, init: random}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 8, micro_batch_size: 4}}
optimizer: {{lr: 1.0e-3, grad_clip: 0.5}}
schedule: {{name: constant}}
precision: {{compute: bf16}}
train: {{max_steps: 3}}
output: {{dir: run}}
""")

    def result(self, run):
        """What a run printed and left, to the bit."""
        lines = [(line["loss"], line["grad_norm"]) for line in self.metrics(run)] + [line["loss"] for line in self.metrics(run, "eval")]
        with open(f"{self.work}/{run}/model/model.safetensors", "rb") as file:
            return lines, file.read()

    def to_gpu(self):
        """Runs are on the GPU from now on, with the same bits each time; without one the test is skipped."""
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
        if "GPU 0" not in listed:
            print("SKIPPED: this machine has no GPU")
            sys.exit(77)
        with open(f"{self.work}/run.yaml") as file:
            text = file.read()
        with open(f"{self.work}/run.yaml", "w") as file:
            file.write(text.replace("max_steps: 3", "max_steps: 3, deterministic: true"))

    def pair(self, name, *overrides, ranks=0, offload="optimizer"):
        """Runs with and without the state on the host: equal to the bit."""
        for run, where in ((name, "none"), (f"{name}-host", offload)):
            done = self.train(f"output.dir={run}", f"parallel.offload={where}", *overrides, ranks=ranks)
            assert ("master weights and moments of the first" in done.stdout + done.stderr) == (where != "none"), done.stdout
        want, found = self.result(name), self.result(f"{name}-host")
        assert found[0] == want[0] and found[1] == want[1], (name, found[0], want[0])


def recipes(site, *names):
    for recipe in names:
        site.pair(recipe, "precision.linear=fp8", f"precision.fp8_recipe={recipe}")


def bits(site):
    """One micro-batch a step and two, moments of both types, a recipe whose scales are state, skipped steps."""
    site.pair("two")
    site.pair("one", "batch.micro_batch_size=8", "optimizer.moments=bf16")
    recipes(site, "delayed")
    site.pair("gradients", "optimizer.gradients=bf16", "batch.micro_batch_size=2")
    for (a, _), (b, _) in zip(site.result("gradients")[0][1:3], site.result("two")[0][1:3]):
        assert 0 < abs(a / b - 1) < 1e-3, "rounded, and no more"
    site.pair("fp32", "precision.compute=fp32", "train.max_steps=2")
    site.pair("fp16", "precision.compute=fp16", "precision.loss_scale=16777216", "train.max_steps=6")


def ranks(site):
    """Divided state, with a compute copy and with codes, and whole state of every rank; the other recipes."""
    recipes(site, "rowwise", "tensorwise")
    for policy, more in (("full", ()), ("optimizer", ("precision.linear=fp8",)), ("none", ("model.read=per_host",)),
                         ("gradients", ("optimizer.gradients=bf16", "batch.micro_batch_size=2"))):
        site.pair(policy, f"parallel.policy={policy}", *more, ranks=2)


def resume(site, several=True):
    """A checkpoint goes on with the state here or there, on other numbers of ranks, and is the same file by file."""
    save = ("output.save_every_samples=16", "optimizer.moments=bf16")
    for name, offload in (("here", "none"), ("there", "optimizer")):
        site.train(f"output.dir={name}", *save, f"parallel.offload={offload}", "train.max_steps=4", "output.keep_best=true", "eval.every_samples=16")
    for folder in ("checkpoints/step-00000002", "checkpoints/step-00000004"):
        files = [os.path.join(folder, name) for name in sorted(os.listdir(f"{site.work}/here/{folder}")) if name.endswith(".safetensors")]
        assert files, os.listdir(f"{site.work}/here/{folder}")
        for file in files:
            with open(f"{site.work}/here/{file}", "rb") as a, open(f"{site.work}/there/{file}", "rb") as b:
                assert a.read() == b.read(), file
    with open(f"{site.work}/here/best/model/model.safetensors", "rb") as a, open(f"{site.work}/there/best/model/model.safetensors", "rb") as b:
        assert a.read() == b.read()
    want = None
    runs = [("here", "none", 0), ("here", "optimizer", 0), ("there", "none", 0), ("there", "optimizer", 0)]
    for start, offload, number in runs + ([("there", "optimizer", 2)] if several else []):
        run = f"{start}-{offload}-{number}"
        shutil.copytree(f"{site.work}/{start}", f"{site.work}/{run}")
        more = ("parallel.policy=full", "batch.micro_batch_size=2") if number else ()
        site.train(f"output.dir={run}", *save, f"parallel.offload={offload}", *more, "train.max_steps=6", "output.keep_best=true", "eval.every_samples=16",
                   ranks=number)
        found = [line["loss"] for line in site.metrics(run)]
        assert len(found) == 6, found
        want = want or found
        assert found == want if number == 0 else max(abs(a / b - 1) for a, b in zip(found, want)) < 1e-3, (run, found, want)


def faults(site):
    """A save that is killed while the step waits for it; a host without memory to pin; settings that cannot stream."""
    save = (ON_HOST, "output.save_every_samples=8", "train.max_steps=4")
    site.train("output.dir=whole", *save)
    died = subprocess.run(site.command("output.dir=killed", *save), capture_output=True, text=True,
                          env={**os.environ, "TRIREME_FAULT": "sigkill@save:written:step3"})
    assert died.returncode == -9, died.stderr
    site.train("output.dir=killed", *save)
    assert site.result("killed")[1] == site.result("whole")[1]
    # The writer is slow: the optimizer waits, and what is written is the state before its update.
    site.train("output.dir=slow", *save, TRIREME_FAULT="sleep@save:write:1s:step3")
    assert site.result("slow")[1] == site.result("whole")[1]
    for step in ("step-00000003", "step-00000004"):
        with open(f"{site.work}/whole/checkpoints/{step}/rank-00000.safetensors", "rb") as a, \
                open(f"{site.work}/slow/checkpoints/{step}/rank-00000.safetensors", "rb") as b:
            assert a.read() == b.read(), step
    line = last_line(site.train("output.dir=full", ON_HOST, expect=2, TRIREME_FAULT="fail@pinned-memory").stderr)
    assert "of pinned memory in which master weights and moments wait" in line and "parallel.offload: none" in line, line
    for optimizer, why, offload in (("lamb", "norms of whole tensors", "optimizer"), ("muon", "whole matrices", "all")):
        text = site.train("output.dir=refused", f"parallel.offload={offload}", f"optimizer.name={optimizer}", expect=2).stderr
        assert f"parallel.offload {offload} is for optimizer.name: adamw" in text and why in text, text
    text = site.train("output.dir=refused", "optimizer.gradients=bf16", "precision.compute=fp32", expect=2).stderr
    assert "optimizer.gradients bf16 needs products in bf16, and precision.compute is fp32" in text, text
    text = site.train("output.dir=refused", "parallel.offload=all", "parallel.recompute=norms", expect=2).stderr
    assert "parallel.offload all takes what blocks keep in place of what they recompute" in text, text
    site.pair("all", "parallel.recompute=full", offload="all")


def gpu(site):
    """The same on a GPU."""
    site.to_gpu()
    bits(site)
    recipes(site, "rowwise", "tensorwise")
    resume(site, several=False)
    faults(site)


if __name__ == "__main__":
    main({"bits": bits, "ranks": ranks, "resume": resume, "faults": faults, "gpu": gpu}, Site)
