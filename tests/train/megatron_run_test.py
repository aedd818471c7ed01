#!/usr/bin/env python3
"""train_llama on Megatron's indexed files and on the mock set: ranks, index maps, splits, resumes, exit codes, `trireme data megatron` with a
stop in the middle. Exit code 77 = skipped."""
import glob
import json
import os
import subprocess
import sys

from run_site import RunSite, last_line, main, np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "prepare"))
import megatron_reference as megatron  # noqa: E402

SEQ, VOCAB, SEED = 16, 400, 11


class Site(RunSite):
    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        self.make_llama(1, VOCAB, 128)
        rng = np.random.default_rng(5)
        self.documents = [np.append(rng.integers(3, VOCAB, size=rng.integers(1, 60)), 2) for _ in range(60)]
        megatron.write_indexed(f"{work}/corpus", self.documents, 8)
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base, init: random}}
data: {{train: corpus, seq_length: {SEQ}, splits: "80,15,5", index_cache: cache}}
batch: {{global_batch_size: 12, micro_batch_size: 2}}
optimizer: {{lr: 1.0e-3}}
schedule: {{name: constant}}
train: {{max_steps: 10, seed: {SEED}}}
eval: {{every_samples: 60, samples: 4}}
output: {{dir: run}}
""")

    def losses(self, run, event="train"):
        return [m["loss"] for m in self.metrics(run, event)]

    def assert_equal(self, run, reference, bound):
        mine, theirs = self.losses(run), self.losses(reference)
        assert len(mine) == len(theirs), (run, len(mine), len(theirs))
        worst = max(abs(a - b) / abs(b) for a, b in zip(mine, theirs))
        print(f"{run}: worst difference from {reference} {worst:.1e}")
        assert worst <= bound, (run, worst)


def runs(site):
    """Maps are written once, with the content of the rules; ranks and resumes change nothing."""
    done = site.train("output.dir=one")
    assert "index maps of" in done.stderr and "corpus (Megatron uint16, 48 documents" in done.stderr, done.stderr
    sizes = np.array([len(d) for d in site.documents], np.int32)
    bounds = megatron.split_bounds("80,15,5", 60, False)
    for split, part, n in (("train", 0, 120), ("valid", 1, (10 // 5 + 1) * 4)):
        maps = megatron.index_maps(np.arange(bounds[part], bounds[part + 1]), sizes, n, SEQ, SEED)
        for name, mine in zip(("doc_idx", "sample_idx", "shuffle_idx"), maps):
            theirs = np.load(f"{site.work}/cache/corpus_{split}_indexmap_{n}ns_{SEQ}sl_{SEED}s_{name}.npy")
            assert theirs.dtype == mine.dtype and (theirs == mine).all(), (split, name)
    assert len(site.losses("one", "eval")) == 2
    assert len(glob.glob(f"{site.work}/cache/*")) == 6
    # Two ranks without maps, on the other side of a directory that cannot be made: each builds its own.
    open(f"{site.work}/file", "w").close()
    done = site.train("output.dir=two", "data.index_cache=file/below", ranks=2)
    assert "every rank builds them in memory" in done.stderr, done.stderr
    site.assert_equal("two", "one", 2e-6)
    # 1 -> 2 ranks in the middle of an epoch. train.max_steps is part of the order, so the run is stopped, not shortened.
    site.train("output.dir=parts", "train.max_steps=40", expect=75, TRIREME_FAULT="sigterm@step:step4")
    assert len(site.losses("parts")) in (4, 5)
    site.train("output.dir=parts", "train.max_steps=40", ranks=2)
    site.train("output.dir=whole", "train.max_steps=40")
    site.assert_equal("parts", "whole", 2e-6)


def extension(site):
    """More steps: what Megatron's order depends on is said where it changes, and only there. Where maps lie decides nothing."""
    words = "rows now come in Megatron's order for"
    keys = ("output.dir=longer", "output.save_every_samples=12", "eval.shuffle=false")
    site.train(*keys, "train.max_steps=2")
    done = site.train(*keys, "train.max_steps=3", "data.index_cache=elsewhere")
    assert words not in done.stderr and "extended from 2 to 3" in done.stderr, done.stderr
    done = site.train(*keys, "train.max_steps=12")
    assert f"warning: the training {words} 12 steps (2 epochs" in done.stderr and f"the validation {words}" not in done.stderr, done.stderr
    done = site.train(*keys[:2], "train.max_steps=13", "eval.every_samples=12", "eval.samples=8")
    assert f"warning: the validation {words}" in done.stderr, done.stderr


