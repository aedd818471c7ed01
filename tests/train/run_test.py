#!/usr/bin/env python3
"""train_llama as a user starts it. Exit code 77 = skipped."""
import glob
import json
import os
import resource
import shutil
import subprocess
import sys

from run_site import RunSite, last_line, main, np

SEQ, VOCAB = 48, 120


class Site(RunSite):
    """A temporary directory with a small model, data and a configuration."""

    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        self.make_llama(2, VOCAB, 128)
        rng = np.random.default_rng(5)
        np.save(f"{work}/train.npy", rng.integers(0, VOCAB, size=(40, SEQ)).astype(np.int32))
        np.save(f"{work}/valid.npy", rng.integers(0, VOCAB, size=(7, SEQ)).astype(np.int32))
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
lora: {{r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, k_proj, v_proj, o_proj]}}
data: {{train: train.npy, valid: valid.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 8, micro_batch_size: 1}}
optimizer: {{lr: 1.0e-3}}
train: {{max_steps: 6}}
output: {{dir: run}}
""")


def exit_codes(site):
    work = site.work
    done = site.train("optimizer.lrr=1", "batch.global_batch_size=-1", expect=2)
    assert "optimizer.lrr" in done.stderr and "Did you mean 'lr'" in done.stderr.replace("optimizer.lr'", "lr'"), done.stderr
    assert "global_batch_size" in done.stderr, "all problems come in one go"
    site.train("data.train=nowhere.npy", "output.dir=a", expect=3)
    data = np.load(f"{work}/train.npy")
    data[13, 7] = VOCAB
    np.save(f"{work}/bad.npy", data)
    done = site.train("data.train=bad.npy", "output.dir=b", "data.shuffle=false", expect=3)
    line = last_line(done.stderr)
    assert "bad.npy" in line and "13" in line and str(VOCAB) in line, line
    config = json.load(open(f"{work}/base/config.json"))
    config["attention_bias"] = True
    os.makedirs(f"{work}/biased")
    json.dump(config, open(f"{work}/biased/config.json", "w"))
    done = site.train("model.path=biased", "output.dir=g", expect=4)
    assert "attention_bias" in last_line(done.stderr)
    site.train("output.dir=/proc/none/run", expect=73)
    os.makedirs(f"{work}/own")
    shutil.copy(f"{work}/run.yaml", f"{work}/own/config.yaml")
    done = site.train("output.dir=own", expect=73)
    assert "holds no run of ours (found config.yaml)" in last_line(done.stderr), done.stderr
    site.train("train.max_steps=1", SLURM_JOB_ID="7")
    done = site.train("train.max_steps=2", expect=73)
    assert "finished after step 1, and no checkpoint to go on from" in last_line(done.stderr), done.stderr
    done = site.train("train.max_steps=1", expect=73)
    assert "finished after step 1 (" in last_line(done.stderr), done.stderr
    # Slurm queued the job again after its run had finished.
    metrics = open(f"{work}/run/metrics.jsonl").read()
    again = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    done = site.train("train.max_steps=1", **again)
    assert "finished after step 1 in this job (7): the job was queued again, and nothing is left to do" in done.stderr + done.stdout, done.stderr
    for other in ({"SLURM_JOB_ID": "7"}, {"SLURM_RESTART_COUNT": "1"}, {**again, "SLURM_JOB_ID": "8"}):
        done = site.train("train.max_steps=1", expect=73, **other)
        assert "finished after step 1 (" in last_line(done.stderr), done.stderr
    assert open(f"{work}/run/metrics.jsonl").read() == metrics
    done = site.train("train.max_steps=1", "optimizer.lr=1", expect=73, **again)
    assert "another run" in last_line(done.stderr) and "optimizer.lr was 0.001, is 1" in last_line(done.stderr), done.stderr
    done = site.train("batch.global_batch_size=9", "output.dir=h", ranks=2, expect=2)
    assert "nearest" in done.stderr, done.stderr
    environment = dict(os.environ, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29999")
    done = subprocess.run(site.command("output.dir=i"), capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "mpirun" in done.stderr, done.stderr
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2",
             "SLURM_STEP_NODELIST": "localhost", "CUDA_VISIBLE_DEVICES": ""}
    for device, said in (("", True), ("cpu", False)):
        done = subprocess.run(site.command("output.dir=i"), capture_output=True, text=True, env={**os.environ, **slurm, "TRIREME_DEVICE": device})
        assert done.returncode == 2 and "2 ranks on CPUs need MPI" in done.stderr and ("ask for them (sbatch --gpus-per-node=N)" in done.stderr) == said, done.stderr
    environment["RANK"] = "x"
    for arguments, code, where in ((["--version"], 0, "stdout"), (["--help"], 0, "stdout"), (["--config", f"{work}/none.yaml"], 2, "stderr")):
        done = subprocess.run([site.command()[0], *arguments], capture_output=True, text=True, env=environment)
        assert done.returncode == code and len(getattr(done, where)) > 0, done
    assert "RANK='x'" in done.stderr, done.stderr
    # A weight that is not finite, of the base, trained or frozen, and of an adapter to start from.
    for name, folder, tensor in (("base/model", "holed", "model.layers.1.mlp.up_proj.weight"),
                                 ("run/adapter/adapter_model", "holed-adapter", "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight")):
        shutil.copytree(os.path.dirname(f"{work}/{name}"), f"{work}/{folder}")
        content = bytearray(open(f"{work}/{name}.safetensors", "rb").read())
        length = int.from_bytes(content[:8], "little")
        begin = 8 + length + json.loads(content[8:8 + length])[tensor]["data_offsets"][0]
        content[begin + 44:begin + 48] = np.float32(np.nan).tobytes()
        open(f"{work}/{folder}/{os.path.basename(name)}.safetensors", "wb").write(content)
        for number, settings in ((2, ["lora=null"]), (0, ["precision.linear=fp8"])) if folder == "holed" else ((0, []),):
            place = f"model.path={folder}" if folder == "holed" else f"lora.adapter={folder}"
            line = site.train("output.dir=holed_run", place, *settings, ranks=number, expect=4).stderr
            assert f"{tensor} in {work}/{folder}/{os.path.basename(name)}.safetensors holds a NaN" in line, line
    # A failure on one rank ends both, with its code.
    np.save(f"{work}/late.npy", data[13:14].repeat(40, axis=0))
    site.train("data.train=late.npy", "output.dir=j", ranks=2, expect=3)
    # Rank 0 lists all problems before the launcher ends it.
    done = site.train("optimizer.lrr=1", "train.seeed=3", "train.max_steps=0", ranks=4, expect=2)
    assert all(key in done.stderr for key in ("optimizer.lrr", "train.seeed", "train.max_steps")), done.stderr
    # A reader of stdout that has gone ends no run; a limit of file sizes does, with a sentence.
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(site.command("output.dir=k"), stdout=writer, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and os.path.exists(f"{work}/k/adapter/adapter_model.safetensors"), done
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    done = subprocess.run(site.command("output.dir=l"), capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 73 and "File too large" in done.stderr, done


def exit_codes_all(site):
    """More of the kinds that exit-codes, bad_input and config_test have."""
    work = site.work
    site.train(extra=["--wrong-flag"], expect=2)
    site.train("train.max_time=1:2", expect=2)
    data = np.load(f"{work}/train.npy")
    np.save(f"{work}/short.npy", data[:, :-1])
    site.train("data.train=short.npy", "output.dir=c", expect=3)
    with open(f"{work}/train.npy", "rb") as whole, open(f"{work}/cut.npy", "wb") as out:
        out.write(whole.read()[:-5])
    site.train("data.train=cut.npy", "output.dir=d", expect=3)
    site.train("model.path=nowhere", "output.dir=e", expect=4)
    os.makedirs(f"{work}/pickled")
    subprocess.run(["cp", f"{work}/base/config.json", f"{work}/pickled"], check=True)
    open(f"{work}/pickled/pytorch_model.bin", "wb").write(b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00touchR.")
    done = site.train("model.path=pickled", "output.dir=f", expect=4)
    assert "pickle" in done.stderr


def stop_and_resume(site):
    site.train("train.max_steps=40", "output.dir=whole")
    site.train("train.max_steps=40", "output.dir=parts", expect=75, TRIREME_FAULT="sigterm@step:step5")
    assert len(site.metrics("parts")) in (5, 6)
    site.train("train.max_steps=40", "output.dir=parts")
    whole, parts = site.metrics("whole"), site.metrics("parts")
    assert [m["step"] for m in parts] == list(range(1, 41))
    for a, b in zip(whole, parts, strict=True):
        assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)
    with open(f"{site.work}/whole/adapter/adapter_model.safetensors", "rb") as a, open(f"{site.work}/parts/adapter/adapter_model.safetensors", "rb") as b:
        assert a.read() == b.read(), "a stopped and resumed run ends in other weights"
    # What null meant in the run, not what is given now.
    done = site.train("train.max_steps=42", "output.dir=parts", "precision.compute=bf16", expect=73)
    assert "precision.compute was fp32, is bf16" in done.stderr, done.stderr


def ranks(site):
    reference = None
    for number, shard in ((1, 1), (2, 1), (4, 2), (4, 4)):
        name = f"n{number}s{shard}"
        site.train(f"output.dir={name}", f"parallel.shard_size={shard}", ranks=number)
        losses = [m["loss"] for m in site.metrics(name)] + [m["loss"] for m in site.metrics(name, "eval")]
        if reference is None:
            reference = losses
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, reference))
        print(f"{number} ranks, shard size {shard}: worst difference {worst:.1e}")
        assert len(losses) == len(reference) and worst < 1e-6


def policies(site):
    """Every sharding policy gives the same losses; a checkpoint that was saved under one goes on under any other, and on one rank."""
    full = ("lora=null", "optimizer.lr=1e-3", "optimizer.moments=bf16", "schedule.name=constant", "batch.micro_batch_size=1", "output.save_every_samples=16")
    losses = {}
    for policy in ("full", "gradients", "optimizer", "none"):
        site.train(f"output.dir={policy}", f"parallel.policy={policy}", "parallel.shard_size=2", *full, "train.max_steps=4", ranks=2)
        losses[policy] = [line["loss"] for line in site.metrics(policy)]
    for policy, found in losses.items():
        worst = max(abs(a / b - 1) for a, b in zip(found, losses["full"]))
        print(f"{policy}: losses differ by {worst:.1e} from those of full")
        assert len(found) == 4 and worst < 1e-5, losses
    assert losses["gradients"] == losses["full"], "the same sums in the same order"
    went_on = {}
    for ranks, policy in ((0, "none"), (2, "none"), (2, "optimizer"), (2, "full")):
        run = f"after-{ranks}-{policy}"
        shutil.copytree(f"{site.work}/full", f"{site.work}/{run}")
        sharding = [f"parallel.policy={policy}", "parallel.shard_size=2"] if ranks else []
        site.train(f"output.dir={run}", *full, *sharding, "train.max_steps=6", ranks=ranks)
        went_on[run] = [line["loss"] for line in site.metrics(run)][4:]
        assert len(went_on[run]) == 2, went_on
    for run, found in went_on.items():
        worst = max(abs(a / b - 1) for a, b in zip(found, went_on["after-2-full"]))
        assert worst < 1e-5, f"{run}: {went_on}"


def adapters(site):
    """Whole modules, rows of the vocabulary and DoRA beside adapters: the same on any number of ranks and under every policy, resumed to the bit,
    and exported from a checkpoint."""
    kinds = ("lora.modules_to_save=[lm_head]", "lora.trainable_token_indices=[3, 50, 7]", "lora.use_dora=true", "lora.use_rslora=true",
             "lora.rank_pattern={q_proj: 2}", "schedule.name=constant", "output.save_every_samples=16")
    site.train("output.dir=one", *kinds)
    reference = [line["loss"] for line in site.metrics("one")] + [line["loss"] for line in site.metrics("one", "eval")]
    for name, ranks, overrides in (("full", 2, ["parallel.policy=full"]), ("optimizer", 2, ["parallel.policy=optimizer"]),
                                   ("gradients", 4, ["parallel.policy=gradients", "parallel.shard_size=2"]),
                                   ("recomputed", 2, ["parallel.recompute=full", "parallel.shard_size=2"]), ("mlp", 0, ["parallel.recompute=mlp", "parallel.offload=activations"]),
                                   ("tiles", 2, ["batch.micro_batch_size=4", "parallel.recompute=attention", "parallel.tile_tokens=128",
                                                 "parallel.offload=activations"]),
                                   ("context", 2, ["parallel.context_size=2"])):
        site.train(f"output.dir={name}", *kinds, *overrides, ranks=ranks)
        losses = [line["loss"] for line in site.metrics(name)] + [line["loss"] for line in site.metrics(name, "eval")]
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, reference))
        print(f"{name}: losses differ by {worst:.1e}")
        assert len(losses) == len(reference) and worst < 1e-6, (name, losses, reference)
    adapter = "adapter/adapter_model.safetensors"
    whole = open(f"{site.work}/one/{adapter}", "rb").read()
    site.train("output.dir=parts", *kinds, "train.max_steps=4")
    shutil.copytree(f"{site.work}/parts", f"{site.work}/wider")
    site.train("output.dir=parts", *kinds)
    assert open(f"{site.work}/parts/{adapter}", "rb").read() == whole, "a resumed run ends in other weights"
    site.train("output.dir=wider", *kinds, "parallel.policy=full", ranks=2)
    for a, b in zip(site.metrics("wider"), site.metrics("one"), strict=True):
        assert abs(a["loss"] / b["loss"] - 1) < 1e-6, (a, b)
    site.tool("checkpoint", "export", f"{site.work}/parts", "--output", f"{site.work}/exported")
    tensors = [weights(f"{site.work}/{folder}/adapter_model.safetensors") for folder in ("exported", "parts/adapter")]
    assert tensors[0] == tensors[1], "the export of a checkpoint has other weights than the run"
    # Another run starts from it; what the file has and the configuration does not ask for is not lost silently.
    site.train("output.dir=again", *kinds, f"lora.adapter={site.work}/one/adapter", "train.max_steps=1")
    done = site.train("output.dir=less", "lora.use_dora=true", "lora.use_rslora=true", "lora.rank_pattern={q_proj: 2}",
                      f"lora.adapter={site.work}/one/adapter", expect=4)
    assert "the adapter has lm_head.weight" in last_line(done.stderr), done.stderr
    # Frozen codes: DoRA measures the values that they stand for.
    for ranks in (0, 2):
        site.train(f"output.dir=fp8-{ranks}", *kinds, "precision.linear=fp8", "parallel.shard_size=world", ranks=ranks)
    for a, b, c in zip(*(site.metrics(name) for name in ("fp8-0", "fp8-2", "one")), strict=True):
        assert abs(a["loss"] / b["loss"] - 1) < 2e-6 and 0 < abs(a["loss"] / c["loss"] - 1) < 0.01, (a, b, c)


def weights(path):
    """Bytes of each tensor of a safetensors file."""
    content = open(path, "rb").read()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    return {name: content[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]]
            for name, entry in header.items() if name != "__metadata__"}


def fp8(site):
    """Frozen weights in FP8: close to plain ones, the same on any number of ranks and with any recomputation."""
    evaluate = ["eval.every_samples=24"]
    site.train("output.dir=plain", *evaluate)
    site.train("output.dir=fp8", "precision.linear=fp8", *evaluate)
    plain, quantized = ([line["loss"] for line in site.metrics(run)] for run in ("plain", "fp8"))
    assert plain != quantized, "nothing was quantized"
    for a, b in zip(plain, quantized, strict=True):
        assert abs(a - b) <= 0.01 * a, (plain, quantized)
    a, b = (site.metrics(run, "eval")[-1]["loss"] for run in ("plain", "fp8"))
    assert abs(a - b) <= 0.005 * a, (a, b)
    # Gate and up projections are kept in FP8, and formed again in the compute dtype.
    for name, ranks, bound, overrides in [("sharded", 2, 2e-6, ["parallel.shard_size=world"]), ("mlp", 0, 1e-4, ["parallel.recompute=mlp"]),
                                          ("full", 2, 2e-6, ["parallel.recompute=full", "parallel.shard_size=2"])]:
        site.train(f"output.dir={name}", "precision.linear=fp8", *evaluate, *overrides, ranks=ranks)
        for a, b in zip(quantized, (line["loss"] for line in site.metrics(name)), strict=True):
            assert abs(a - b) <= bound * a, (name, a, b)
    # A run of an earlier version goes on: its configuration has the words of that time.
    site.train("output.dir=old", "precision.linear=fp8", "output.save_every_samples=16")
    with open(f"{site.work}/old/config.yaml") as file:
        text = file.read()
    before = text.replace("  linear: fp8\n  frozen: auto\n  fp8_recipe: auto\n", "  frozen: fp8\n  encoder: compute\n")
    assert before != text, text
    with open(f"{site.work}/old/config.yaml", "w") as file:
        file.write(before)
    done = site.train("output.dir=old", "precision.linear=compute", "train.max_steps=8", expect=73)
    assert "precision.linear was fp8, is compute" in done.stderr, done.stderr
    site.train("output.dir=old", "precision.linear=fp8", "output.save_every_samples=16", "train.max_steps=8")
    assert site.metrics("old")[-1]["step"] == 8


def fp8_attention(site):
    """Forward of attention from FP8 codes: close to the compute type's, the same with any recomputation, and from a checkpoint on."""
    common = ("schedule.name=constant", "eval.every_samples=24", "output.save_every_samples=16")
    for name, overrides in (("plain", ["precision.attention=compute"]), ("fp8", []), ("again", ["parallel.recompute=full"]),
                            ("kept", ["parallel.recompute=attention"]), ("parts", ["train.max_steps=4"]), ("parts", [])):
        site.train(f"output.dir={name}", "precision.attention=fp8", *common, *overrides)
    plain, fp8, again, kept, parts = ([(line["loss"], line.get("grad_norm")) for event in ("train", "eval") for line in site.metrics(run, event)]
                                      for run in ("plain", "fp8", "again", "kept", "parts"))
    assert fp8 == again == kept and parts[:6] == fp8[:6], (fp8, again, kept, parts)
    for (a, _), (b, _) in zip(plain, fp8, strict=True):
        assert 0 < abs(a - b) <= 0.01 * a, (plain, fp8)
    done = site.train("output.dir=fp8", "precision.attention=compute", *common, "train.max_steps=8", expect=73)
    assert "precision.attention was fp8, is compute" in done.stderr, done.stderr


