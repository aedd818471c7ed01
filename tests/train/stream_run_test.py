#!/usr/bin/env python3
"""train_llama on documents: Arrow files as fms-fsdp and datasets.save_to_disk write them, and text; ranks, stops, resumes at other world sizes,
mixing, exit codes. Exit code 77 = skipped."""
import json
import os
import shutil
import subprocess

from run_site import RunSite, last_line, main, needed, np

with needed():
    import pyarrow as pa
    import pyarrow.parquet

SEQ, VOCAB = 32, 400


def write_arrow(path, documents, stream=False, rows=None):
    """One batch of integers a document, or lists with so many `rows` a batch."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    schema = pa.schema([("tokens", pa.uint32())] if rows is None else [("input_ids", pa.list_(pa.int32()))])
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, schema) as writer:
        if rows is None:
            for document in documents:
                writer.write_batch(pa.record_batch([pa.array(document, pa.uint32())], schema=schema))
        else:
            for begin in range(0, len(documents), rows):
                writer.write_batch(pa.record_batch([pa.array(documents[begin:begin + rows], pa.list_(pa.int32()))], schema=schema))


class Site(RunSite):
    """A temporary directory with a small model, documents and a configuration."""

    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        self.make_llama(1, VOCAB, 128)
        rng = np.random.default_rng(5)
        self.documents = [rng.integers(3, VOCAB, size=rng.integers(1, 90)).tolist() for _ in range(120)]
        write_arrow(f"{work}/corpus/lang=en/one.arrow", self.documents[:50])
        write_arrow(f"{work}/corpus/lang=de/two.arrow", self.documents[50:])
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base, init: random}}
data: {{train: corpus, seq_length: {SEQ}, bos_token: 1, eos_token: 2, logical_shards: 12}}
batch: {{global_batch_size: 12, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-3}}
schedule: {{name: constant}}
train: {{max_steps: 12}}
output: {{dir: run}}
""")


    def losses(self, run):
        return [m["loss"] for m in self.metrics(run)]

    def assert_equal(self, run, reference, bound=2e-6):
        mine, theirs = self.losses(run), self.losses(reference)
        assert len(mine) == len(theirs), (run, len(mine), len(theirs))
        worst = max(abs(a - b) / abs(b) for a, b in zip(mine, theirs))
        print(f"{run}: worst difference from {reference} {worst:.1e}")
        assert worst <= bound, (run, worst)


def went_on(site, ranks, steps):
    """A run of so many ranks one after the other, each of which goes on from the checkpoint of the one before, in the middle of documents."""
    for part, number in enumerate(ranks):
        done = site.train("output.dir=rescaled", f"train.max_steps={steps * (part + 1)}", "output.save_every_samples=36", ranks=number)
        assert "warning: the checkpoint" not in done.stderr, done.stderr


def rescale(site):
    site.train("output.dir=one")
    went_on(site, (1, 2, 4, 3), 3)
    site.assert_equal("rescaled", "one")


def ranks(site):
    done = site.train("output.dir=one")
    assert "120 documents of Arrow" in done.stdout + done.stderr, done.stderr
    site.train("output.dir=two", ranks=2)
    site.assert_equal("two", "one")
    site.train("output.dir=other", "train.seed=77")
    assert site.losses("other")[1:] != site.losses("one")[1:]
    went_on(site, (2, 3), 6)
    site.assert_equal("rescaled", "one")
    # A signal saves the place after the last step, not that of the rows that are read ahead.
    site.train("train.max_steps=40", "output.dir=stopped", expect=75, TRIREME_FAULT="sigterm@step:step5")
    assert len(site.losses("stopped")) in (5, 6)
    for run in ("stopped", "unstopped"):
        site.train("train.max_steps=40", f"output.dir={run}")
    site.assert_equal("stopped", "unstopped", bound=0)
    # The same numbers of ranks give the same bits.
    for steps in (5, 12):
        site.train("output.dir=parts", f"train.max_steps={steps}", "output.save_every_samples=36", ranks=2)
    site.assert_equal("parts", "two", bound=0)