def kinds(site):
    """Ends of documents, blends, mock, a dry run, and what is refused."""
    site.train("output.dir=plain", "eval.every_samples=null")
    for run, keys in (("positions", ["data.reset_position_ids=true"]), ("attention", ["data.reset_attention_mask=true"]), ("loss", ["data.eod_mask_loss=true"])):
        done = site.train(f"output.dir={run}", "data.eos_token=2", "eval.every_samples=null", *keys)
        assert site.losses(run)[0] != site.losses("plain")[0], run
        assert "ends with data.eos_token" not in done.stderr, done.stderr
    done = site.train("output.dir=other-end", "data.eos_token=399", "eval.every_samples=null", "data.reset_attention_mask=true")
    assert "none of the first 60 documents ends with data.eos_token 399" in done.stderr, done.stderr
    still = ["train.max_steps=1", "optimizer.lr=1e-12", "model.path=plain/model", "model.init=checkpoint"]
    for run, keys in (("drawn", []), ("drawn-2", ["train.seed=2"]), ("first", ["eval.shuffle=false"]), ("first-2", ["eval.shuffle=false", "train.seed=2"])):
        site.train(f"output.dir={run}", "eval.every_samples=null", "eval.samples=2", *still, *keys)
    drawn, drawn_2, first, first_2 = (site.metrics(run, "eval")[-1]["loss"] for run in ("drawn", "drawn-2", "first", "first-2"))
    assert first == first_2 and drawn != drawn_2 and first not in (drawn, drawn_2), "without shuffling the rows do not depend on the seed"
    done = site.train("data.train=mock", "train.max_steps=3", "output.dir=mock", "train.loss=token_mean")
    assert "train: mock (random ids below 400, 36 rows)" in done.stderr, done.stderr
    assert all(abs(loss - np.log(VOCAB)) < 0.2 for loss in site.losses("mock")), site.losses("mock")
    done = site.train("data.train=mock", "data.valid=mock", "data.test=mock", "data.splits=null", "eval.test_samples=4", "train.max_steps=1", "output.dir=mock-test", "train.loss=token_mean")
    assert abs(site.metrics("mock-test", "test")[0]["loss"] - np.log(VOCAB)) < 0.2, done.stdout
    os.rename(f"{site.work}/cache", f"{site.work}/old_cache")
    done = site.train("output.dir=dry", extra=["--dry-run"])
    assert "epochs of" in done.stdout and not os.path.exists(f"{site.work}/cache"), done.stdout
    megatron.write_indexed(f"{site.work}/code", site.documents[::2], 8)
    done = site.train("output.dir=blend", "data.train=[corpus.bin, code.idx]", "data.weights=[3, 1]", "data.index_rules=core", "train.max_steps=4")
    assert len(glob.glob(f"{site.work}/cache/*_core_*")) == 12, glob.glob(f"{site.work}/cache/*")
    done = site.tool("data", "verify", "--config", "run.yaml")
    assert "60 documents" in done.stdout, done.stdout
    assert "is mock" in site.tool("data", "verify", "--config", "run.yaml", "--set", "data.train=mock", expect=2).stderr
    assert "is mock" in site.tool("data", "verify", "--bert", "--seq-length", 8, "--vocab-size", 9, "mock", expect=2).stderr
    for keys, code, text in ((["data.train=[corpus, code]"], 2, "give each a weight"), (["data.eod_mask_loss=true"], 2, "needs data.eos_token"),
                             (["data.valid=corpus"], 2, "remove data.valid or data.splits"), (["data.bos_token=1"], 2, "data.bos_token"),
                             (["data.splits=1,1"], 2, "has 2 shares"), (["data.train=[corpus, run.yaml]", "data.weights=[1, 1]"], 2, "made of one kind"),
                             (["data.train=absent.bin"], 3, f"data.train: {site.work}/absent.bin is not there, nor is {site.work}/absent.idx"),
                             (["data.train=[corpus, no.v1]", "data.weights=[1, 1]"], 3, "no.v1.idx"), (["data.train=mock", "data.valid=absent", "data.splits=null"], 3, "data.valid: "), (["data.train=run.yaml"], 2, "for Megatron's indexed files")):
        done = site.train("output.dir=refused", *keys, expect=code)
        assert text in done.stderr, (keys, done.stderr[-800:])
    megatron.write_indexed(f"{site.work}/padding", [np.array([VOCAB + 1] * 40)] * 8, 8)
    done = site.train("output.dir=refused", "data.train=padding", "model.pad_vocab_to=128", expect=3)
    assert f"{VOCAB + 1}" in last_line(done.stderr), done.stderr
    raw = open(f"{site.work}/corpus.idx", "rb").read()
    open(f"{site.work}/hostile.idx", "wb").write(raw[:18] + (2**62).to_bytes(8, "little") + raw[26:])
    open(f"{site.work}/hostile.bin", "wb").close()
    done = site.train("output.dir=refused", "data.train=hostile", expect=3)
    assert "hostile.idx: byte 18" in last_line(done.stderr), done.stderr


