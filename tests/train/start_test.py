#!/usr/bin/env python3
"""What happens before the first step, and of a run that is not let through: plans of ranks, who owns output.dir, checks before the weights are
read, devices, disk space, stops without a save. Exit code 77 = skipped."""
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time

from run_site import last_line, main, np
import run_test
from run_test import SEQ, VOCAB
from tiny_llama import write_llama

HOST = socket.gethostname()


class Site(run_test.Site):
    def run(self, *overrides, ranks=0, expect=0, extra=(), remove=(), **environment):
        """As train(), with environment variables, and without those in `remove`."""
        variables = {name: value for name, value in os.environ.items() if name not in remove}
        done = subprocess.run(self.command(*overrides, ranks=ranks, extra=extra), capture_output=True, text=True, timeout=self.limit_s,
                              env={**variables, **environment})
        assert done.returncode == expect, f"exit {done.returncode}, expected {expect}, of {overrides}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        return done

    def numbers(self, run):
        return [(m["loss"], m["grad_norm"]) for m in self.metrics(run)], [m["loss"] for m in self.metrics(run, "eval")]


def plan_ranks(site):
    """Ranks with unequal memory make one plan, that of the smallest."""
    full = ["lora=null", "batch.micro_batch_size=4", "batch.global_batch_size=8", "eval.every_samples=24"]
    small, large = "0.65e6", "4e6"
    memory = {name: ",".join(f"set:{size}@device-memory:rank{rank}" for rank, size in enumerate(sizes))
              for name, sizes in {"roomy": (large, large), "equal": (small, small), "first": (small, large), "second": (large, small)}.items()}
    plans = {}
    for name, fault in memory.items():
        done = site.run(f"output.dir={name}", *full, ranks=2, TRIREME_FAULT=fault)
        plans[name] = [line for line in done.stderr.splitlines() if "rows per forward pass" in line or "row per forward pass" in line][0].split(" ", 1)[1]
        assert ("device memory differs between ranks" in done.stderr) == (name in ("first", "second")), done.stderr
        if name == "second":
            assert f"of rank 1 on {HOST}" in done.stderr, done.stderr
    print(plans)
    assert plans["equal"] != plans["roomy"], "the memory decides nothing here: the test shows nothing"
    assert plans["equal"] == plans["first"] == plans["second"], plans
    assert site.numbers("equal") == site.numbers("first") == site.numbers("second")


def two(site, first, second):
    """Two ranks, each with overrides of its own."""
    return subprocess.run([*site.command(*first, ranks=1), ":", "-n", "1", *site.command(*second)], capture_output=True, text=True, timeout=site.limit_s)


