#!/usr/bin/env python3
"""train_llama on pairs of answers as a user starts it: what is refused, ranks and micro-batches, stop and resume, the reference's file, what a run
leaves. Exit code 77 = skipped."""
import json
import os
import shutil

from run_site import RunSite, last_line, main, needed, np

with needed():
    import h5py

SEQ, VOCAB = 48, 120
JUDGED = ["train.objective=kto", "data.train=judged.h5", "data.valid=judged-valid.h5"]
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]


def pair_rows(count, rng):
    """Rows of one to three pairs, whose answers share a prompt; most end with padding."""
    for row in range(count):
        ids, mask, starts = [], [], []
        for _ in range(1 + row % 3):
            prompt = rng.integers(0, VOCAB, rng.integers(1, 4)).tolist()
            for target in (1, 2):
                answer = rng.integers(0, VOCAB, rng.integers(1, 5)).tolist()
                starts.append(len(ids))
                ids += prompt + answer
                mask += [0] * len(prompt) + [target] * len(answer)
        starts.append(len(ids))
        yield ids + [0] * (SEQ - len(ids)), mask + [0] * (SEQ - len(ids)), starts


def judged_rows(count, rng):
    """The same rows as judged answers: every second one is desirable."""
    for row, (ids, mask, starts) in enumerate(pair_rows(count, rng)):
        mask = np.array(mask)
        for s, (a, b) in enumerate(zip(starts, starts[1:])):
            mask[a:b][mask[a:b] > 0] = 3 if s % 2 else 1 + (row + s // 2) % 2
        yield ids, mask.tolist(), starts


def write_rows(path, rows):
    with h5py.File(path, "w") as file:
        rows = list(rows)
        file["input_ids"] = np.array([ids for ids, _, _ in rows], np.int32)
        file["loss_mask"] = np.array([mask for _, mask, _ in rows], np.uint8)
        starts = file.create_dataset("seq_start_id", (len(rows),), h5py.vlen_dtype(np.int32))
        for i, (_, _, one) in enumerate(rows):
            starts[i] = np.array(one, np.int32)


class Site(RunSite):
    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        self.make_llama(2, VOCAB, 128)
        rng = np.random.default_rng(5)
        write_rows(f"{work}/train.h5", pair_rows(24, rng))
        write_rows(f"{work}/valid.h5", pair_rows(7, rng))
        write_rows(f"{work}/judged.h5", judged_rows(24, rng))
        write_rows(f"{work}/judged-valid.h5", judged_rows(7, rng))
        np.save(f"{work}/plain.npy", rng.integers(0, VOCAB, size=(24, SEQ)).astype(np.int32))
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
lora: {{r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, k_proj, v_proj, o_proj]}}
data: {{train: train.h5, valid: valid.h5, seq_length: {SEQ}}}
batch: {{global_batch_size: 8, micro_batch_size: 2}}
optimizer: {{lr: 3.0e-3}}
train: {{max_steps: 6, objective: dpo}}
output: {{dir: run}}
""")


def exit_codes(site):
    def refused(says, *settings, code=2, **more):
        text = site.train(*settings, "output.dir=refused", expect=code, **more).stderr
        assert all(one in text for one in (says if isinstance(says, list) else [says])), (says, text)

    refused("has pairs of a chosen and a rejected answer: set train.objective to dpo or orpo", "train.objective=sft")
    refused("has no pairs of a chosen and a rejected answer: make such rows with `trireme data preference`", "data.train=plain.npy")
    refused("has no pairs", "data.valid=plain.npy")
    refused("train.objective orpo is for rows of pairs, but data.train, mock, has", "data.train=mock", "data.valid=[]", "train.objective=orpo")
    refused("preference is a section for train.objective dpo, orpo and kto", "train.objective=sft", "preference.beta=0.2")
    refused(["train.loss is for train.objective sft; the loss of dpo is a mean over pairs", "logging.mlperf is for train.objective sft",
             "preference.label_smoothing is for loss_type sigmoid and robust, not hinge", "needs a 'lora' section"],
            "train.loss=token_mean", "logging.mlperf=true", "preference.loss_type=hinge", "preference.label_smoothing=0.1", "lora=null",
            "preference.precompute_ref_log_probs=false")
    refused(["preference.rpo_alpha is for train.objective dpo", "preference.loss_type is for train.objective dpo"], "train.objective=orpo",
            "preference.rpo_alpha=0.1", "preference.loss_type=ipo")
    refused(["preference.label_smoothing", "preference.beta", "Did you mean 'beta'"], "preference.label_smoothing=0.5", "preference.beta=0",
            "preference.dpo_beta=0.1")
    refused("has no judged answers: make such rows with `trireme data preference --unpaired`", "train.objective=kto")
    refused(["preference.loss_type sigmoid is not one of train.objective kto", "preference.rpo_alpha is for train.objective dpo"], "train.objective=kto",
            "preference.loss_type=sigmoid", "preference.rpo_alpha=0.1")
    refused(["preference.loss_type kto is not one of train.objective dpo", "preference.desirable_weight is for train.objective kto"],
            "preference.loss_type=kto", "preference.desirable_weight=2")
    refused("judged.h5, has judged answers: set train.objective to kto", "data.train=judged.h5", "train.objective=sft")
    refused("has no pairs of a chosen and a rejected answer", "data.train=judged.h5")
    refused("preference", "preference.beta=0.1", "lora=null", program="train_bert")
    with open(f"{site.work}/pairs.jsonl", "w") as out:
        out.write(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    refused("holds pairs of answers ('chosen'). Make rows of them: trireme data preference", "data.train=pairs.jsonl", code=3)
    rows = list(pair_rows(3, np.random.default_rng(1)))
    rows[2] = (rows[2][0], [value if value != 2 else 0 for value in rows[2][1]], rows[2][2])
    write_rows(f"{site.work}/bad.h5", rows)
    refused(["bad.h5: row 2, position", "sequence 1 has no target"], "data.train=bad.h5", "batch.global_batch_size=2", code=3)
    site.tool("data", "verify", "train.h5", "--seq-length", SEQ, "--vocab-size", VOCAB)
    assert "sequence 1 has no target" in site.tool("data", "verify", "bad.h5", "--seq-length", SEQ, "--vocab-size", VOCAB, expect=3).stdout
    text = site.train("output.dir=refused", extra=["--dry-run"]).stdout
    assert "24 rows) of pairs" in text, text


def close(a, b, tolerance=2e-5, metrics=METRICS):
    for one, two in zip(a, b, strict=True):
        for key in ["loss", "grad_norm", *metrics]:
            assert abs(one[key] - two[key]) <= tolerance * max(1.0, abs(two[key])), (one["step"], key, one[key], two[key])


def ranks(site):
    """One rank and several, one row a pass and several: the mean over the pairs of the global batch."""
    for name, settings in (("dpo", ["preference.rpo_alpha=0.3"]), ("full", ["lora=null", "parallel.policy=full"]), ("orpo", ["train.objective=orpo"]),
                           ("kto", [*JUDGED, "preference.undesirable_weight=0.5"])):
        reference = None
        for number, micro in ((1, 8), (1, 1), (2, 2), (4, 2)):
            policy = [setting for setting in settings if number > 1 or not setting.startswith("parallel")]
            site.train(*policy, f"output.dir={name}-{number}-{micro}", f"batch.micro_batch_size={micro}", ranks=number if number > 1 else 0)
            steps, evals = site.metrics(f"{name}-{number}-{micro}"), site.metrics(f"{name}-{number}-{micro}", "eval")
            assert len(steps) == 6 and len(evals) == 1
            if reference:
                close(steps, reference[0], metrics=[key for key in METRICS if key in steps[0]])
                assert abs(evals[0]["loss"] - reference[1]["loss"]) < 2e-5 and abs(evals[0]["rewards/margins"] - reference[1]["rewards/margins"]) < 2e-5
            reference = reference or (steps, evals[0])
        first = reference[0][0]
        if name != "orpo":  # the reference is the model
            assert abs(first["rewards/margins"]) < 1e-9 and first.get("rewards/accuracies", 0) == 0, first
    # The same rows in the other order are other steps, and dropout is off unless it is asked for.
    base = site.metrics("dpo-1-1")
    site.train("preference.rpo_alpha=0.3", "lora.dropout=0", "output.dir=still", "batch.micro_batch_size=1")
    assert [m["loss"] for m in site.metrics("still")] == [m["loss"] for m in base]
    site.train("preference.rpo_alpha=0.3", "preference.disable_dropout=false", "output.dir=drops", "batch.micro_batch_size=1")
    assert site.metrics("drops")[1]["loss"] != base[1]["loss"]


def stop_at(site, step, *settings):
    site.train(*settings, expect=75, TRIREME_FAULT=f"sigterm@step:step{step}")


def flip(whole, damaged):
    """The last value of a safetensors file with another exponent."""
    content = bytearray(open(whole, "rb").read())
    content[-1] ^= 1
    open(damaged, "wb").write(content)


def resume(site):
    for name, settings in (("lora", []), ("full", ["lora=null"]), ("precomputed", ["preference.precompute_ref_log_probs=true"])):
        long = [*settings, "train.max_steps=30"]
        site.train(*long, f"output.dir={name}-whole")
        stop_at(site, 4, *long, f"output.dir={name}-parts")
        if name == "full":  # the base need not be there any more, the reference's file must
            file = f"{site.work}/{name}-parts/reference_log_probs.safetensors"
            os.rename(file, file + ".away")
            line = last_line(site.train(*long, f"output.dir={name}-parts", expect=4).stderr)
            assert "reference_log_probs.safetensors is not there" in line and "put it back" in line, line
            content = open(file + ".away", "rb").read()
            open(file, "wb").write(content[:-9])
            assert "reference_log_probs" in last_line(site.train(*long, f"output.dir={name}-parts", expect=4).stderr)
            flip(file + ".away", file)
            line = last_line(site.train(*long, f"output.dir={name}-parts", expect=4).stderr)
            assert f"{file}: is damaged: its values have hash" in line and "put a sound copy back" in line, line
            open(file, "wb").write(content.replace(b'"xxh3"', b'"none"'))  # as files of earlier versions
        site.train(*long, f"output.dir={name}-parts")
        whole, parts = site.metrics(f"{name}-whole"), site.metrics(f"{name}-parts")
        assert [m["step"] for m in parts] == list(range(1, 31))
        for a, b in zip(whole, parts, strict=True):
            assert all(a[key] == b[key] for key in ["loss", "grad_norm", *METRICS]), (name, a, b)
    for a, b in zip(site.metrics("lora-whole"), site.metrics("precomputed-whole"), strict=True):
        assert abs(a["loss"] - b["loss"]) < 1e-6 and abs(a["rewards/margins"] - b["rewards/margins"]) < 1e-6, (a, b)


def reference(site):
    """The file of a start that ended before its first step is taken where rows and base are the same."""
    killed = {"TRIREME_FAULT": "sigkill@step:step1"}
    computed = "log-probabilities of the reference computed"
    site.train("lora=null", expect=-9, **killed)
    assert os.path.exists(f"{site.work}/run/reference_log_probs.safetensors")
    done = site.train("lora=null", expect=-9, **killed)
    assert computed not in done.stdout + done.stderr
    file = f"{site.work}/run/reference_log_probs.safetensors"
    content = open(file, "rb").read()
    flip(file, file)
    done = site.train("lora=null", expect=-9, **killed)
    assert "is damaged" in done.stderr and "computed again" in done.stderr and open(file, "rb").read() == content, done.stderr
    rng = np.random.default_rng(6)
    write_rows(f"{site.work}/valid.h5", pair_rows(5, rng))
    done = site.train("lora=null")
    assert computed in done.stdout + done.stderr, done.stdout
    # Shares and more evaluated rows reach rows that the first pass over the data does not.
    write_rows(f"{site.work}/small.h5", pair_rows(3, rng))
    shares = ("lora=null", "output.dir=shares", "data.train=[train.h5, small.h5]", "data.weights=[1, 3]")
    site.train(*shares, "train.max_steps=14", "eval.samples=2", "output.save_every_samples=8")
    site.train(*shares, "train.max_steps=16", "eval.samples=null", "output.save_every_samples=8")
    # A signal while it is computed: nothing is lost, and the same command begins again.
    site.train("lora=null", "output.dir=stopped", expect=75, TRIREME_FAULT="sigterm@reference:step3")
    assert not os.path.exists(f"{site.work}/stopped/reference_log_probs.safetensors")
    site.train("lora=null", "output.dir=stopped")
    assert [m["loss"] for m in site.metrics("stopped")] == [m["loss"] for m in site.metrics("run")]
    # Slow storage is no hang.
    done = site.train("lora=null", "output.dir=slow", ranks=2, TRIREME_FAULT="sleep@reference:rank0:step1:9s", TRIREME_HANG_SECONDS="2")
    assert "section reference" in done.stderr and "it is given more time" in done.stderr, done.stderr
    # New rows in place of the old ones, after the first steps.
    shutil.copy(f"{site.work}/train.h5", f"{site.work}/old.h5")
    stop_at(site, 2, "lora=null", "output.dir=changed", "train.max_steps=30")
    write_rows(f"{site.work}/train.h5", pair_rows(24, rng))
    line = last_line(site.train("lora=null", "output.dir=changed", "train.max_steps=30", extra=["--allow-changed-data"], expect=3).stderr)
    assert "has no log-probabilities of a row" in line, line
    shutil.copy(f"{site.work}/old.h5", f"{site.work}/train.h5")
    site.train("lora=null", "output.dir=changed", "train.max_steps=30")


def trained_rows(site):
    """Rows of the vocabulary that are trained beside the adapters keep their first values in the reference, sharded or not."""
    path = f"{site.work}/base/config.json"
    config = json.load(open(path))
    json.dump({**config, "trireme_added_rows": {"first": VOCAB - 60}}, open(path, "w"))
    base = None
    for name, number, settings in (("step", 0, []), ("file", 0, ["preference.precompute_ref_log_probs=true"]), ("sharded", 2, ["parallel.shard_size=2"])):
        done = site.train(*settings, f"output.dir={name}", "optimizer.weight_decay=0", ranks=number)
        assert f"rows {VOCAB - 60} to {VOCAB - 1} were added to the base and are trained" in done.stdout + done.stderr, done.stderr
        steps = site.metrics(name)
        base = base or steps
        assert abs(steps[0]["rewards/margins"]) < 1e-9 and abs(steps[-1]["rewards/margins"]) > 1e-3
        close(steps, base)
    json.dump(config, open(path, "w"))
    site.train("output.dir=frozen", "optimizer.weight_decay=0")
    assert abs(site.metrics("frozen")[-1]["loss"] - base[-1]["loss"]) > 1e-4, "the rows are not trained"


def adapters(site):
    """The reference of adapters of every kind: computed in every step it is that of the file, and it stays the base that the run started from."""
    kinds = ("lora.use_dora=true", "lora.trainable_token_indices=[3, 50, 7]", "lora.rank_pattern={q_proj: 2}", "lora.use_rslora=true",
             "lora.target_modules=all-linear", "output.save_every_samples=8", "schedule.name=constant")
    for name, more, policy in (("dora", (), ()), ("saved", ("lora.modules_to_save=[lm_head]",), ("parallel.policy=full",))):
        site.train(*kinds, *more, f"output.dir={name}")
        steps = site.metrics(name)
        assert abs(steps[0]["rewards/margins"]) < 1e-9 and abs(steps[-1]["rewards/margins"]) > 1e-3, (steps[0], steps[-1])
        assert os.path.exists(f"{site.work}/{name}/reference_log_probs.safetensors") == (name == "saved")
        for other, number, settings in (("file", 0, ["preference.precompute_ref_log_probs=true"]), ("sharded", 2, ["parallel.shard_size=2", *policy]),
                                        ("tiles", 0, ["batch.micro_batch_size=8", "parallel.recompute=full", "parallel.tile_tokens=128"])):
            site.train(*kinds, *more, *settings, f"output.dir={name}-{other}", ranks=number)
            close(site.metrics(f"{name}-{other}"), steps)
        site.train(*kinds, *more, f"output.dir={name}-parts", "train.max_steps=3")
        site.train(*kinds, *more, f"output.dir={name}-parts")
        for a, b in zip(site.metrics(f"{name}-parts"), steps, strict=True):
            assert all(a[key] == b[key] for key in ["loss", "grad_norm", *METRICS]), (name, a, b)
        # Another run starts from it, and takes it for the reference.
        site.train(*kinds, *more, f"lora.adapter={name}/adapter", f"output.dir={name}-on", "train.max_steps=2")
        first = site.metrics(f"{name}-on")[0]
        assert abs(first["rewards/margins"]) < 1e-6 and abs(first["logps/chosen"] - steps[0]["logps/chosen"]) > 1e-4, first
    done = site.train("lora.modules_to_save=[lm_head]", "preference.precompute_ref_log_probs=false", "output.dir=refused", expect=2)
    assert "needs a base that stays as it is, and lora.modules_to_save trains a part of it" in done.stderr, done.stderr


def results(site):
    done = site.train("eval.every_samples=16", "logging.tensorboard=true", "preference.rpo_alpha=0.1", "train.max_steps=8")
    assert "rewards/accuracies" in done.stdout and "rewards/margins" in done.stdout, done.stdout
    steps, evals = site.metrics("run"), site.metrics("run", "eval")
    assert len(evals) == 4
    for line in steps + evals:
        assert all(np.isfinite(line[key]) for key in [*METRICS, "nll_loss"]), line
        assert abs(line["rewards/margins"] - (line["rewards/chosen"] - line["rewards/rejected"])) < 1e-9
    assert steps[-1]["rewards/margins"] > 0.005 and steps[-1]["loss"] < steps[0]["loss"], (steps[0], steps[-1])
    assert evals[-1]["loss"] == json.load(open(f"{site.work}/run/summary.json"))["eval_last"]["loss"]
    events = b"".join(open(f"{site.work}/run/tensorboard/{name}", "rb").read() for name in os.listdir(f"{site.work}/run/tensorboard"))
    for tag in (b"train/rewards/chosen", b"train/logps/rejected", b"train/nll_loss", b"eval/rewards/accuracies", b"eval/rewards/margins"):
        assert tag in events, tag
    site.tool("report", "run")
    page = open(f"{site.work}/report.html").read()
    assert "Reward accuracy" in page and "Reward margin" in page and "Evaluation reward margin" in page
    # An adapter to start from is the reference: the first margins are zero again.
    site.train("lora.adapter=run/adapter", "output.dir=on", "eval.target_loss=0.1")
    assert site.metrics("on")[0]["rewards/margins"] == 0 and abs(site.metrics("on")[0]["logps/chosen"] - steps[0]["logps/chosen"]) > 1e-4
    site.train("train.objective=orpo", "preference.beta=0.3", "output.dir=orpo", "train.max_steps=8")
    steps = site.metrics("orpo")
    assert all(key in steps[0] for key in [*METRICS, "nll_loss", "log_odds_ratio", "log_odds_chosen"]) and steps[-1]["loss"] < steps[0]["loss"]
    for line in steps:
        assert abs(line["loss"] - (line["nll_loss"] - 0.3 * line["log_odds_ratio"])) < 1e-5, line
    # train_gpt has another default of train.loss, which the run's config.yaml names.
    for steps in (2, 4):
        site.train("lora=null", f"train.max_steps={steps}", "output.dir=gpt", "output.save_every_samples=8", program="train_gpt")
    assert [line["step"] for line in site.metrics("gpt")] == [1, 2, 3, 4], site.metrics("gpt")
    site.train(*JUDGED, "lora=null", "optimizer.lr=1e-3", "output.dir=kto", "train.max_steps=12", "preference.beta=0.5")
    steps = site.metrics("kto")
    assert steps[0]["loss"] == 0.5 and steps[-1]["loss"] < 0.49 and steps[-1]["rewards/margins"] > 0.01, (steps[0], steps[-1])
    for line in steps + site.metrics("kto", "eval"):
        assert abs(line["rewards/margins"] - (line["rewards/chosen"] - line["rewards/rejected"])) < 1e-9 and line["kl"] >= 0, line


main({"exit-codes": exit_codes, "ranks": ranks, "resume": resume, "reference": reference, "results": results, "trained-rows": trained_rows,
      "adapters": adapters}, Site)
