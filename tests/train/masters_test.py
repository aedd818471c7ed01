#!/usr/bin/env python3
"""Runs whose weights in bf16 are the master weights: close to those with fp32 masters, equal to the bit under every policy, resumed, exported, refused.
Exit code 77 = skipped."""
import shutil

from offload_test import Site
from run_site import main

MASTERS = "optimizer.masters=bf16"
NARROW = (MASTERS, "optimizer.moments=bf16", "optimizer.gradients=bf16")


def losses(site, run):
    return [line["loss"] for line in site.metrics(run)] + [line["loss"] for line in site.metrics(run, "eval")]


def tensors(path):
    from safetensors import safe_open
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def loss(site):
    """With all that is narrow the loss falls as with fp32 (updates below the spacing of bf16: moments_test)."""
    more = ("train.max_steps=16", "optimizer.lr=3.0e-3", "batch.micro_batch_size=8", "eval.every_samples=1000")
    site.train("output.dir=wide", *more)
    site.train("output.dir=narrow", *NARROW, *more)
    wide, narrow = losses(site, "wide"), losses(site, "narrow")
    assert wide[1:] != narrow[1:] and narrow[0] == wide[0], "the first loss is of the same weights"
    assert wide[15] < 0.9 * wide[0], wide
    assert all(abs(a / b - 1) < 0.01 for a, b in zip(narrow, wide, strict=True)), (narrow, wide)


def seeds(site):
    """The draws are those of the seed."""
    for run, seed in (("one", 7), ("again", 7), ("other", 8)):
        site.train(f"output.dir={run}", MASTERS, f"train.seed={seed}")
    assert site.result("one") == site.result("again")
    assert site.result("one")[1] != site.result("other")[1]


def checkpoint(site):
    """Saved, loaded and exported as they are; a checkpoint with other masters is refused."""
    import torch  # the other cases do without
    save = (*NARROW, "output.save_every_samples=16")
    site.train("output.dir=whole", *save, "train.max_steps=4")
    site.train("output.dir=parts", *save, "train.max_steps=2")
    stored = tensors(f"{site.work}/parts/checkpoints/step-00000002/rank-00000.safetensors")
    masters = {name: value for name, value in stored.items() if name.startswith("master")}
    assert masters and all(value.dtype == torch.bfloat16 for value in masters.values()), {n: v.dtype for n, v in masters.items()}
    model = tensors(f"{site.work}/parts/model/model.safetensors")
    norm = model["model.norm.weight"].to(torch.bfloat16)
    assert any(norm.equal(value[begin:begin + norm.numel()]) for value in masters.values() for begin in range(0, value.numel(), 128)), "the exported weights"
    site.tool("checkpoint", "export", "parts/checkpoints/step-00000002", "--output", "exported")
    exported = tensors(f"{site.work}/exported/model.safetensors")
    assert all(exported[name].to(torch.float32).equal(value.to(torch.float32)) for name, value in model.items()), "the tool's export"
    shutil.copytree(f"{site.work}/parts", f"{site.work}/elsewhere")
    done = site.train("output.dir=elsewhere", *save, MASTERS.replace("bf16", "fp32"), "train.max_steps=4", expect=73)
    assert "optimizer.masters was bf16, is fp32" in done.stderr, done.stderr
    site.train("output.dir=parts", *save, "train.max_steps=4")
    assert losses(site, "parts")[:4] == losses(site, "whole")[:4]
    assert site.result("parts")[1] == site.result("whole")[1]


def refusals(site):
    for settings, sentence in (((MASTERS, "precision.compute=fp32"), "optimizer.masters bf16 needs products in bf16, and precision.compute is fp32"),
                               ((MASTERS, "precision.compute=null"), "optimizer.masters bf16 needs products in bf16, and precision.compute is fp32 here"),
                               ((MASTERS, "optimizer.name=lamb"), "optimizer.masters bf16 is for adamw"),
                               ((MASTERS, "lora.r=4"), "master weights of adapters are fp32")):
        text = site.train("output.dir=refused", *settings, expect=2).stderr
        assert sentence in text, (settings, text)


def ranks(site):
    """Every policy and division: equal to the bit where runs with fp32 masters are."""
    steps = "train.max_steps=2"
    runs = {}
    for name, number, more in (("one", 0, ()), ("none", 2, ("parallel.policy=none",)), ("optimizer", 2, ("parallel.policy=optimizer",)),
                               ("gradients", 2, ("parallel.policy=gradients",)), ("full", 2, ("parallel.policy=full",)),
                               ("full4", 4, ("parallel.policy=full", "batch.micro_batch_size=2")),
                               ("optimizer4", 4, ("parallel.policy=optimizer", "batch.micro_batch_size=2"))):
        for masters in ("fp32", "bf16"):
            site.train(f"output.dir={name}-{masters}", f"optimizer.masters={masters}", steps, *more, ranks=number)
        runs[name] = [site.result(f"{name}-{masters}") for masters in ("fp32", "bf16")]
    equal = 0
    for a, b in (("none", "one"), ("optimizer", "none"), ("gradients", "none"), ("full", "none"), ("full", "gradients"), ("optimizer4", "full4")):
        for i in (0, 1):  # lines, weights
            if runs[a][0][i] == runs[b][0][i]:
                equal += 1
                assert runs[a][1][i] == runs[b][1][i], (a, b, i)
    assert equal >= 4, equal  # the last two pairs on any machine
    # Codes are made from them; the state may wait on the host.
    for name, more in (("codes", ("precision.linear=fp8", "precision.fp8_recipe=rowwise")), ("delayed", ("precision.linear=fp8", "precision.fp8_recipe=delayed"))):
        site.pair(name, *NARROW, *more, "parallel.policy=full", steps, ranks=2)
    site.pair("host", *NARROW, steps, offload="optimizer")


def gpu(site):
    """The same on a GPU."""
    site.to_gpu()
    loss(site)
    seeds(site)
    checkpoint(site)
    for recipe in ("rowwise", "tensorwise", "delayed"):
        site.pair(recipe, *NARROW, "precision.linear=fp8", f"precision.fp8_recipe={recipe}")


if __name__ == "__main__":
    main({"loss": loss, "seeds": seeds, "checkpoint": checkpoint, "refusals": refusals, "ranks": ranks, "gpu": gpu}, Site)