def plan_differs(site):
    """Ranks that would go different ways are stopped before the first step, and named."""
    def refused(first, second, *words):
        done = two(site, first, second)
        said = [line for line in done.stderr.splitlines() if f"rank 1 on {HOST} and rank 0 on {HOST}" in line]
        assert done.returncode == 2 and said and all(word in said[-1] for word in words), (done.returncode, done.stderr[-2000:])
        assert "step 1/" not in done.stdout and not os.path.exists(f"{site.work}/run/config.yaml")

    one = site.command(ranks=1)
    for here, there, rank in (([], ["env", "TRIREME_CHECK_COLLECTIVES=1"], 1), (["env", "TRIREME_CHECK_COLLECTIVES=1"], [], 0)):
        launcher = one[:one.index(site.command()[0])]
        done = subprocess.run([*launcher, *here, *site.command(), ":", "-n", "1", *there, *site.command()], capture_output=True, text=True, timeout=site.limit_s)
        said = f"TRIREME_CHECK_COLLECTIVES is set on rank {rank} and not on rank {1 - rank}: set it on all ranks"
        assert done.returncode == 2 and said in done.stderr, (done.returncode, done.stderr[-2000:])
    program, other = site.command()[0], f"{site.work}/build/train_llama"
    build = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.rpartition("(")[2].partition(")")[0].encode()
    os.makedirs(os.path.dirname(other))
    # Where the commit does not say what was built, programs differ by their bytes.
    named = not build.endswith(b"-dirty") and build != b"unknown"
    text = open(program, "rb").read()
    open(other, "wb").write(text.replace(build + b"\0", b"0" * len(build) + b"\0") if named else text + b"\0")
    os.chmod(other, 0o755)
    done = subprocess.run([*one, ":", "-n", "1", other, *site.command()[1:]], capture_output=True, text=True, timeout=site.limit_s)
    said = [f"rank {rank} on {HOST} runs build {text.decode()}{'' if named else ' (hash '}" for rank, text in ((0, build), (1, b"0" * len(build) if named else build))]
    assert done.returncode == 2 and all(text in done.stderr for text in said), (done.returncode, done.stderr[-2000:])
    refused([], ["eval.every_samples=16"], "run different configurations")
    write_llama(f"{site.work}/deeper", VOCAB, layers=3)
    refused([], ["model.path=deeper"], "come to different memory plans", "model or data differ")
    rows = np.load(f"{site.work}/train.npy")
    np.save(f"{site.work}/copy.npy", rows)
    np.save(f"{site.work}/other.npy", rows[::-1])
    refused([], ["data.train=other.npy"], "read files of different contents", "train.npy; copies")
    shutil.copytree(f"{site.work}/base", f"{site.work}/other")
    with open(f"{site.work}/other/model.safetensors", "r+b") as weights:
        weights.seek(-4, os.SEEK_END)
        weights.write(struct.pack("<f", 0.5))
    refused([], ["model.path=other"], "read files of different contents", "model.safetensors; copies")
    refused(["lora=null"], ["lora=null", "model.path=other"], "read files of different contents", "model.safetensors; copies")
    refused(["data.test=copy.npy"], ["data.test=other.npy"], "other.npy and ", "copy.npy; copies")
    site.run("output.dir=adapted", "train.max_steps=1")
    site.run("output.dir=adapted2", "train.max_steps=2")
    refused(["lora.adapter=adapted/adapter"], ["lora.adapter=adapted2/adapter"], "adapted/adapter/adapter_model.safetensors; copies")
    # A resume reads the adapter's rows of the vocabulary, if it has some.
    for name, steps in (("tokens", 1), ("tokens2", 2)):
        site.run(f"output.dir={name}", f"train.max_steps={steps}", "lora.trainable_token_indices=[3]")
    for start, other, changed in (("adapted", "adapted2", False), ("tokens", "tokens2", True)):
        resumed = ["output.save_every_samples=8", f"output.dir=from_{start}", f"lora.adapter={start}/adapter"]
        site.run(*resumed, "train.max_steps=1")
        if changed:
            refused(resumed, [*resumed, f"lora.adapter={other}/adapter"], "read files of different contents", "tokens/adapter/adapter_model.safetensors; copies")
        done = site.run(*resumed, f"lora.adapter={other}/adapter", "train.max_steps=2", expect=4 if changed else 0)
        assert ("tokens2/adapter/adapter_model.safetensors is not what" in done.stderr) == changed, done.stderr
    shutil.copytree(f"{site.work}/base", f"{site.work}/more")
    shutil.copy(f"{site.work}/base/model.safetensors", f"{site.work}/more/a.safetensors")
    refused([], ["model.path=more"], f"rank 1 on {HOST} has ", "more/a.safetensors, which rank 0")
    refused(["model.path=more"], [], f"rank 1 on {HOST} lacks ", "more/a.safetensors, which rank 0")
    os.remove(f"{site.work}/more/a.safetensors")
    config = json.load(open(f"{site.work}/base/config.json"))
    json.dump({**config, "transformers_version": "5.0.0"}, open(f"{site.work}/more/config.json", "w"))
    copies = ["output.dir=copies", "logging.mlperf=true"]
    equal = two(site, copies, [*copies, "data.train=copy.npy", "model.path=more"])
    assert equal.returncode == 0 and equal.stderr.count("names the open division") == 1, equal.stderr[-2000:]