FULL = ("lora=null", "optimizer.lr=1e-4")


def train_recipes(site, recipes):
    """Losses in the compute type."""
    site.train("output.dir=trained", *FULL)
    compute = [line["loss"] for line in site.metrics("trained")]
    # A pass is one row, so that current scales are the same on any number of ranks; only the order of the gradients' sums differs. The scales of
    # the first step, which delayed scaling keeps, are those of a rank's first row.
    for recipe in recipes:
        on_ranks = 5e-3 if recipe == "delayed" else 1e-5
        fp8 = ("precision.linear=fp8", f"precision.fp8_recipe={recipe}", *FULL)
        for name, ranks, overrides in ((recipe, 0, []), (f"{recipe}-again", 0, ["parallel.recompute=full"]), (f"{recipe}-cut", 2, ["parallel.shard_size=2"])):
            done = site.train(f"output.dir={name}", *fp8, *overrides, ranks=ranks)
            # A rank has eight passes a step or four, and the codes are whole on it.
            assert ("transposed FP8 codes" in done.stderr) == (recipe != "delayed"), done.stderr
        one, again, two = ([line["loss"] for line in site.metrics(run)] for run in (recipe, f"{recipe}-again", f"{recipe}-cut"))
        assert one == again, "what backward forms again differs"
        worst = [max(abs(a / b - 1) for a, b in zip(losses, one, strict=True)) for losses in (compute, two)]
        print(f"all trained, {recipe}: losses differ by {worst[0]:.1e} from the compute type's, by {worst[1]:.1e} on two ranks")
        assert 0 < worst[0] < 1e-2 and worst[1] < on_ranks, (compute, one, two)
        # Stopped after step 4 and resumed: the same losses to the bit.
        site.train(f"output.dir={recipe}-parts", *fp8, "schedule.name=constant", "output.save_every_samples=16", "train.max_steps=4")
        site.train(f"output.dir={recipe}-parts", *fp8, "schedule.name=constant", "output.save_every_samples=16")
        site.train(f"output.dir={recipe}-whole", *fp8, "schedule.name=constant")
        parts, whole = ([(line["loss"], line["grad_norm"]) for line in site.metrics(f"{recipe}-{run}")] for run in ("parts", "whole"))
        assert parts == whole, (parts, whole)
    return compute