def main_pack(site):
    """The same files for any number of threads, after a kill too."""
    words = "a storm left the old harbour and nobody asked why the rowers crossed it".split()
    rng = np.random.default_rng(3)
    work = site.work
    with open(f"{work}/corpus.txt", "w") as out:
        out.write("\n".join(" ".join(rng.choice(words, 12)) for _ in range(500)))
    site.tool("tokenizer", "train", "--input", "corpus.txt", "--vocab-size", 300, "--output", "tokenizer.model")
    with open(f"{work}/a.jsonl", "w") as out:
        for _ in range(600):
            out.write(json.dumps({"text": " ".join(rng.choice(words, rng.integers(0, 400)))}) + "\n")
    subprocess.run(["gzip", "-k", f"{work}/a.jsonl"], check=True)
    pack = ["data", "megatron", "--tokenizer", "tokenizer.model", "--append-eod"]
    for workers in (1, 3):
        site.tool(*pack, "--input", "a.jsonl", "a.jsonl.gz", "--output-prefix", f"w{workers}", "--workers", workers)
    read = {name: open(f"{work}/w{name}_text_document.{end}", "rb").read() for name in (1, 3) for end in ("bin",)}
    assert read[1] == read[3]
    code, documents = megatron.read_indexed(f"{work}/w1_text_document")
    assert code == 8 and len(documents) % 2 == 0 and all(d[-1] == 2 for d in documents)
    half = len(documents) // 2
    assert all((a == b).all() for a, b in zip(documents[:half], documents[half:])), "the packed file gives the same documents"
    site.tool("data", "megatron", "--merge", "w1_text_document", "w3_text_document.idx", "--output-prefix", "merged")
    assert "documents" in site.tool("data", "megatron", "--show", "merged", "--tokenizer", "tokenizer.model").stdout
    assert len(megatron.read_indexed(f"{work}/merged")[1]) == 2 * len(documents)


if __name__ == "__main__":
    main({"runs": runs, "extension": extension, "kinds": kinds, "pack": main_pack}, Site)