def views(site):
    """An output.dir that another rank sees otherwise ends the start and is not changed."""
    site.run("output.dir=one", "output.save_every_samples=16", "train.max_steps=4", ranks=2)
    _, older, newest = saves = sorted(os.listdir(f"{site.work}/one/checkpoints"))  # LATEST is the first
    shutil.copytree(f"{site.work}/one", f"{site.work}/copy")
    for part, names in (("part", [".lock", f"checkpoints/{older}"]), ("less", [".lock", *(f"checkpoints/{newest}/{file}" for file in ("MANIFEST.json", "rank-00000.safetensors"))])):
        for name in names:
            os.makedirs(os.path.dirname(f"{site.work}/{part}/{name}"), exist_ok=True)
            (os.link if name.count("/") > 1 else os.symlink)(f"{site.work}/one/{name}", f"{site.work}/{part}/{name}")
    for there, code, words in (("copy", 73, "is not the directory that rank 0 has opened"), ("part", 4, f"{newest}/MANIFEST.json is not there"),
                               ("less", 4, f"{newest}/rank-00001.safetensors is not there, and rank 0 sees it: nothing is changed")):
        done = two(site, *(["output.save_every_samples=16", f"output.dir={name}"] for name in ("one", there)))
        said = [line for line in done.stderr.splitlines() if f"rank 1 on {HOST}: " in line and words in line]
        assert done.returncode == code and said, (done.returncode, done.stderr[-2000:])
        assert sorted(os.listdir(f"{site.work}/one/checkpoints")) == saves