def fp8_current(site):
    train_recipes(site, ("tensorwise", "rowwise"))


def fp8_training(site):
    """All matrices trained in FP8: close to the compute type, the same with any recomputation, resumed to the bit."""
    compute = train_recipes(site, ("delayed",))
    done = site.train("output.dir=delayed-parts", "precision.linear=fp8", "precision.fp8_recipe=tensorwise", *FULL, "schedule.name=constant",
                      "output.save_every_samples=16", "train.max_steps=8", expect=73)
    assert "precision.fp8_recipe was delayed, is tensorwise" in done.stderr, done.stderr
    site.train("output.dir=some", "precision.linear=fp8", "precision.fp8_recipe=delayed", "precision.fp8_skip_last=1", *FULL)
    site.train("output.dir=none", "precision.linear=fp8", "precision.fp8_recipe=delayed", "precision.fp8_skip_first=1", "precision.fp8_skip_last=1", *FULL)
    some, none = ([line["loss"] for line in site.metrics(run)] for run in ("some", "none"))
    assert none == compute, "of two blocks, the first and the last stay in the compute type"
    assert some not in (compute, [line["loss"] for line in site.metrics("delayed")]), some
    # An infinity, which the products clamp, ends the run as in the compute type.
    shutil.copytree(f"{site.work}/base", f"{site.work}/huge")
    path = f"{site.work}/huge/model.safetensors"
    data = open(path, "rb").read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8:begin]), np.frombuffer(data, "<f4", offset=begin).copy()
    for name in ("gate_proj", "up_proj"):
        first, last = header[f"model.layers.1.mlp.{name}.weight"]["data_offsets"]
        values[first // 4:last // 4] *= np.float32(1e22)
    open(path, "wb").write(data[:begin] + values.tobytes())
    for ranks in (0, 2):
        done = site.train(f"output.dir=huge{ranks}", "model.path=huge", "precision.linear=fp8", "precision.fp8_recipe=delayed", *FULL, ranks=ranks, expect=70)
        assert "not finite: the input of model.layers.1.mlp.down_proj.weight on rank 0" in done.stderr, done.stderr


def mlperf_log(site):
    os.environ.update(TRIREME_CACHES_CLEARED="true")
    done = site.train("logging.mlperf=true", "lora.r=16", "eval.every_samples=16", "eval.target_loss=100.0", "eval.skip_first=1", "output.dir=ml")
    lines = [line for line in open(f"{site.work}/ml/mllog.log")]
    assert all(line.startswith(":::MLLOG {") for line in lines)
    assert [l for l in done.stdout.splitlines() if l.startswith(":::MLLOG")] == [l.rstrip("\n") for l in lines]
    events = [json.loads(line[len(":::MLLOG "):]) for line in lines]
    keys = [event["key"] for event in events]
    order = ["cache_clear", "init_start", "submission_benchmark", "seed", "init_stop", "run_start", "block_start", "block_stop", "eval_start",
             "eval_accuracy", "eval_stop", "run_stop"]
    positions = [keys.index(key) for key in order]
    assert positions == sorted(positions), keys
    stop = events[keys.index("run_stop")]
    assert stop["metadata"]["status"] == "success" and stop["metadata"]["samples_count"] == 32, stop
    # llama31_8b, in the words of the compliance checker.
    site.train("lora=null", "logging.mlperf=true", "eval.every_samples=16", "train.max_steps=2", "output.dir=pretraining", MLPERF_SUBMISSION_DIVISION="open")
    said = {event["key"]: event["value"] for event in (json.loads(line[len(":::MLLOG "):]) for line in open(f"{site.work}/pretraining/mllog.log"))}
    assert (said["submission_benchmark"], said["submission_division"], said["opt_name"], said["init_checkpoint_step"]) == ("llama31_8b", "open", "adamw", 0), said
    assert said["opt_learning_rate_decay_schedule"] == "cosine with linear warmup" and said["opt_base_learning_rate"] == 1e-3, said
    # A start from the beginning has the file for itself, one that goes on says that it has not.
    starts = lambda: open(f"{site.work}/again/mllog.log").read().count('"init_start"')
    again = ("logging.mlperf=true", "output.dir=again")
    site.train(*again, expect=-9, TRIREME_FAULT="sigkill@step:step4")
    done = site.train(*again, expect=75, TRIREME_FAULT="sigterm@step:step4")
    assert starts() == 1 and "several starts" not in done.stderr, done.stderr
    for manifest in glob.glob(f"{site.work}/again/checkpoints/*/MANIFEST.json"):
        os.truncate(manifest, 9)
    done = site.train(*again, extra=("--allow-fresh",), expect=75, TRIREME_FAULT="sigterm@step:step4")
    assert starts() == 1 and "several starts" not in done.stderr, done.stderr
    shutil.copytree(f"{site.work}/again", f"{site.work}/removed")
    os.remove(f"{site.work}/removed/mllog.log")
    done = site.train("logging.mlperf=true", "output.dir=removed")
    assert "mllog.log lacks the lines of the earlier starts" in done.stderr, done.stderr
    done = site.train(*again)
    assert starts() == 2 and "mllog.log has the lines of several starts" in done.stderr, done.stderr
    try:
        import mlperf_logging  # noqa: F401
    except ImportError:
        print("mlperf_logging is not installed: the compliance checker was not run")
        return
    for ruleset in ("5.0.0", "5.1.0"):
        check = subprocess.run([sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", ruleset,
                                "--log_output", f"{site.work}/check-{ruleset}.log", f"{site.work}/ml/mllog.log"], capture_output=True, text=True)
        print(ruleset, check.stdout[-800:], check.stderr[-800:])


def outputs(site):
    assert site.train(ranks=2, extra=("--print-config",)).stdout.count("model:\n") == 1
    site.train("eval.every_samples=24")
    text = open(f"{site.work}/run/config.yaml").read()
    first = site.metrics("run", "run")[0]
    assert first["world_size"] == 1 and "commit" in first and "libraries" in first
    train = site.metrics("run")
    assert [m["samples"] for m in train] == [8, 16, 24, 32, 40, 48] and train[-1]["tokens"] == 48 * SEQ
    assert set(train[0]) >= {"step", "loss", "grad_norm", "lr", "step_time_s", "samples_per_s", "tokens_per_s", "mfu", "memory_gib"}
    assert all(0 < m["step_time_s"] < 60 for m in train), [m["step_time_s"] for m in train]
    assert [m["step"] for m in site.metrics("run", "eval")] == [3, 6]
    # The resolved configuration is the same run.
    again = subprocess.run([f"{site.args.bin}/train_llama", "--config", f"{site.work}/run/config.yaml", "--set", f"output.dir={site.work}/again"],
                           capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert [m["loss"] for m in site.metrics("again")] == [m["loss"] for m in train]
    assert text.replace(f"{site.work}/run", f"{site.work}/again") == open(f"{site.work}/again/config.yaml").read()
    plan = site.train("output.dir=planned", extra=["--dry-run", "--ranks", "2", "--device-memory-gib", "80"]).stdout
    assert "parameters:" in plan and "memory per rank" in plan and " MFLOP per row" in plan and "1 micro-batches" not in plan and "of 80.0 GiB, bf16" in plan, plan
    assert "max_steps: 6" in site.train(extra=["--print-config"]).stdout
    assert "train_llama" in site.train(extra=["--version"]).stdout
    assert "optimizer" in site.train(extra=["--help"]).stdout
    done = site.train("output.dir=missed", "eval.every_samples=24", "eval.target_loss=0.001")
    assert "eval.target_loss 0.001 was not reached: the last evaluation gave " in done.stderr, done.stderr
    for line in site.train("output.dir=wide").stdout.splitlines():
        assert len(line) <= 120 or line.startswith("{'train_runtime'"), line


def length(site):
    """train.epochs and schedule.warmup_ratio are other words for steps."""
    text = open(f"{site.work}/run.yaml").read()
    site.train("train.max_steps=8", "schedule.warmup_steps=2", "output.dir=steps")
    with open(f"{site.work}/run.yaml", "w") as out:
        out.write(text.replace("max_steps: 6", "epochs: 1.5"))
    done = site.train("schedule.warmup_ratio=0.25", "output.dir=epochs")
    assert "train.epochs 1.5 of 40 rows: train.max_steps 8" in done.stderr + done.stdout, done.stderr
    losses = [m["loss"] for m in site.metrics("steps")]
    assert [m["loss"] for m in site.metrics("epochs")] == losses and len(losses) == 8
    saved = open(f"{site.work}/epochs/config.yaml").read()
    assert "max_steps: 8" in saved and "epochs: null" in saved and "warmup_steps: 2" in saved, saved
    site.train("schedule.warmup_ratio=0.25", "output.dir=ranks", ranks=2)
    assert np.allclose([m["loss"] for m in site.metrics("ranks")], losses, rtol=1e-6)
    # 61 rows end in an eighth step, 65 in a ninth.
    for epochs, steps in ((61 / 40, 8), (65 / 40, 9)):
        assert f"train.max_steps {steps}" in site.train(f"train.epochs={epochs}", extra=["--dry-run"]).stderr
    line = last_line(site.train("logging.profile_step=9", "output.dir=late", expect=2).stderr)
    assert "train.epochs 1.5 is train.max_steps 8; logging.profile_step 9 comes after the last step" in line, line
    with open(f"{site.work}/documents.jsonl", "w") as out:
        for i in range(50):
            out.write(json.dumps({"text": f"document {i}"}) + "\n")
    line = last_line(site.train("data.train=documents.jsonl", "output.dir=documents", expect=2).stderr)
    assert "data.train is a stream of documents. Give train.max_steps" in line, line
    line = last_line(site.train("data.train=mock", "output.dir=mock", expect=2).stderr)
    assert "Give train.max_steps" in line, line


def origins(site):
    """Rows of another tokenizer, positions that are new to the model, and adapters of another base are said."""
    work = site.work
    words = [" ".join(f"{word}{i % 7}" for i in range(j, j + 60)) for j, word in enumerate(["alpha", "beta", "gamma", "delta"] * 20)]
    for name, part in (("one", words), ("other", [text.upper() for text in words])):
        os.makedirs(f"{work}/{name}")
        open(f"{work}/{name}/text.txt", "w").write("\n\n".join(part))
        json.dump([{"messages": [{"role": "user", "content": text[:20]}, {"role": "assistant", "content": text[:30]}]} for text in part],
                  open(f"{work}/{name}/chat.json", "w"))
        open(f"{work}/{name}/documents.jsonl", "w").writelines(json.dumps({"text": text}) + "\n" for text in part)
        site.tool("tokenizer", "train", "--type", "bpe", "--input", f"{name}/text.txt", "--vocab-size", 300, "--output", name)
    shutil.rmtree(f"{work}/base")
    site.make_llama(2, 320, 32)
    shutil.copy(f"{work}/one/tokenizer.json", f"{work}/base/tokenizer.json")
    # A model with further tokens at the end has the same ids.
    larger = json.load(open(f"{work}/one/tokenizer.json"))
    larger["added_tokens"].append({"id": 300, "content": "<new>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
    for output in ("one/rows.npy", "other/rows.npy", "other/rows.h5"):
        name = output.split("/")[0]
        site.tool("data", "pack", "--tokenizer", f"{name}/tokenizer.json", "--input", f"{name}/text.txt", "--seq-length", SEQ, "--output", output)
    site.tool("data", "megatron", "--tokenizer", "other/tokenizer.json", "--input", "other/documents.jsonl", "--output-prefix", "other/tokens")
    open(f"{work}/chat.jinja", "w").write("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}")
    site.tool("data", "chat", "--model", "other", "--template", "chat.jinja", "--input", "other/chat.json", "--seq-length", SEQ, "--output", "other/chat.npy")

    def said(*settings, extra=("--dry-run",), **more):
        return [line.split("warning: ")[1] for line in site.train("data.valid=null", *settings, extra=extra, **more).stderr.splitlines() if "warning: " in line]

    def about(words, lines):
        return [line for line in lines if words in line]

    def packed(*settings):
        lines = about("was packed with", said(*settings))
        assert all("/other" in line.split("the tokenizer ")[1] and "base/tokenizer.json" in line for line in lines), lines
        return [line.split(" was packed")[0].removeprefix(f"{work}/") for line in lines]

    assert packed("data.train=[one/rows.npy, other/rows.npy, other/chat.npy]", "data.valid=other/rows.h5") == ["other/rows.npy", "other/chat.npy", "other/rows.h5"]
    assert packed("data.train=other/tokens_text_document") == ["other/tokens_text_document"]
    json.dump(larger, open(f"{work}/base/tokenizer.json", "w"))
    assert packed("data.train=one/rows.npy") == []
    # A tokenizer.model alone has the tokens that it has beside the files of a model.
    site.tool("tokenizer", "train", "--input", "one/text.txt", "--vocab-size", 310, "--output", "alone.model")
    site.tool("init-model", "--preset", "llama3.2-1b", "--config-only", "--vocab-size", 310, "--tokenizer", "alone.model", "--output", "beside")
    site.tool("data", "pack", "--tokenizer", "alone.model", "--input", "one/text.txt", "--seq-length", SEQ, "--output", "alone.npy")
    assert os.path.exists(f"{work}/beside/tokenizer_config.json")
    assert packed("data.train=alone.npy", "model.path=beside", "model.init=random", "lora=null", "optimizer.lr=1e-4") == []
    # Another program wrote the file anew: what stands beside it is of no file that is there.
    np.save(f"{work}/other/rows.npy", np.zeros((9, SEQ), np.int32))
    assert packed("data.train=other/rows.npy") == []

    # Positions beyond the model's: said, and what is trained says them, beside what the base says of itself.
    shape = json.load(open(f"{work}/base/config.json"))
    json.dump({**shape, "dtype": "float32", "pretraining_tp": 1, "notes": {"of": "mine"}}, open(f"{work}/base/config.json", "w"))
    full = ("data.train=one/rows.npy", "lora=null", "optimizer.lr=1e-4", "train.max_steps=2", "output.save_every_samples=8")
    line, = about("max_position_embeddings", said(*full, "output.dir=full", extra=()))
    assert f"data.seq_length {SEQ} is beyond the model's max_position_embeddings 32" in line and f"model/config.json will say {SEQ}" in line, line
    site.tool("checkpoint", "export", "full/checkpoints", "--output", "exported")
    for folder in ("full/model", "exported"):
        written = json.load(open(f"{work}/{folder}/config.json"))
        assert written["max_position_embeddings"] == SEQ and written["notes"] == {"of": "mine"} and "dtype" not in written, folder
    # (The rows were packed for this length; a model that has the positions says nothing.)
    assert not about("max_position", said(*full, "model.path=full/model", "output.dir=none"))

    # An adapter: by the hash of its base's weights, which may lie anywhere; of another tool's by the name.
    lora = ("data.train=one/rows.npy", "train.max_steps=2")
    assert "to serve the adapter" in about("max_position", said(*lora, "output.dir=first", extra=()))[0]
    start = (*lora, "lora.adapter=first/adapter", "output.dir=second")
    shutil.copytree(f"{work}/base", f"{work}/elsewhere")
    json.dump({**json.load(open(f"{work}/base/config.json")), "max_position_embeddings": SEQ}, open(f"{work}/elsewhere/config.json", "w"))
    assert not about("lora.adapter", said(*start, "model.path=elsewhere"))
    line, = about("lora.adapter", said(*start, "model.path=full/model"))
    assert "was trained on the base" in line and "model.path" in line and "has other weights" in line, line

    # A site that was moved: an export is told where the base and the adapter lie now.
    site.train("data.valid=null", *start, "output.save_every_samples=8", "output.dir=third", "model.path=elsewhere")
    for moved in ("elsewhere", "first"):
        os.rename(f"{work}/{moved}", f"{work}/{moved}-moved")
    export = ("checkpoint", "export", "third/checkpoints", "--output", "third-exported")
    assert "elsewhere does not exist, which is the run's model.path: say with --model" in site.tool(*export, expect=4).stderr
    export += ("--model", "elsewhere-moved")
    assert "first/adapter does not exist, which is the run's lora.adapter: say with --adapter" in site.tool(*export, expect=4).stderr
    site.tool(*export, "--adapter", "first-moved/adapter")
    for moved in ("elsewhere", "first"):
        os.rename(f"{work}/{moved}-moved", f"{work}/{moved}")

    tensors = f"{work}/first/adapter/adapter_model.safetensors"
    content = open(tensors, "rb").read()
    open(tensors, "wb").write(content.replace(b"trireme_base_hash", b"trireme_base_hish"))
    line, = about("lora.adapter", said(*start, "model.path=elsewhere"))
    assert "names the base" in line and "elsewhere" in line, line

    # Rows that transformers' resize_token_embeddings() added, of which nothing tells but their values.
    weights = f"{work}/base/model.safetensors"
    content = bytearray(open(weights, "rb").read())
    begin = 8 + int.from_bytes(content[:8], "little") + 4 * 32 * 317
    rows = np.frombuffer(bytes(content[begin:begin + 4 * 32]), np.float32) * (1 + 1e-5 * np.random.default_rng(1).normal(size=(3, 32)))
    content[begin:begin + 3 * 4 * 32] = rows.astype(np.float32).tobytes()
    open(weights, "wb").write(content)
    line, = about("all but equal", said(*lora, "output.dir=frozen", extra=()))
    assert line.startswith("rows 317 to 319 of the vocabulary") and '"trireme_added_rows": {"first": 317}' in line, line
    # One added row has the mean of the others.
    others = np.frombuffer(bytes(content[begin - 4 * 32 * 317:begin]), np.float32).reshape(317, 32)
    whole = np.concatenate([others, np.random.default_rng(2).normal(size=(2, 32)).astype(np.float32)])
    one = bytearray(content)
    one[begin:begin + 3 * 4 * 32] = np.concatenate([whole[317:], whole.mean(0, keepdims=True)]).astype(np.float32).tobytes()
    open(weights, "wb").write(one)
    line, = about("all but the mean", said(*lora, "output.dir=frozen-one", extra=()))
    assert line.startswith("row 319 of the vocabulary") and '"trireme_added_rows": {"first": 319}' in line, line
    open(weights, "wb").write(content)
    shape = json.load(open(f"{work}/base/config.json"))
    json.dump({**shape, "trireme_added_rows": {"first": 317}}, open(f"{work}/base/config.json", "w"))
    done = site.train(*lora, "data.valid=null", "output.dir=grown")
    assert "rows 317 to 319 were added" in done.stderr and "all but equal" not in done.stderr, done.stderr

    # A first row of the base's own tokens, which vocab.json alone may tell.
    last = max(json.load(open(f"{work}/one/vocab.json")).values())
    json.dump({**shape, "trireme_added_rows": {"first": last}}, open(f"{work}/base/config.json", "w"))
    for files in (["tokenizer.json"], ["vocab.json", "merges.txt"]):
        os.remove(f"{work}/base/tokenizer.json")
        for name in files:
            shutil.copy(f"{work}/one/{name}", f"{work}/base/{name}")
        done = site.train(*lora, "output.dir=low", expect=4, extra=["--dry-run"])
        assert f"begins at row {last}, and the tokens of the base's own tokenizer have the rows 0 to {last}" in last_line(done.stderr), done.stderr


if __name__ == "__main__":
    main({"origins": origins, "length": length, "exit-codes": exit_codes, "exit-codes-all": exit_codes_all, "stop-and-resume": stop_and_resume, "ranks": ranks, "policies": policies, "adapters": adapters, "fp8": fp8, "fp8-attention": fp8_attention, "fp8-training": fp8_training,
          "fp8-current": fp8_current, "mlperf-log": mlperf_log, "outputs": outputs}, Site)