def ramp(site):
    """A batch that grows takes the documents on from where the step before left them, over any number of ranks, and after a stop inside the ramp."""
    grows = ("batch.rampup=[4, 4, 20]", "output.save_every_samples=8")
    site.train("output.dir=one", *grows, "train.max_steps=7")
    assert [m["samples"] for m in site.metrics("one")] == [4, 8, 12, 20, 32, 44, 56]
    for steps, number in ((2, 1), (4, 2), (7, 4)):
        site.train("output.dir=rescaled", *grows, f"train.max_steps={steps}", ranks=number)
    site.assert_equal("rescaled", "one")
    # The rows are those of equal steps: with rate 0 their losses have one sum.
    site.train("output.dir=grown", *grows[:1], "train.max_steps=6", "optimizer.lr=0")
    site.train("output.dir=even", "batch.global_batch_size=4", "train.max_steps=11", "optimizer.lr=0")
    grown = sum(m["loss"] * m["global_batch_size"] for m in site.metrics("grown"))
    even = sum(m["loss"] * 4 for m in site.metrics("even"))
    assert abs(grown / even - 1) < 1e-7, (grown, even)


def nonfinite(site):
    """A step whose numbers are looked into is read again; the steps read ahead of it keep their places, and so does what a checkpoint saves."""
    keys = ("train.on_nonfinite=skip", "optimizer.lr=0")  # the losses are those of the rows
    site.train("output.dir=whole", *keys)
    os.environ["TRIREME_FAULT"] = ",".join(f"nan@gradient:model.layers.0.self_attn.q_proj.weight:step{step}" for step in (1, 5, 6))
    done = site.train("output.dir=bad", *keys, "train.max_steps=8", "output.save_every_samples=24", ranks=2)
    assert "step 5: the loss is" in done.stderr and "the step is skipped (2 of 20 in a row)" in done.stderr, done.stderr
    site.train("output.dir=bad", *keys, "output.save_every_samples=24")
    site.assert_equal("bad", "whole")


def formats(site):
    """The same documents in every layout are the same run."""
    work, documents = site.work, site.documents
    order = documents[50:] + documents[:50]  # the order of the names: lang=de, lang=en
    site.train("output.dir=one")
    os.makedirs(f"{work}/saved")
    write_arrow(f"{work}/saved/data-00000-of-00002.arrow", order[:70], stream=True, rows=16)
    write_arrow(f"{work}/saved/data-00001-of-00002.arrow", order[70:], stream=True, rows=1000)
    json.dump({"_data_files": [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)], "_fingerprint": "0"}, open(f"{work}/saved/state.json", "w"))
    site.train("output.dir=saved_run", "data.train=saved")
    site.assert_equal("saved_run", "one", bound=0)
    write_arrow(f"{work}/lists.arrow", order, rows=7)
    site.train("output.dir=lists_run", "data.train=lists.arrow")
    site.assert_equal("lists_run", "one", bound=0)
    # Ids of any integer type, in Parquet and in Arrow; a null is an empty document.
    for name, kind in (("wide", pa.uint64()), ("narrow", pa.int16())):
        lists = pa.array(order, pa.large_list(kind))
        pyarrow.parquet.write_table(pa.table({"input_ids": lists}), f"{work}/{name}.parquet", row_group_size=7)
        with pa.ipc.new_file(f"{work}/{name}.arrow", pa.schema([("input_ids", lists.type)])) as writer:
            writer.write_table(pa.table({"input_ids": lists}))
        for data in (f"{name}.parquet", f"{name}.arrow"):
            done = site.train(f"output.dir=of_{data}", f"data.train={data}", "train.max_steps=3")
            assert site.losses(f"of_{data}") == site.losses("one")[:3], data
    assert "120 documents of Arrow" in done.stdout + done.stderr, done.stderr
    for data, place in (("huge.parquet", "huge.parquet: row 9"), ("huge.arrow", "huge.arrow: batch 0, row 9")):
        lists = pa.array(order[:9] + [[5, 2**64 - 1]] + order[10:30], pa.list_(pa.uint64()))
        if data.endswith("parquet"):
            pyarrow.parquet.write_table(pa.table({"tokens": lists}), f"{work}/{data}", row_group_size=4)
        else:
            with pa.ipc.new_file(f"{work}/{data}", pa.schema([("tokens", lists.type)])) as writer:
                writer.write_table(pa.table({"tokens": lists}))
        line = last_line(site.train("output.dir=huge", f"data.train={data}", expect=3).stderr)
        assert place in line and f"token 1 is {2**64 - 1}, more than any id can be" in line, line
    pyarrow.parquet.write_table(pa.table({"text": [1.5, 2.5]}), f"{work}/floats.parquet")
    line = last_line(site.train("output.dir=huge", "data.train=floats.parquet", expect=3).stderr)
    assert "floats.parquet: column 'text' is double, expected string or a list of integers" in line, line
    # In file order, with documents that are null: six, of which each shard has one.
    few = pa.array(order[60:62] + [None] + order[63:65] + [None], pa.list_(pa.int32()))
    pyarrow.parquet.write_table(pa.table({"tokens": few}), f"{work}/few.parquet", row_group_size=4)
    site.train("output.dir=few", "data.train=few.parquet", "data.shuffle=false", "data.bos_token=null", "train.max_steps=4")
    try:
        import datasets
    except ImportError as error:
        print(f"{error}: save_to_disk itself is not run, only its layout as written above")
    else:
        datasets.Dataset.from_dict({"input_ids": order}).save_to_disk(f"{work}/by_datasets", num_shards=3)
        site.train("output.dir=datasets_run", "data.train=by_datasets")
        site.assert_equal("datasets_run", "one", bound=0)
    # Documents for validation: the packed rows of one pass, the same loss on any number of ranks.
    losses = []
    for number in (0, 2):
        site.train(f"output.dir=valid{number}", "data.valid=lists.arrow", "train.max_steps=2", ranks=number)
        losses.append(site.metrics(f"valid{number}", "eval")[-1]["loss"])
    assert abs(losses[0] - losses[1]) < 1e-6 * losses[0], losses