def claim(site):
    """Until its first step has ended a run owns nothing: a corrected configuration takes the directory."""
    work = site.work
    rows = np.load(f"{work}/train.npy")
    np.save(f"{work}/short.npy", rows[:, :24])
    bad = rows.copy()
    bad[:, 5] = VOCAB
    np.save(f"{work}/bad.npy", bad)
    site.run("data.train=bad.npy", expect=3)
    site.run("model.path=nowhere", expect=4)
    site.run("logging.mlperf=true", "lora.r=8", expect=70, TRIREME_FAULT="fail@step:step1", TRIREME_CACHES_CLEARED="true", MLPERF_SUBMISSION_DIVISION="open")
    site.run("batch.micro_batch_size=2", expect=2, TRIREME_FAULT="set:1000@device-memory")
    site.run("logging.profile_step=1", expect=70, TRIREME_FAULT="fail@step:step1")
    open(f"{work}/run/config.yaml.tmp-0123456789abcdef", "w").close()  # of a start that was killed
    assert os.path.exists(f"{work}/run/profile")
    assert not os.path.exists(f"{work}/run/config.yaml") and not os.path.exists(f"{work}/run/run.json"), os.listdir(f"{work}/run")
    # Another length, another number of steps, the same directory; and the logs are this run's alone.
    site.run("data.train=short.npy", "data.valid=null", "data.seq_length=24", "train.max_steps=2", "logging.mlperf=true", TRIREME_CACHES_CLEARED="true", MLPERF_SUBMISSION_DIVISION="open")
    assert not os.path.exists(f"{work}/run/profile") and not any(".tmp-" in name for name in os.listdir(f"{work}/run"))
    log = open(f"{work}/run/mllog.log").read()
    assert log.count('"init_start"') == 1 and log.count('"run_stop"') == 1, log
    assert len(site.metrics("run", "run")) == 1 and len(site.metrics("run")) == 2
    assert json.load(open(f"{work}/run/run.json"))["run_id"]
    # Once a step has ended the directory is taken.
    site.run("output.dir=taken", expect=70, TRIREME_FAULT="fail@step:step3")
    done = site.run("output.dir=taken", "train.max_steps=5", expect=73)
    assert "train.max_steps was 6, is 5" in last_line(done.stderr), done.stderr
    # A start that cannot take it may be started again.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # noqa: E731
    done = subprocess.run(site.command("output.dir=full"), capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 73 and "full/config.yaml: File too large" in done.stderr, done
    site.run("output.dir=full")
    # What somebody else keeps under our names is not ours to remove.
    os.makedirs(f"{work}/theirs")
    open(f"{work}/theirs/metrics.jsonl", "w").write("mine\n")
    for start in range(2):  # a refused start leaves nothing that makes the directory look like ours to the next
        done = site.run("output.dir=theirs", expect=73)
        assert "metrics.jsonl" in last_line(done.stderr) and open(f"{work}/theirs/metrics.jsonl").read() == "mine\n", (start, done.stderr)
        assert os.listdir(f"{work}/theirs") == ["metrics.jsonl"]
    # Nor does the lock file of a start that is not accepted yet, here one that has been killed.
    open(f"{work}/theirs/.lock", "w").close()
    site.run("output.dir=theirs", expect=73)
    assert sorted(os.listdir(f"{work}/theirs")) == [".lock", "metrics.jsonl"]
    # Of a run without its config.yaml the message says so.
    site.run("output.dir=torn", "output.save_every_samples=8", "train.max_steps=1")
    os.remove(f"{work}/torn/config.yaml")
    assert "has checkpoints and no config.yaml" in last_line(site.run("output.dir=torn", "output.save_every_samples=8", expect=73).stderr)
    # A folder that the run needs at its end, and cannot make.
    os.makedirs(f"{work}/blocked")
    os.symlink("nowhere", f"{work}/blocked/adapter")
    for extra in ([], ["--dry-run"]):
        assert "blocked/adapter: a dangling link of that name exists" in last_line(site.run("output.dir=blocked", extra=extra, expect=73).stderr)
    os.symlink("nowhere", f"{work}/base/tokenizer.model")
    done = site.run("output.dir=dangling", "train.max_steps=1")
    assert "base/tokenizer.model is a dangling link" in done.stderr, done.stderr
    os.remove(f"{work}/base/tokenizer.model")
    os.rename(f"{work}/theirs/metrics.jsonl", f"{work}/theirs/.lock")
    done = site.run("output.dir=theirs", expect=73)
    assert "(found .lock)" in last_line(done.stderr) and open(f"{work}/theirs/.lock").read() == "mine\n", done.stderr


def checks(site):
    """What can be found before the weights are read is found before; rows are looked at that the run does not reach."""
    work = site.work
    site.run("output.dir=four", "lora.r=8", "train.max_steps=1", "data.valid=null")
    done = site.run("lora.adapter=four/adapter", expect=4)
    assert "loading" not in done.stderr and f"{work}/four/adapter" in last_line(done.stderr) and "lora.r" in last_line(done.stderr), done.stderr
    rows = np.load(f"{work}/train.npy")
    rows[39, 7] = VOCAB
    np.save(f"{work}/late.npy", rows)
    late = ("data.train=late.npy", "data.shuffle=false", "train.max_steps=1")
    for ranks, extra in ((0, ()), (2, ()), (0, ["--dry-run"])):
        done = site.run(*late, ranks=ranks, extra=extra, expect=3)
        said = [line for line in done.stderr.splitlines() if "late.npy: row 39, position 7" in line]
        assert said and "step 1/" not in done.stdout, done.stderr
    done = site.run("output.dir=dry", extra=["--dry-run"])
    assert "data: all 47 rows are good" in done.stdout and not os.path.exists(f"{work}/dry"), (done.stdout, os.listdir(work))
    # A rule over the ranks stands among the other problems, with its place.
    done = site.run("parallel.shard_size=3", "optimizer.lr=-1", ranks=2, expect=2)
    assert "--set parallel.shard_size=3: parallel.shard_size 3 does not divide the 2 ranks" in done.stderr and "has 2 problems" in done.stderr, done.stderr

    # Every row, with a tool of its own.
    def verify(*arguments, expect=0):
        done = subprocess.run([f"{site.args.bin}/trireme", "data", "verify", *arguments], capture_output=True, text=True)
        assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done

    assert "all 47 rows are good" in verify("--config", f"{work}/run.yaml").stdout
    larger = f"model.vocab_size={VOCAB + 1}"
    site.run(*late, larger, extra=["--dry-run"])
    assert "all 47 rows are good" in verify("--config", f"{work}/run.yaml", "--set", late[0], "--set", larger).stdout
    assert "late.npy: row 39, position 7" in verify("--config", f"{work}/run.yaml", "--set", "data.test=late.npy", expect=3).stdout
    rows[3, 3] = -1
    np.save(f"{work}/late.npy", rows)
    done = verify("--model", f"{work}/base", "--seq-length", str(SEQ), f"{work}/train.npy", f"{work}/late.npy", expect=3)
    assert "2 of 80 rows are bad, the first: " in last_line(done.stderr) and "late.npy: row 3, position 3" in last_line(done.stderr), done.stderr
    assert "row 39, position 7" in done.stdout, done.stdout
    verify(f"{work}/train.npy", expect=2)


def sanitized(folder):
    """A program with a sanitizer does not restart itself with OMP_WAIT_POLICY."""
    cache = f"{folder}/../CMakeCache.txt"
    return os.path.exists(cache) and re.search("TRIREME_SANITIZE:STRING=(address|thread)", open(cache).read()) is not None


def devices(site):
    """Asked for by name and not there: never the CPU in silence."""
    if not os.path.exists("/dev/nvidiactl"):
        done = site.run("output.dir=asked", expect=2, remove=("TRIREME_DEVICE",), CUDA_VISIBLE_DEVICES="0")
        assert "CUDA_VISIBLE_DEVICES='0' names 1 GPU, and CUDA shows 0" in last_line(done.stderr), done.stderr
    done = site.run("output.dir=asked", expect=2, TRIREME_KERNELS="sm_90")
    assert "TRIREME_KERNELS is 'sm_90'; use hopper, portable or none" in last_line(done.stderr), done.stderr
    for name in ("TRIREME_ATTENTION", "TRIREME_PRODUCTS"):
        last = {last_line(site.run("output.dir=asked", expect=2, extra=extra, **{name: "xx"}).stderr) for extra in ([], ["--dry-run"])}
        assert len(last) == 1 and name in last.pop(), last
    for word in ("first", "brief", "sustained"):
        site.run("output.dir=asked", extra=["--dry-run"], TRIREME_PRODUCTS=word)
    done = site.run("output.dir=dry", extra=["--dry-run", "--device-memory-gib", "80"], TRIREME_KERNELS="portable")
    assert "kernels: portable (TRIREME_KERNELS), attention by the library" in done.stdout, done.stdout
    # Threads that wait do not spin, and there are no more of them than cores.
    done = site.run("output.dir=threads", "train.max_steps=1", remove=("OMP_NUM_THREADS",))
    said = [line for line in done.stderr.splitlines() if "CPU thread" in line]
    assert said and ("which sleep while they wait" in said[0] or sanitized(site.args.bin)), done.stderr
    assert 1 <= int(said[0].split(" CPU thread")[0].split()[-1]) <= len(os.sched_getaffinity(0)), said
    done = site.run("output.dir=spin", "train.max_steps=1", remove=("OMP_NUM_THREADS",), OMP_WAIT_POLICY="ACTIVE")
    assert "which sleep" not in done.stderr, done.stderr


def stops(site):
    """output.save_on_stop: false, a disk without room for a checkpoint, and the signals of other schedulers."""
    def stopped(run, *overrides, expect, at=5):
        return site.run(f"output.dir={run}", "train.max_steps=12", *overrides, expect=expect, TRIREME_FAULT=f"sigterm@step:step{at}").stderr

    for name, ignored in (("SIGHUP", False), ("SIGUSR2", False), ("SIGXCPU", False), ("SIGHUP", True)):
        number, run_name = getattr(signal, name), f"{name}-{ignored}"
        with open(f"{site.work}/{run_name}.txt", "w+") as text:
            run = subprocess.Popen(site.command(f"output.dir={run_name}", f"train.max_steps={40 if ignored else 100000}"), stdout=text, stderr=text,
                                   preexec_fn=lambda: signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL))  # noqa: B023
            try:
                while run.poll() is None and "step 2/" not in open(text.name).read():
                    time.sleep(0.1)
                run.send_signal(number)
                assert run.wait(60) == (0 if ignored else 75), (run_name, run.returncode, open(text.name).read()[-1500:])
            finally:
                run.kill()

    text = stopped("none", "output.save_on_stop=false", expect=143)
    assert "without saving (output.save_on_stop: false)" in text and "the same command starts afresh" in text, text[-1500:]
    assert not [name for name in os.listdir(f"{site.work}/none/checkpoints") if name.startswith("step")]
    done = site.run("output.dir=none", "train.max_steps=12", "output.save_on_stop=false")
    assert "resuming" not in done.stderr and len(site.metrics("none")) == 12
    # Step 6 is saved, and the stop comes before step 12: a vote is read two steps later.
    text = stopped("regular", "output.save_on_stop=false", "output.save_every_samples=48", expect=143, at=7)
    assert "the same command goes on after step 6" in text, text[-1500:]
    done = site.run("output.dir=regular", "train.max_steps=12", "output.save_on_stop=false", "output.save_every_samples=48")
    assert "resuming after step" in done.stderr, done.stderr
    text = stopped("saved", expect=75)
    done = site.run("output.dir=saved", "train.max_steps=12", extra=["--dry-run"])
    assert "it goes on from the newest whole of 1 checkpoint, the last of step" in done.stdout, done.stdout
    done = site.run("output.dir=saved", "train.max_steps=11", extra=["--dry-run"], expect=73)
    assert "train.max_steps was 12, is 11" in last_line(done.stderr), done.stderr

    tiny = "set:110000@disk-free"
    done = site.run("output.dir=full", "lora=null", "train.max_steps=1", TRIREME_FAULT=tiny)
    warning = [line for line in done.stderr.splitlines() if "the checkpoint that a stop by a signal saves does not fit" in line]
    assert warning and "everything since the beginning" in warning[0] and "output.save_on_stop: false" in warning[0], done.stderr
    done = site.run("output.dir=want-none", "lora=null", "train.max_steps=1", "output.save_on_stop=false", TRIREME_FAULT=tiny)
    assert "does not fit" not in done.stderr, done.stderr
    for extra in ([], ["--dry-run"]):
        done = site.run("output.dir=none-fits", "lora=null", "output.save_on_stop=false", extra=extra, expect=73, TRIREME_FAULT="set:9000@disk-free")
        assert "what this run writes at its end does not fit" in last_line(done.stderr), done.stderr
    done = site.run("output.dir=regular-full", "lora=null", "output.save_every_samples=16", expect=73, TRIREME_FAULT=tiny)
    assert "the checkpoints of this run do not fit" in last_line(done.stderr), done.stderr
    dry = site.run("output.dir=regular-dry", "lora=null", "output.save_every_samples=16", extra=["--dry-run"], expect=73, TRIREME_FAULT=tiny)
    assert last_line(dry.stderr).replace("regular-dry", "regular-full") == last_line(done.stderr), (dry.stderr, done.stderr)
    # With --ranks the run is for other machines: it is planned, and what this disk lacks is said.
    for changes, says in ((["output.dir=regular-dry"], "the checkpoints of this run do not fit"), (["output.dir=/proc/none"], "cannot create directory")):
        dry = site.run("lora=null", "output.save_every_samples=16", *changes, extra=["--dry-run", "--ranks", "1", "--device-memory-gib", "80"], TRIREME_FAULT=tiny)
        assert "memory per rank:" in dry.stdout and "would end with exit code 73: " in dry.stdout and says in dry.stdout, dry.stdout
    # "All" checkpoints, as importers write it: not more than the run saves.
    site.run("output.dir=all", "lora=null", "output.save_every_samples=16", "output.keep_last=2147483647", extra=["--dry-run"])
    site.run("output.dir=all", "lora=null", "output.save_every_minutes=10", "output.keep_last=2147483647", extra=["--dry-run"])


