#!/usr/bin/env python3
"""train_gpt as a user starts it, with dropout, a tied head and a padded vocabulary throughout. Exit code 77 = skipped."""
import json
import math
import shutil

from run_site import RunSite, main, np

SEQ, VOCAB, PADDED = 48, 120, 128


class Site(RunSite):
    """A GPT of two blocks, drawn by the run itself, and rows in which every second token repeats the one before."""

    program = "train_gpt"

    def __init__(self, args, work):
        super().__init__(args, work)
        with open(f"{work}/config.json", "w") as out:
            json.dump(dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=2, n_positions=SEQ, vocab_size=VOCAB, initializer_range=0.05,
                           bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1), out)
        data = np.random.default_rng(5).integers(0, VOCAB, size=(160, SEQ)).astype(np.int32)
        data[:, 1::2] = data[:, 0:-1:2]
        np.save(f"{work}/train.npy", data[7:])
        np.save(f"{work}/valid.npy", data[:7])
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: config.json, init: random}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 16, micro_batch_size: 2}}
optimizer: {{lr: 3.0e-3}}
schedule: {{name: constant}}
train: {{max_steps: 6}}
precision: {{compute: fp32}}
output: {{dir: run}}
""")

    def losses(self, run):
        return [line["loss"] for line in self.metrics(run)] + [line["loss"] for line in self.metrics(run, "eval")]


def difference(found, want):
    assert len(found) == len(want) > 0, (found, want)
    return max(abs(a / b - 1) for a, b in zip(found, want))


def policies(site):
    """Policies, recomputation, tiles and ranks change neither losses nor masks; a checkpoint goes on under another policy."""
    site.train("output.dir=one", "parallel.recompute=none", "output.save_every_samples=32")
    want = site.losses("one")
    assert want[-1] < want[0], want
    # 192 tokens a pass, in tiles of two rows of 48 (dropout's samples).
    tiles = ("parallel.tile_tokens=128", "parallel.offload=activations")
    for run, policy, recompute, more in (("full", "full", "full", ()), ("tiles", "full", "attention", tiles), ("gradients", "gradients", "1/2", ()),
                                         ("optimizer", "optimizer", "mlp", ()), ("none", "none", "norms", ())):
        site.train(f"output.dir={run}", f"parallel.policy={policy}", f"parallel.recompute={recompute}", *more, "batch.micro_batch_size=4", ranks=2)
        worst = difference(site.losses(run), want)
        print(f"{policy}, recompute {recompute}: {worst:.1e}")
        assert worst < 2e-6, (run, site.losses(run), want)
    # A checkpoint as a model, with all rows of the vocabulary and the blocks' matrices as transformers has them.
    site.tool("checkpoint", "export", "one", "--output", "exported")
    with open(f"{site.work}/one/model/model.safetensors", "rb") as a, open(f"{site.work}/exported/model.safetensors", "rb") as b:
        assert a.read() == b.read()
    assert json.load(open(f"{site.work}/exported/config.json"))["vocab_size"] == PADDED
    # A configuration that changed since is named, and only there.
    with open(f"{site.work}/config.json") as file:
        edited = json.load(file)
    for key, value, named in (("transformers_version", "9.9.9", False), ("layer_norm_epsilon", 0.5, True)):
        with open(f"{site.work}/edited.json", "w") as file:
            json.dump({**edited, key: value}, file)
        done = site.tool("checkpoint", "export", "one", "--model", "edited.json", "--output", f"exported-{key}")
        assert ("edited.json is not what" in done.stderr) == named, done.stderr
    site.train("output.dir=one", "parallel.policy=full", "train.max_steps=8", "output.save_every_samples=32", ranks=2)
    site.train("output.dir=eight", "train.max_steps=8")
    assert difference(site.losses("one")[6:8], site.losses("eight")[6:8]) < 2e-6


def fp8(site):
    """Every recipe on two ranks that divide the weights: the tied head stays in the compute type, and the loss follows bf16's."""
    both = ("precision.compute=bf16", "parallel.policy=full", "data.seq_length=48", "optimizer.lr=1e-3")
    site.train("output.dir=bf16", *both, ranks=2)
    want = site.losses("bf16")
    for recipe, recompute in (("delayed", "full"), ("tensorwise", "mlp"), ("rowwise", "none")):
        site.train(f"output.dir={recipe}", *both, "precision.linear=fp8", f"precision.fp8_recipe={recipe}", f"parallel.recompute={recompute}", ranks=2)
        worst = difference(site.losses(recipe), want)
        print(f"{recipe}: {worst:.1e}")
        assert 0 < worst < 0.01, (recipe, site.losses(recipe), want)


