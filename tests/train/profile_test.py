#!/usr/bin/env python3
"""Traces of a run: which steps, what is in them, what HTA and `trireme profile summarise` read. Exit code 77 = skipped."""
import gzip
import json
import os
import re
import subprocess
import sys

from run_site import RunSite, main, needed, np

SEQ, VOCAB = 32, 96
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Site(RunSite):
    program = "train_llama"

    def __init__(self, args, work):
        super().__init__(args, work)
        self.make_llama(2, VOCAB, 64)
        np.save(f"{work}/train.npy", np.random.default_rng(5).integers(0, VOCAB, size=(40, SEQ)).astype(np.int32))
        with open(f"{work}/run.yaml", "w") as out:
            out.write(f"""model: {{path: base}}
data: {{train: train.npy, seq_length: {SEQ}}}
batch: {{global_batch_size: 4, micro_batch_size: 1}}
train: {{max_steps: 8}}
output: {{dir: run}}
""")

    def files(self, run):
        folder = f"{self.work}/{run}/profile"
        return sorted(os.listdir(folder)) if os.path.exists(folder) else None

    def trace(self, run, name):
        with gzip.open(f"{self.work}/{run}/profile/{name}", "rt") as file:
            return json.load(file)

    def two_ranks(self, run):
        """Sharded training on two ranks, two cycles of two steps, with a checkpoint in the first."""
        self.train("parallel.shard_size=2", "parallel.policy=full", "profile.wait=1", "profile.warmup=1", "profile.active=2", "profile.repeat=2", "profile.ranks=all",
                   "profile.memory=true", "output.save_every_samples=12", f"output.dir={run}", ranks=2)