def write_headers(folder, layers=80, hidden=8192, ffn=28672, vocab=32000, kv=1024, files=15):
    """The files of a Llama2-70B with their headers right and their contents holes."""
    os.makedirs(folder)
    tensors = [("model.embed_tokens.weight", [vocab, hidden]), ("model.norm.weight", [hidden]), ("lm_head.weight", [vocab, hidden])]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors += [(prefix + "self_attn.q_proj.weight", [hidden, hidden]), (prefix + "self_attn.k_proj.weight", [kv, hidden]),
                    (prefix + "self_attn.v_proj.weight", [kv, hidden]), (prefix + "self_attn.o_proj.weight", [hidden, hidden]),
                    (prefix + "mlp.gate_proj.weight", [ffn, hidden]), (prefix + "mlp.up_proj.weight", [ffn, hidden]),
                    (prefix + "mlp.down_proj.weight", [hidden, ffn]), (prefix + "input_layernorm.weight", [hidden]),
                    (prefix + "post_attention_layernorm.weight", [hidden])]
    weight_map = {}
    for number in range(files):
        name, header, offset = f"model-{number + 1:05}-of-{files:05}.safetensors", {}, 0
        for tensor, shape in tensors[number::files]:
            size = 2 * int(np.prod(shape))
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
            weight_map[tensor], offset = name, offset + size
        text = json.dumps(header).encode()
        with open(f"{folder}/{name}", "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + offset)
    json.dump({"metadata": {}, "weight_map": weight_map}, open(f"{folder}/model.safetensors.index.json", "w"))
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 64,
               "num_key_value_heads": 8, "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
               "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu"}, open(f"{folder}/config.json", "w"))