def text(site):
    work = site.work
    words = "the quick brown fox jumps over a lazy dog while seven wizards quietly mix boxes of glass".split()
    rng = np.random.default_rng(6)
    texts = [" ".join(rng.choice(words, size=rng.integers(2, 60))) for _ in range(60)]
    open(f"{work}/text.txt", "w").write("\n".join(texts))
    site.tool("tokenizer", "train", "--input", f"{work}/text.txt", "--vocab-size", "320", "--output", f"{work}/base/tokenizer.model")
    encoded = subprocess.run([f"{site.args.bin}/trireme", "tokenizer", "encode", "--model", f"{work}/base/tokenizer.model", "-"], input="\n".join(texts) + "\n",
                             check=True, capture_output=True, text=True).stdout
    ids = [[int(token) for token in line.replace(",", " ").split()] for line in encoded.splitlines()]
    assert len(ids) == len(texts), encoded[:300]
    write_arrow(f"{work}/ids.arrow", ids, rows=10)
    site.train("output.dir=ids_run", "data.train=ids.arrow", "train.max_steps=4")
    os.makedirs(f"{work}/lines")
    for name, part in (("a.jsonl", texts[:21]), ("b.jsonl", texts[21:])):
        with open(f"{work}/lines/{name}", "w") as out:
            for i, line in enumerate(part):
                out.write(json.dumps({"id": i, "text": line}) + "\n" * (1 + i % 2))
    pyarrow.parquet.write_table(pa.table({"text": texts}), f"{work}/texts.parquet", row_group_size=7)
    with pa.ipc.new_stream(f"{work}/texts.arrow", pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": texts}))
    for data in ("lines", "texts.parquet", "texts.arrow"):
        run = f"of_{data}"
        site.train(f"output.dir={run}", f"data.train={data}", "train.max_steps=4", ranks=2 if data == "lines" else 0)
        site.assert_equal(run, "ids_run", bound=2e-6)
    # Documents that no token divides.
    for keys, said in ((["data.bos_token=null", "data.eos_token=null"], True), (["data.bos_token=null", "data.eos_token=2"], False)):
        done = site.train("output.dir=x0", "data.train=lines", *keys, extra=["--dry-run"])
        assert ("warning: no token stands between documents" in done.stdout + done.stderr) == said, done.stderr
    # A field of another name, a line without it, a text that is not UTF-8, no tokenizer.
    with open(f"{work}/body.jsonl", "w") as out:
        out.writelines(json.dumps({"body": line}) + "\n" for line in texts)
    site.train("output.dir=body_run", "data.train=body.jsonl", "data.column=body", "train.max_steps=4")
    site.assert_equal("body_run", "ids_run")
    done = site.train("output.dir=x1", "data.train=body.jsonl", expect=3)
    assert "body.jsonl:" in last_line(done.stderr) and "no field 'text'" in last_line(done.stderr), done.stderr
    open(f"{work}/latin.jsonl", "wb").write(b'{"text": "gr\xfc\xdfe"}\n')
    done = site.train("output.dir=x2", "data.train=latin.jsonl", expect=3)
    assert "latin.jsonl:1" in last_line(done.stderr) and "not UTF-8" in last_line(done.stderr), done.stderr
    os.remove(f"{work}/base/tokenizer.model")
    for extra in ([], ["--dry-run"]):
        done = site.train("output.dir=x3", "data.train=lines", expect=3, extra=extra)
        assert "tokenizer.model" in last_line(done.stderr) and "trireme data pack" in last_line(done.stderr), done.stderr


def mixing(site):
    work = site.work
    write_arrow(f"{work}/code.arrow", [[300 + i % 90] * 40 for i in range(30)], rows=8)
    yaml = open(f"{work}/run.yaml").read()
    parts = "[{path: corpus, weight: 3, name: web}, {path: code.arrow, weight: 1, name: code}]"
    open(f"{work}/run.yaml", "w").write(yaml.replace("train: corpus", f"train: {parts}"))
    done = site.train("output.dir=mixed")
    assert "web (120 documents of Arrow, 75 %), code (30 documents of Arrow, 25 %)" in done.stdout + done.stderr, done.stderr
    printed = site.train("output.dir=mixed", extra=["--print-config"]).stdout
    assert "weights: [3, 1]" in printed and 'names: ["web", "code"]' in printed, printed
    site.train("output.dir=mixed2", ranks=2)
    site.assert_equal("mixed2", "mixed")
    # The three keys say the same.
    open(f"{work}/run.yaml", "w").write(yaml.replace("train: corpus", "train: [corpus, code.arrow], weights: [6, 2], names: [web, code]"))
    site.train("output.dir=keys")
    site.assert_equal("keys", "mixed", bound=0)
    open(f"{work}/run.yaml", "w").write(yaml)
    site.train("output.dir=plain")
    assert site.losses("plain") != site.losses("mixed")


def exit_codes(site):
    """Every problem ends a dry run as it ends a run."""
    work = site.work
    np.save(f"{work}/rows.npy", np.zeros((24, SEQ), np.int32))
    whole = open(f"{work}/corpus/lang=en/one.arrow", "rb").read()
    os.makedirs(f"{work}/cut")
    open(f"{work}/cut/one.arrow", "wb").write(whole[:-20])
    middle = bytearray(whole)
    shutil.copytree(f"{work}/corpus", f"{work}/large")
    write_arrow(f"{work}/large/lang=en/one.arrow", site.documents[:20] + [[5, VOCAB, 7]])
    os.makedirs(f"{work}/nothing")
    os.makedirs(f"{work}/damaged")
    for at in range(200, len(middle) - 8000, 911):
        middle[at:at + 8] = b"\xff" * 8
    open(f"{work}/damaged/one.arrow", "wb").write(middle)
    for name, column in (("masked", "completion_mask"), ("copied", "labels")):
        pa.parquet.write_table(pa.table({"input_ids": site.documents, column: site.documents}), f"{work}/{name}.parquet")
        pa.ipc.new_file(f"{work}/{name}.arrow", pa.schema([(name, pa.list_(pa.int32())) for name in ("input_ids", column)])).close()
    labels = pa.table({"input_ids": pa.array(site.documents, pa.list_(pa.int32())), "labels": pa.array([[-100] * len(d) for d in site.documents], pa.list_(pa.int32()))})
    pa.parquet.write_table(labels, f"{work}/labelled.parquet")
    with pa.ipc.new_file(f"{work}/labelled.arrow", labels.schema) as out:
        out.write_table(labels)
    pa.parquet.write_table(pa.table({"input_ids": site.documents, "labels": range(len(site.documents))}), f"{work}/classes.parquet")
    cases = [
        (["data.train=labelled.parquet"], 3, ["labelled.parquet: 'labels' says which tokens have a loss"]),
        (["data.train=labelled.arrow"], 3, ["labelled.arrow: 'labels' says which tokens have a loss"]),
        (["data.train=masked.parquet"], 3, ["masked.parquet: 'completion_mask' says which tokens have a loss", "trireme data chat"]),
        (["data.train=masked.arrow"], 3, ["masked.arrow: 'completion_mask' says which tokens have a loss"]),
        (["data.train=cut"], 3, ["cut/one.arrow", "footer"]),
        (["data.train=damaged"], 3, ["damaged/one.arrow", "byte"]),
        (["data.train=large"], 3, ["large/lang=en/one.arrow: batch 20", "token 1", f"id {VOCAB} is outside"]),
        (["data.train=nothing"], 3, ["no *.arrow"]),
        (["data.column=ids"], 3, ["no column 'ids'"]),
        (["data.min_length=1000"], 3, ["data.min_length 1000"]),
        (["data.train=[corpus, rows.npy]"], 2, ["documents", "rows.npy"]),
        (["data.train=rows.npy"], 2, ["data.bos_token, data.eos_token: for documents"]),
        (["data.eos_token=400"], 2, ["data.eos_token 400 is outside the model's vocabulary of 400"]),
        (["data.weights=[1, 2]"], 2, ["data.weights has 2 entries for the 1 of data.train"]),
        (["data.weights=[-1]"], 2, ["data.weights must be a number > 0"]),
        (["data.eos_tokn=2"], 2, ["Did you mean 'eos_token'"]),
        (["data.strip_tokens=[1, x]"], 2, ["data.strip_tokens must be"]),
        (["data.logical_shards=7"], 2, ["data.logical_shards 7 does not divide over 2 ranks"]),
    ]
    for overrides, code, says in cases:
        ranks = 2 if "data.logical_shards=7" in overrides else 0
        lines = []
        for extra in ([], ["--dry-run"]):
            done = site.train("output.dir=bad", *overrides, ranks=ranks, expect=code, extra=extra)
            for word in says:
                assert word in done.stderr, (overrides, word, done.stderr)
    done = site.train("output.dir=bad", extra=["--dry-run", "--ranks", "7"], expect=2)
    done = site.train("output.dir=bad", "batch.global_batch_size=14", extra=["--dry-run", "--ranks", "7"], expect=2)
    assert "data.logical_shards 12 does not divide over 7 ranks: run 6 or 12" in done.stderr, done.stderr
    for overrides, said in ((("data.train=masked.parquet", "data.column=input_ids"), False), (("data.train=copied.parquet",), True), (("data.train=classes.parquet",), False)):
        done = site.train("output.dir=bad", *overrides, extra=["--dry-run"])
        assert ("copied.parquet: 'labels' is not read" in done.stderr) == said, done.stderr
    # A run of 144 rows in which shards end inside their first document says so; one of 12 shards does not.
    for shards, said in ((960, True), (12, False)):
        done = site.train("output.dir=bad", "data.seq_length=8", f"data.logical_shards={shards}", extra=["--dry-run"])
        assert ("the ends of most documents are not read" in done.stderr) == said, done.stderr
    # Other documents than a checkpoint's: refused, and with leave read from their beginning.
    site.train("output.dir=run", "train.max_steps=2", "output.save_every_samples=12")
    done = site.train("output.dir=run", "data.train=large/lang=de", "output.save_every_samples=12", expect=3)
    assert "training data changed" in last_line(done.stderr), done.stderr
    site.train("output.dir=run", "data.train=large/lang=de", "train.max_steps=4", "output.save_every_samples=12", extra=["--allow-changed-data"])


if __name__ == "__main__":
    main({"ranks": ranks, "rescale": rescale, "ramp": ramp, "nonfinite": nonfinite, "formats": formats, "text": text, "mixing": mixing, "exit-codes": exit_codes}, Site)
