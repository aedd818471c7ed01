#!/usr/bin/env python3
"""Rows that several ranks share: the numbers of a run do not depend on parallel.context_size. Exit code 77 = skipped."""
import json
import random
import shutil

from run_site import RunSite, main, np
from tiny_llama import write_llama

SEQ, VOCAB = 48, 120


def packed_rows(rng, count):
    """Rows of several documents of any length, of which a part is masked."""
    rows = np.empty(count, dtype=object)
    for i in range(count):
        starts = sorted({0, *rng.choice(np.arange(1, SEQ), size=rng.integers(0, 5), replace=False).tolist()})
        mask = (rng.random(SEQ) < 0.7).astype(np.int64)
        rows[i] = {"input_ids": rng.integers(0, VOCAB, size=SEQ).tolist(), "loss_mask": mask.tolist(), "seq_start_id": starts}
    return rows


class Site(RunSite):
    """A Llama of eight query heads over two key heads, with dropout of the probabilities and longrope, and packed rows."""

    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        for name, kv_heads in (("base", 2), ("one-key-head", 1), ("full-heads", 8)):
            write_llama(f"{work}/{name}", VOCAB, 2, 128, hidden=64, heads=8, kv_heads=kv_heads)
            config = json.load(open(f"{work}/{name}/config.json"))
            config["attention_dropout"] = 0.1
            if name == "base":  # each document has the frequencies of its own length
                config["rope_parameters"] = dict(rope_type="longrope", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=12,
                                                 short_factor=[1.0] * 4, long_factor=[1.0, 1.5, 3.0, 4.0])
            json.dump(config, open(f"{work}/{name}/config.json", "w"))
        json.dump(dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=SEQ, vocab_size=VOCAB, initializer_range=0.05,
                       bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1), open(f"{work}/gpt.json", "w"))
        rng = np.random.default_rng(5)
        np.save(f"{work}/train.npy", packed_rows(rng, 64), allow_pickle=True)
        np.save(f"{work}/valid.npy", packed_rows(rng, 7), allow_pickle=True)
        np.save(f"{work}/plain.npy", rng.integers(0, VOCAB, size=(64, SEQ)).astype(np.int32))
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 8, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-3}}
train: {{max_steps: 5}}
eval: {{every_samples: 16}}
precision: {{compute: fp32}}
output: {{dir: run}}
""")

    def numbers(self, run):
        lines = self.metrics(run)
        return {"loss": [line["loss"] for line in lines], "norm": [line["grad_norm"] for line in lines],
                "evaluation": [line["loss"] for line in self.metrics(run, "eval")],
                "rows": [(line["samples"], line["tokens"]) for line in lines]}

    def compare(self, run, want, bound, what):
        """Worst relative differences of losses, norms and evaluations."""
        found = self.numbers(run)
        assert found["rows"] == want["rows"], (what, found["rows"], want["rows"])
        worst = {}
        for kind in ("loss", "norm", "evaluation"):
            assert len(found[kind]) == len(want[kind]) > 0, (what, kind, found, want)
            worst[kind] = max(abs(a / b - 1) for a, b in zip(found[kind], want[kind]))
        print(f"{what}: " + ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items()), flush=True)
        assert max(worst.values()) < bound, (what, worst)
        shutil.rmtree(f"{self.work}/{run}")
        return worst


LORA = ("lora.r=4", "lora.alpha=8", "lora.dropout=0.1", "lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]")
GPT = ("model.path=gpt.json", "model.init=random", "data.train=plain.npy", "data.valid=null", "eval.every_samples=null")
# What is trained: settings, bound, and the program. Only the order of sums differs, except where a pass of fewer tokens has other scales.
WORK = {
    "packed documents, masks, dropout of attention": ((), 1e-6, "train_llama"),
    "LoRA with dropout": (LORA, 1e-6, "train_llama"),
    "DoRA, tokens and the output matrix beside it": ((*LORA, "lora.use_dora=true", "lora.trainable_token_indices=[3, 50, 7]",
                                                      "lora.modules_to_save=[lm_head]", "lora.rank_pattern={q_proj: 2}"), 1e-6, "train_llama"),
    "token mean": (("train.loss=token_mean", "data.train=plain.npy"), 1e-6, "train_llama"),
    "one key head": (("model.path=one-key-head",), 1e-6, "train_llama"),
    "as many key heads as query heads": (("model.path=full-heads",), 1e-6, "train_llama"),
    "GPT-3, dropout of attention, residual and embedding": ((*GPT, "data.valid=plain.npy", "eval.every_samples=16"), 1e-6, "train_gpt"),
}
LAYOUTS = (  # ranks, context, other settings
    (2, 2, ()),
    (4, 2, ("parallel.shard_size=2",)),
    (4, 2, ("parallel.shard_size=4", "batch.micro_batch_size=2")),
    (4, 4, ("parallel.shard_size=1",)),
    (4, 4, ("parallel.shard_size=world", "parallel.recompute=full")),
    (4, 4, ("parallel.shard_size=2", "batch.micro_batch_size=4")),
)
POLICIES = ("none", "optimizer", "gradients", "full")


def shared_rows(site):
    """The short one: a run on one rank, then on two and four that share rows, and a checkpoint that goes on with other sizes."""
    save = ("output.save_every_samples=16", "schedule.name=constant")
    site.train("output.dir=one", *save)
    want = site.numbers("one")
    for ranks, context, more in ((2, 2, ()), (4, 2, ("parallel.policy=full", "batch.micro_batch_size=2", "parallel.recompute=full")), (4, 4, ("parallel.shard_size=2",))):
        site.train("output.dir=shared", f"parallel.context_size={context}", *more, "train.max_steps=2", *save, ranks=ranks)
        site.train("output.dir=shared", *(("parallel.context_size=2",) if context == 4 else ("batch.micro_batch_size=1",)), *save, ranks=2 if context == 4 else 1)
        site.compare("shared", want, 1e-6, f"{ranks} ranks, context {context}, then fewer")
    # Two rows for four ranks.
    site.train("output.dir=one", "batch.global_batch_size=2", "output.dir=few")
    want = site.numbers("few")
    done = site.train("output.dir=auto", "batch.global_batch_size=2", ranks=4)
    assert "context: 2 ranks share a row" in done.stdout + done.stderr, done.stdout
    site.compare("auto", want, 1e-6, "four ranks, two rows")
    for setting, ranks, text in (("parallel.context_size=3", 3, "takes its part: take 1;"), ("parallel.context_size=3", 4, "does not divide the 4 ranks"),
                                 ("batch.micro_batch_size=12", 3, "batch.global_batch_size 12 does not divide over 3 ranks x batch.micro_batch_size 12")):
        done = site.train("output.dir=refused", setting, "batch.global_batch_size=12", ranks=ranks, expect=2)
        assert text in done.stderr, done.stderr


def layouts(site):
    """Every kind of work on every layout."""
    table = []
    for what, (settings, bound, program) in WORK.items():
        site.train("output.dir=want", *settings, program=program)
        want = site.numbers("want")
        shutil.rmtree(f"{site.work}/want")
        for ranks, context, more in LAYOUTS:
            done = ["output.dir=run", f"parallel.context_size={context}", *more]
            site.train(*done, *settings, ranks=ranks, program=program)
            table.append((what, ranks, context, more, site.compare("run", want, bound, f"{what}: {ranks} ranks, context {context} {' '.join(more)}")))
    site.train("output.dir=want")
    want = site.numbers("want")
    for policy in POLICIES:
        for context in (2, 4):
            site.train("output.dir=run", f"parallel.policy={policy}", "parallel.shard_size=2", f"parallel.context_size={context}", ranks=4)
            table.append((f"policy {policy}", 4, context, (), site.compare("run", want, 1e-6, f"policy {policy}, context {context}")))
    for what, ranks, context, more, worst in table:
        print("| " + " | ".join([what, str(ranks), str(context), " ".join(more), *(f"{value:.1e}" for value in worst.values())]) + " |")


def fp8(site):
    """Products in FP8. Where a sum in another order crosses a rounding boundary, a code becomes another, so that one rank with other micro-batches differs
    too: no layout may differ by much more than these do. A tensor's scale is that of a rank's tokens: of every step with tensorwise, of the first with
    delayed."""
    kinds = {"frozen": (*LORA, "precision.linear=fp8")}
    for recipe in ("rowwise", "delayed", "tensorwise"):
        kinds[recipe] = ("precision.linear=fp8", f"precision.fp8_recipe={recipe}", "optimizer.lr=1e-4")
    for kind, settings in kinds.items():
        site.train("output.dir=want", *settings)
        want = site.numbers("want")
        shutil.rmtree(f"{site.work}/want")
        spread = {"loss": 1e-5, "norm": 1e-3, "evaluation": 1e-5}
        for micro in (2, 4, 8):
            site.train("output.dir=run", *settings, f"batch.micro_batch_size={micro}")
            for number, value in site.compare("run", want, 1, f"{kind}: one rank, micro-batch {micro}").items():
                spread[number] = max(spread[number], value)
        for ranks, context in ((2, 2), (4, 4)):
            site.train("output.dir=run", *settings, f"parallel.context_size={context}", ranks=ranks)
            for number, value in site.compare("run", want, 1, f"{kind}: {ranks} ranks, context {context}").items():
                assert value < 4 * spread[number], (kind, number, value, spread)


def fuzz(site, seed=None, count=25):
    """Layouts, batches, models and settings by chance; a run of one rank is the reference."""
    seed = random.randrange(1 << 30) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    for turn in range(count):
        what = rng.choice(list(WORK))
        settings, bound, program = WORK[what]
        ranks = rng.choice([2, 3, 4, 6, 8])
        context = rng.choice([c for c in (1, 2, 4, 8) if ranks % c == 0 and (c <= 4 or program == "train_llama")])
        readers = ranks // context
        micro = rng.choice([1, 2, 4])
        batch = readers * micro * rng.choice([1, 2])
        shards = [s for s in range(1, ranks + 1) if ranks % s == 0 and (s % context == 0 or context % s == 0)]
        settings = [*settings, f"batch.global_batch_size={batch}", "train.max_steps=3", f"train.seed={rng.randrange(1000)}", f"eval.every_samples={batch}"]
        if "eval.every_samples=null" in settings:
            settings.remove("eval.every_samples=null")
        layout = [f"parallel.context_size={context}", f"parallel.shard_size={rng.choice(shards)}", f"batch.micro_batch_size={micro}",
                  f"parallel.recompute={rng.choice(['none', 'norms', 'mlp', 'full', '1/2', 'auto'])}"]
        site.train("output.dir=want", *settings, program=program)
        want = site.numbers("want")
        shutil.rmtree(f"{site.work}/want")
        site.train("output.dir=run", *settings, *layout, ranks=ranks, program=program)
        site.compare("run", want, bound, f"{turn}: {what}: {ranks} ranks {' '.join(layout)} {' '.join(settings)}")


if __name__ == "__main__":
    main({"shared": shared_rows, "layouts": layouts, "fp8": fp8, "fuzz": fuzz}, Site)