def megatron_sizes(start, increment, samples, size, steps):
    each, seen, sizes = samples / ((size - start) // increment), 0, []
    for _ in range(steps):
        sizes.append(size if seen > samples else start + int(seen / each) * increment)
        seen += sizes[-1]
    return sizes


def ramp(site):
    grows = ("batch.rampup=[4, 4, 36]", "output.save_every_samples=20", "eval.every_samples=20", "eval.samples=5")
    sizes = megatron_sizes(4, 4, 36, 16, 10)
    assert sizes[0] == 4 and sizes[-1] == 16
    site.train("output.dir=whole", *grows, "train.max_steps=10")
    seen = 0
    for line, size in zip(site.metrics("whole"), sizes, strict=True):
        seen += size
        assert line["global_batch_size"] == size and line["samples"] == seen and line["tokens"] == seen * SEQ, (line, size)
    # The first evaluation after each 20 samples, and the last step.
    passed = [sum(sizes[:step]) // 20 for step in range(11)]
    assert [line["step"] for line in site.metrics("whole", "eval")] == [step for step in range(1, 11) if passed[step] > passed[step - 1]], passed
    # A run that ends inside the ramp, and goes on: on one rank to the bit, on two as exactly as sums in another order are.
    site.train("output.dir=parts", *grows, "train.max_steps=5")
    shutil.copytree(f"{site.work}/parts", f"{site.work}/two")
    site.train("output.dir=parts", *grows, "train.max_steps=10")
    whole, parts = site.metrics("whole"), site.metrics("parts")
    assert [(m["loss"], m["grad_norm"]) for m in whole] == [(m["loss"], m["grad_norm"]) for m in parts]
    site.train("output.dir=two", *grows, "train.max_steps=10", ranks=2)
    two = site.metrics("two")
    assert [m["global_batch_size"] for m in two] == sizes
    assert difference([m["loss"] for m in two], [m["loss"] for m in whole]) < 2e-6
    # The same stream of samples with the same dropout as without a ramp: with lr 0 the sum of 40 samples' losses is one number.
    site.train("output.dir=grown", "batch.rampup=[4, 4, 36]", "optimizer.lr=0", "train.max_steps=6")
    site.train("output.dir=even", "batch.global_batch_size=8", "optimizer.lr=0", "train.max_steps=5")
    grown = sum(m["loss"] * m["global_batch_size"] for m in site.metrics("grown"))
    even = sum(m["loss"] * 8 for m in site.metrics("even"))
    assert abs(grown / even - 1) < 1e-7, (grown, even)
    # Another ramp would be another run.
    done = site.train("output.dir=parts", *grows, "batch.rampup=[8, 8, 36]", "train.max_steps=11", expect=73)
    assert "batch.rampup was [4, 4, 36], is [8, 8, 36]" in done.stderr, done.stderr


def configuration(site):
    """What is refused, and what a dry run says."""
    for setting, says in (("[16, 4, 36]", "not below batch.global_batch_size 16"), ("[4, 5, 36]", "steps of 5"), ("[4, 4]", "2 of them"),
                          ("[2, 2, 36]", "start 2 does not divide over 2 ranks x batch.micro_batch_size 2"), ("[4, 4, 0]", "0")):
        done = site.train(f"batch.rampup={setting}", ranks=2 if "[2, 2" in setting else 0, expect=2)
        assert "batch.rampup" in done.stderr and says in done.stderr, (setting, done.stderr)
    done = site.train("schedule.warmup_steps=9", "schedule.name=linear", "schedule.constant_steps=2", "eval.samples=8", "logging.mlperf=true", expect=2)
    assert "constant_steps is for schedule.name cosine" in done.stderr and "warmup_steps 9 is more" not in done.stderr, done.stderr
    assert "logging.mlperf is not for train_gpt" in done.stderr, done.stderr
    done = site.train("eval.samples=8", expect=2)
    assert "eval.samples 8 is more than the 7 rows of data.valid" in done.stderr, done.stderr
    # A row of padding is no token.
    data = np.load(f"{site.work}/train.npy")
    data[3, 5] = VOCAB
    np.save(f"{site.work}/bad.npy", data)
    done = site.train("data.train=bad.npy", "output.dir=bad", expect=3)
    assert "row 3" in done.stderr and f"{VOCAB}" in done.stderr, done.stderr
    done = site.train("batch.rampup=[4, 4, 36]", extra=["--dry-run"])
    assert "batch ramp: 4 rows in step 1, 4 more each 12" in done.stdout and "16 from step 7 on" in done.stdout, done.stdout
    assert f"vocabulary {PADDED}" in done.stdout and "6 of 16 rows" in done.stdout and ": 40 rows" in done.stdout, done.stdout
    # Inside the warm-up from the first step, whose rate is 0, to the last.
    site.train("schedule.name=cosine", "schedule.warmup_steps=12", "schedule.constant_steps=100", "train.max_steps=3")
    done = site.train("schedule.name=cosine", "schedule.warmup_steps=0", "schedule.constant_steps=3", "train.max_steps=3", "output.dir=none", expect=2)
    assert "nothing would be trained" in done.stderr, done.stderr
    for t, m in zip(range(3), site.metrics("run"), strict=True):
        assert math.isclose(m["lr"], 3e-3 * t / 12, rel_tol=1e-12), m


if __name__ == "__main__":
    main({"policies": policies, "fp8": fp8, "ramp": ramp, "configuration": configuration}, Site)