def spans(trace, category):
    return [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") == category]


def steps_of(trace):
    return sorted({event["name"] for event in spans(trace, "user_annotation") if event["name"].startswith("ProfilerStep")})


def inside(inner, outer):
    return inner["tid"] == outer["tid"] and outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.01


def ranks(site):
    site.two_ranks("run")
    traces = [f"rank{rank}.{cycle}.pt.trace.json.gz" for rank in (0, 1) for cycle in (1, 2)]
    others = [f"rank{rank}.{cycle}.memory.{kind}" for rank in (0, 1) for cycle in (1, 2) for kind in ("tsv", "txt")]
    assert site.files("run") == sorted(traces + others), site.files("run")
    for rank in (0, 1):
        for cycle, steps in ((1, [3, 4]), (2, [7, 8])):
            name = f"rank{rank}.{cycle}.pt.trace.json.gz"
            text = gzip.open(f"{site.work}/run/profile/{name}", "rt").read()
            head = text[:text.index('"traceEvents"')]
            assert re.search(r'"rank":\s+%d\b' % rank, head), f"{name}: HTA does not find the rank in\n{head[:2000]}"
            assert text.count('"distributedInfo"') == 1, f"{name} has {text.count('distributedInfo')} distributedInfo"
            trace = json.loads(text)
            assert trace["distributedInfo"] == {"backend": "mpi", "rank": rank, "world_size": 2}, trace["distributedInfo"]
            assert steps_of(trace) == [f"ProfilerStep#{step}" for step in steps], f"{name}: {steps_of(trace)}"
    trace = site.trace("run", "rank1.1.pt.trace.json.gz")
    ranges = spans(trace, "user_annotation")
    names = [event["name"] for event in ranges]
    for name in ("data", "forward", "backward", "optimizer", "checkpoint", "layers.0", "layers.1", "attention", "mlp", "loss_head", "all_gather layers.1",
                 "reduce_scatter layers.1", "reduce_scatter embed", "layers.0 backward", "embed backward"):
        assert name in names, f"no range {name} in {sorted(set(names))}"
    assert names.count("forward") == 4, "two steps of two micro-batches"
    assert names.count("layers.1 backward") == 4 and names.count("layers.1") == 4, "each block has both ranges in each micro-batch"
    assert not [name for name in names if re.search("dma|Memcpy|Memset|Sync", name)], names
    for outer, inner in (("forward", "layers.1"), ("layers.1", "attention"), ("layers.1", "mlp"), ("backward", "mlp"), ("ProfilerStep#3", "optimizer"), ("backward", "layers.0 backward"),
                         ("layers.1 backward", "mlp"), ("backward", "embed backward")):
        assert any(inside(i, o) for i in ranges if i["name"] == inner for o in ranges if o["name"] == outer), f"no {inner} inside {outer}"
    operations = spans(trace, "cpu_op")
    assert any(event["name"].startswith("autograd::engine::evaluate_function") for event in operations), "backward's nodes are not recorded"
    found = [event["args"] for event in operations if event["name"] == "record_param_comms"]
    kinds = {args["Collective name"] for args in found}
    assert {"_allgather_base", "_reduce_scatter_base", "allreduce"} <= kinds, kinds
    for args in found:
        assert args["Group size"] == 2 and args["Rank"] == 1 and args["Process Group Ranks"] == "[0, 1]", args
    gathers = [args for args in found if args["Collective name"] == "_allgather_base"]
    assert all(args["Out msg nelems"] == 2 * args["In msg nelems"] > 0 and args["dtype"] == "Float" for args in gathers), gathers[:3]
    assert any(event["name"] == "[memory]" for event in trace["traceEvents"])
    table = open(f"{site.work}/run/profile/rank0.1.memory.txt").read()
    assert "backward > mlp" in table and "forward > attention" in table, table
    timeline = open(f"{site.work}/run/profile/rank0.1.memory.tsv").read().splitlines()
    assert timeline[0].split("\t") == ["us", "device", "bytes", "allocated", "reserved", "range"] and len(timeline) > 50
    # Recording changes nothing of what is computed.
    site.train("parallel.shard_size=2", "parallel.policy=full", "output.dir=plain", ranks=2)
    assert site.files("plain") is None, "a run without a profile leaves no folder"
    assert [line["loss"] for line in site.metrics("run")] == [line["loss"] for line in site.metrics("plain")]


def schedules(site):
    # The short form is one step of rank 0, with the table in the log.
    done = site.train("logging.profile_step=3", "output.dir=short")
    assert site.files("short") == ["rank0.1.pt.trace.json.gz"], site.files("short")
    assert steps_of(site.trace("short", "rank0.1.pt.trace.json.gz")) == ["ProfilerStep#3"]
    assert "timeline of step 3: " in done.stdout + done.stderr and "exposed communication" in done.stdout + done.stderr
    assert "gpuGetDeviceCount" not in done.stdout + done.stderr
    site.train("logging.profile_step=1", "output.dir=first")
    assert steps_of(site.trace("first", "rank0.1.pt.trace.json.gz")) == ["ProfilerStep#1"]
    # Cycles without gaps, until the run ends; the last one is cut short.
    done = site.train("profile.wait=0", "profile.warmup=0", "profile.active=3", "profile.repeat=0", "output.dir=always")
    assert site.files("always") == [f"rank0.{cycle}.pt.trace.json.gz" for cycle in (1, 2, 3)], site.files("always")
    found = [steps_of(site.trace("always", name)) for name in site.files("always")]
    assert found == [[f"ProfilerStep#{step}" for step in steps] for steps in ([1, 2, 3], [4, 5, 6], [7, 8])], found
    assert "the run ends after step 8, before the last active step of cycle 3" in done.stdout + done.stderr
    # Only the ranks that were named.
    site.train("profile.wait=0", "profile.warmup=1", "profile.active=1", "profile.ranks=[1]", "output.dir=one", ranks=2)
    assert site.files("one") == ["rank1.1.pt.trace.json.gz"], site.files("one")
    done = site.train("profile.ranks=[2]", "output.dir=none", ranks=2, expect=2)
    assert "profile.ranks has rank 2, the run has 2 ranks" in done.stderr, done.stderr
    # The schedule of a run that goes on counts from where it goes on.
    resumed = ["profile.wait=1", "profile.warmup=0", "profile.active=1", "output.save_every_samples=4", "output.dir=resumed"]
    site.train("train.max_steps=2", *resumed)
    site.train("train.max_steps=4", *resumed)
    assert steps_of(site.trace("resumed", "rank0.1.pt.trace.json.gz")) == ["ProfilerStep#4"]
    done = site.train("train.max_steps=5", *resumed)
    assert "nothing is recorded, its first active step would be 6, the last step is 5" in done.stdout + done.stderr, done.stdout + done.stderr
    # Nsight Systems needs CUPTI for itself.
    command = site.command("profile.wait=0", "output.dir=nsight")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NSYS_PROFILING_SESSION_ID": "7"})
    assert done.returncode == 0 and "Nsight Systems traces this process" in done.stdout + done.stderr, done.stderr
    assert site.files("nsight") is None
    # A trace that cannot be written does not end the run.
    blocked = ("output.dir=blocked", "output.save_every_samples=8")
    site.train("train.max_steps=2", *blocked)
    open(f"{site.work}/blocked/profile", "w").close()
    done = site.train("profile.wait=0", "profile.warmup=0", "profile.active=2", *blocked)
    assert "warning: the profile of steps 3 to 4 is not written: " in done.stdout + done.stderr and os.path.isdir(f"{site.work}/blocked/model"), done.stderr
    # A failure in a recorded step leaves the trace up to it and the state of memory.
    done = site.train("optimizer.lr=1e30", "optimizer.grad_clip=0", "profile.wait=0", "profile.warmup=0", "profile.active=8", "profile.memory=true",
                      "output.dir=fails", expect=70)
    assert {"rank0.1.pt.trace.json.gz", "rank0.1.memory.txt", "rank0.failure.memory.txt"} <= set(site.files("fails")), site.files("fails")
    assert "memory at the failure" in done.stdout + done.stderr
    assert steps_of(site.trace("fails", "rank0.1.pt.trace.json.gz"))[0] == "ProfilerStep#1"


def gpu_trace(rank):
    """Two steps of 1,000 us each with the kernels of a GPU: computation 0..600, NCCL 400..800, a copy 850..900."""
    events = []

    def add(category, name, begin, duration, thread, **args):
        process = 0 if category in ("kernel", "gpu_memcpy", "gpu_user_annotation") else 4242
        events.append({"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": begin, "dur": duration, "args": args})

    number = 0

    def kernel(category, name, begin, duration, stream):
        nonlocal number
        number += 1
        add("cuda_runtime", "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel", begin - 50, 5, 4242, correlation=number)
        add(category, name, begin + 10, duration, stream, stream=stream, correlation=number, device=0)

    for step in (7, 8, 9):
        start = 100000.0 + (step - 7) * 1000
        add("user_annotation", f"ProfilerStep#{step}", start - 60, 1000, 4242)
        add("gpu_user_annotation", f"ProfilerStep#{step}", start, 1000, 7)
        add("cpu_op", "aten::mm", start - 55, 10, 4242, **{"External id": number})
        kernel("kernel", "nvjet_tst_128x256", start, 400, 7)
        kernel("kernel", "void trireme::kernels::swiglu_kernel", start + 400, 200, 7)
        kernel("kernel", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", start + 400, 400, 20)
        kernel("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + 850, 50, 7)
    return {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "displayTimeUnit": "ms", "traceEvents": events}


def cpu_trace():
    """One step of 1,000 us: forward 0..600 with an operation 100..500, the optimizer's operation 600..900."""
    spans = (("user_annotation", "ProfilerStep#5", 0, 1000), ("user_annotation", "forward", 0, 600), ("cpu_op", "aten::mm", 100, 400),
             ("user_annotation", "optimizer", 600, 300), ("cpu_op", "aten::add_", 600, 300))
    return {"traceEvents": [{"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": 1e5 + begin, "dur": length, "args": {}} for kind, name, begin, length in spans]}


def write_gpu_traces(site, folder):
    os.makedirs(f"{site.work}/{folder}")
    for rank in (0, 1):
        with gzip.open(f"{site.work}/{folder}/rank{rank}.1.pt.trace.json.gz", "wt") as out:
            json.dump(gpu_trace(rank), out)


def summarise(site):
    write_gpu_traces(site, "gpu")
    done = site.tool("profile", "summarise", "gpu", "--output", "pages/gpu.html")
    # From the first kernel to the last: 2,900 us, computation 1,800, communication 1,200 of which 600 exposed, copies 150, idle the rest.
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("1 "))
    assert row[:9] == ["1", "1", "3", "2.90", "62.1%", "41.4%", "20.7%", "5.2%", "12.1%"], row
    for line in (r"products +1\.20 +41\.4% +3 ", r"SwiGLU +0\.60 +20\.7% +3 ", r"NCCL +1\.20 +41\.4% +3 ", r"copies +0\.15 +5\.2% +3 "):
        assert re.search(line, done.stdout), f"no /{line}/ in\n{done.stdout}"
    page = open(f"{site.work}/pages/gpu.html").read()
    assert "ProfilerStep#8" in page and "prefers-color-scheme:dark" in page
    assert not re.search(r"https?:|<script|src=|@import|url\(", page), "the page must need no network"

    # On a CPU the classes hold the time of their ranges, with operations and without: together the whole time.
    os.makedirs(f"{site.work}/cpu/profile")
    json.dump(cpu_trace(), open(f"{site.work}/cpu/profile/rank0.1.pt.trace.json", "w"))
    done = site.tool("profile", "summarise", "cpu")
    shares = re.findall(r"^(\S.*?) +\d+\.\d\d +(\d+\.\d)%(.*)$", done.stdout.split("\n\n")[1], re.M)
    assert ("no operation running", "30.0", "   part of the rows above") in shares, done.stdout
    assert sum(float(share) for _, share, of in shares if "rows above" not in of and " of " not in of) == 100, done.stdout
    os.makedirs(f"{site.work}/bare")
    open(f"{site.work}/bare/metrics.jsonl", "w").close()
    assert "bare/profile does not exist: name the output.dir of a run with the section 'profile'" in site.tool("profile", "summarise", "bare", expect=3).stderr

    site.two_ranks("run")
    done = site.tool("profile", "summarise", "run", "--output", "cpu.html")
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:5]] == [["0", "1"], ["0", "2"], ["1", "1"], ["1", "2"]], done.stdout
    for label in ("rank0.2.pt.trace.json.gz: rank 0, cycle 2", "rank1.1.pt.trace.json.gz: rank 1, cycle 1"):
        assert label in done.stdout, done.stdout
    assert all(f"Rank 1 of 2, cycle {cycle} <small>" in open(f"{site.work}/cpu.html").read() for cycle in (1, 2))
    for name in ("communication", "attention", "mlp", "optimizer"):
        assert re.search(rf"^{name} +\d+\.\d\d ", done.stdout, re.M), f"no class {name} in\n{done.stdout}"
    assert len(open(f"{site.work}/cpu.html").read()) > 10000

    # What a trace holds does not become markup or terminal control.
    evil = gpu_trace(0)
    evil["traceEvents"][3]["name"] = "<script>alert(1)</script>\u001b[2J"
    json.dump(evil, open(f"{site.work}/evil.json", "w"))
    done = site.tool("profile", "summarise", "evil.json", "--output", "evil.html")
    assert "\x1b" not in done.stdout and "<script" not in open(f"{site.work}/evil.html").read()
    # Only a page is replaced.
    site.tool("profile", "summarise", "gpu", "--output", "evil.html")
    open(f"{site.work}/mine.html", "w").write("mine")
    assert "name another file" in site.tool("profile", "summarise", "gpu", "--output", "mine.html", expect=2).stderr
    assert open(f"{site.work}/mine.html").read() == "mine"