def large_model(site):
    """--dry-run of a 70B directory reads headers only."""
    write_headers(f"{site.work}/70b")
    command = site.command("model.path=70b", "data.valid=null", "lora.r=16", extra=["--dry-run", "--ranks", "8", "--device-memory-gib", "141"])
    took = []
    for _ in range(2):
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = (stream.read().decode() for stream in (process.stdout, process.stderr))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0 and "68,9" in out, (process.returncode, out, err)
        took.append((usage.ru_utime + usage.ru_stime, time.monotonic() - begin))
    print("dry run of 70B: seconds of processor and wall:", took)
    assert min(seconds for seconds, _ in took) < (10 if sanitized(site.args.bin) else 2), took
    # One file cut off by a byte is found by the header alone.
    cut = f"{site.work}/70b/model-00007-of-00015.safetensors"
    os.truncate(cut, os.path.getsize(cut) - 1)
    done = site.run("model.path=70b", extra=["--dry-run"], expect=4)
    assert "model-00007-of-00015.safetensors: is truncated" in last_line(done.stderr), done.stderr


def cache_clear(site):
    """The MLPerf log says what is known of the caches."""
    for said, value in (("true", True), ("false", False), (None, None)):
        run = f"caches-{said}"
        environment = {} if said is None else {"TRIREME_CACHES_CLEARED": said}
        done = site.run(f"output.dir={run}", "logging.mlperf=true", "train.max_steps=1", "data.valid=null", remove=("TRIREME_CACHES_CLEARED",), MLPERF_SUBMISSION_DIVISION="open", **environment)
        events = [json.loads(line[len(":::MLLOG "):]) for line in open(f"{site.work}/{run}/mllog.log")]
        found = [event["value"] for event in events if event["key"] == "cache_clear"]
        assert found == ([] if value is None else [value]), (said, found)
        assert ("has no cache_clear" in done.stderr) == (said is None), done.stderr


def descriptors(site):
    """Output that cannot be written is no success; no file of a run gets the number of a closed descriptor; a run ends as it would with its lines."""
    def onto(command, redirection):
        return subprocess.run(["sh", "-c", f'exec "$@" {redirection}', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=site.limit_s)

    tool = f"{site.args.bin}/trireme"
    commands = [[tool, "--help"], [tool, "plot", f"{site.work}/run/metrics.jsonl"], [f"{site.args.bin}/train_llama", "--version"],
                site.command(extra=["--print-config"])]
    constant = ("schedule.name=constant", "output.save_every_samples=8")
    site.run(*constant, "train.max_steps=4")
    for command, redirection in [(command, ">/dev/full") for command in commands] + [(commands[0], ">&-")]:
        done = onto(command, redirection)
        assert done.returncode == 73 and "cannot write to stdout" in last_line(done.stderr), (command, redirection, done)
    assert onto([tool, "nothing"], "2>/dev/full").returncode == 2
    for name, redirection in (("closed", "<&- >&- 2>&-"), ("full", ">/dev/full")):
        for steps in (2, 4):
            done = onto(site.command(f"output.dir={name}", f"train.max_steps={steps}", *constant), redirection)
            assert done.returncode == 0, (name, done)
            assert name == "closed" or "warning: cannot write to stdout: No space left" in done.stderr, done.stderr
            # A line of a program that wrote into the file: the steps after it stay.
            lines = open(f"{site.work}/{name}/metrics.jsonl").read().splitlines(keepends=True)
            open(f"{site.work}/{name}/metrics.jsonl", "w").writelines([*lines[:2], "12:00:00 saved\n", "7\n", *lines[2:]] if steps == 2 else lines)
        assert site.numbers(name)[0] == site.numbers("run")[0], name  # and every line is JSON


def several(*cases):
    def run(site):
        for case in cases:
            case(site)
    return run


if __name__ == "__main__":
    main({"ranks": several(plan_ranks, plan_differs, views), "claim": claim, "checks": several(checks, large_model), "descriptors": descriptors, "stops": stops,
          "machine": several(cache_clear, devices)}, Site)