def hostile(site):
    good = json.dumps(gpu_trace(0)).encode()
    packed = gzip.compress(good)
    event = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, %s}]}'
    cases = {
        "cut.json": good[:-200], "cut.json.gz": packed[:len(packed) // 2], "flipped.json.gz": packed[:60] + bytes([packed[60] ^ 255]) + packed[61:],
        "empty.json": b"", "text.json": b"a\033[2J text", "list.json": b"[1, 2]", "none.json": b'{"traceEvent": []}', "nul.json": b"\0" * 1000,
        "deep.json": b'{"a": ' + b"[" * 100000, "late.json": event.encode() % b'"dur": 3', "open.json": event.encode() % b'"ts": 3',
        "negative.json": event.encode() % b'"ts": 3, "dur": -1', "huge.json": event.encode() % b'"ts": 1e300, "dur": 1', "string.json": event.encode() % b'"ts": "3", "dur": 1',
        "rank.json": b'{"distributedInfo": {"rank": -1}, "traceEvents": []}', "large.json": b'{"distributedInfo": {"rank": 1e40}, "traceEvents": []}',
        "utf8.json": good.replace(b"nvjet", b"nv\xffjet", 1), "digits.json": event.encode() % (b'"ts": ' + b"1" * 10000),
    }
    for name, content in cases.items():
        open(f"{site.work}/{name}", "wb").write(content)
        done = site.tool("profile", "summarise", name, expect=3)
        assert name in done.stderr and re.search(r"byte \d+", done.stderr), f"{name}: {done.stderr}"
        assert len(done.stderr) < 2000 and "\x1b" not in done.stderr, done.stderr[:3000]
    os.makedirs(f"{site.work}/folder")
    for where, says in (("folder", "has no trace"), ("nowhere", "does not exist")):
        assert says in site.tool("profile", "summarise", where, expect=3).stderr
    # A trace without steps, one without anything, and one of events inside each other are no errors.
    nested = ",".join(f'{{"ph": "X", "cat": "cpu_op", "name": "k", "pid": 1, "tid": 1, "ts": {i}, "dur": {400000 - 2 * i}}}' for i in range(200000))
    for name, content in (("idle.json", b'{"traceEvents": []}'), ("one.json", event.encode() % b'"ts": 3, "dur": 0'), ("nested.json", f'{{"traceEvents": [{nested}]}}'.encode())):
        open(f"{site.work}/{name}", "wb").write(content)
        site.tool("profile", "summarise", name, "--output", "page.html")


def hta(site):
    with needed():
        import hta.trace_analysis  # noqa: F401

    def tables(folder, cycle=1):
        done = subprocess.run([sys.executable, f"{SOURCE}/scripts/hta_tables.py", f"{site.work}/{folder}", "--cycle", str(cycle)], capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    write_gpu_traces(site, "gpu")
    text = tables("gpu")
    assert "ranks [0, 1], steps [7, 8, 9]" in text, text
    # Of each of two steps on two ranks: 400 us of computation alone, 200 of communication alone, 200 of both. Of the last step HTA keeps what was launched
    # before the GPU's annotation of it begins: the first kernel, 400 us.
    for line in (r"\n +COMPUTATION +2400 ", r"\n +COMMUNICATION +800 ", r"COMPUTATION overlapping COMMUNICATION +800 ", r"0 +50\.0\b", r"1 +50\.0\b", r"nvjet_tst_128x256", r"ncclDevKernel_ReduceScatter"):
        assert re.search(line, text), f"no /{line}/ in\n{text}"
    site.two_ranks("run")
    for cycle, steps in ((1, "[3]"), (2, "[7]")):
        text = tables("run/profile", cycle)
        assert f"ranks [0, 1], steps {steps}" in text and "GPU kernels and copies: 0" in text, text
        for rank in (0, 1):
            assert re.search(rf"{rank} +_allgather_base +Float +2 +\[0, 1\]", text), text


if __name__ == "__main__":
    main({"ranks": ranks, "schedules": schedules, "summarise": summarise, "hostile": hostile, "hta": hta}, Site)
