#!/usr/bin/env python3
"""Resuming from a checkpoint: anywhere in an epoch, on other ranks, with other data or settings, with a concurrent run; and the tool.
Exit code 77 = skipped."""
import glob
import json
import os
import shutil
import subprocess
import time

from checkpoint_site import SAMPLES, STEPS, CheckpointSite, edit_manifest, flip, np, skip
from run_site import go_on, main

EVERY = f"output.save_every_samples={SAMPLES}"  # every step


def four_ranks():
    if (os.cpu_count() or 1) < 2:
        skip("four ranks on one core take too long")


def position(site):
    """F22: resuming in mid-epoch, at the last batch, at the exact end of an epoch and after the first batch of the next (5 steps an
    epoch)."""
    four_ranks()
    for where, newest in (("mid-epoch", 2), ("before the last batch", 4), ("exact epoch end", 5), ("after the first batch", 6)):
        for before, after in ((2, 2), (2, 1), (1, 4)):
            run = f"{where.replace(' ', '-')}-{before}-{after}"
            # The save of a step waits until the previous save is committed.
            site.run(EVERY, f"output.dir={run}", ranks=before, faults=f"sigkill@step:rank0:step{newest + 2}", expect="killed")
            assert site.whole(run)[-1] == f"step-{newest:08}", (run, site.whole(run))
            done = site.run(EVERY, f"output.dir={run}", ranks=after)
            assert f"resuming after step {newest}" in done.err, done.err
            check(site, run, before, after)
            site.report(f"F22 {where}, {before} to {after} ranks", f"resumed after step {newest}, every sample once in its place", done.seconds)


def check(site, run, before, after):
    """The loss of a step is a function of its samples: equal losses mean the same samples in the same order."""
    got, want = site.numbers(run), site.reference()
    assert [g[:2] for g in got] == [w[:2] for w in want], "steps or sample counts differ"
    for a, b in zip(got, want):
        assert abs(a[2] - b[2]) <= 2e-6 * abs(b[2]), (run, a, b)
    if before == after:
        assert got == site.reference(ranks=after), f"{run}: not equal to the bit on {after} ranks"


def world(site):
    """The same run on 1, 2, 4 and 1 ranks, sharded and not, LoRA and full: same samples in the same order, same numbers."""
    four_ranks()
    for kind, overrides in (("lora", ()), ("full", ("lora=null",))):
        reference = site.reference(*overrides)
        begin = time.time()
        for ranks, shard, step in ((1, 1, 4), (2, 2, 6), (4, 2, 8), (4, 4, 10), (1, 1, 0)):
            faults = f"sigkill@step:rank0:step{step}" if step else ""
            done = site.run(EVERY, *overrides, f"output.dir={kind}", f"parallel.shard_size={shard}", ranks=ranks, faults=faults,
                            expect="killed" if step else 0)
            assert step == 4 or "resuming after step" in done.err, done.err
        assert "it was written by 4 ranks with shard size 4" in done.err or kind == "lora", done.err
        got = site.numbers(kind)
        assert [g[:2] for g in got] == [r[:2] for r in reference]
        worst = max(abs(a[2] - b[2]) / abs(b[2]) for a, b in zip(got, reference))
        assert worst < 2e-6, worst
        site.report(f"{kind}: 1, 2 (shards of 2), 4 (2), 4 (4), 1 ranks", f"worst loss difference {worst:.1e}", time.time() - begin)


def elastic(site):
    """The same global batch on 4, 2, 1 and 4 ranks, each stopped by SIGTERM (a requeue on other numbers of nodes): the
    micro-batches per rank adapt, the samples and their order stay."""
    reference = site.reference("lora=null")
    begin = time.time()
    lives = ((4, 3), (2, 6), (1, 9), (4, 0))
    for ranks, step in lives:
        # mpirun ends with the ranks' code.
        done = site.run("lora=null", "output.dir=elastic", ranks=ranks, faults=f"sigterm@step:rank0:step{step}" if step else "", expect=75 if step else 0)
        assert (ranks, step) == lives[0] or "resuming after step" in done.err, done.err[-3000:]
    got = site.numbers("elastic")
    assert [g[:2] for g in got] == [r[:2] for r in reference], got
    worst = max(abs(a[2] - b[2]) / abs(b[2]) for a, b in zip(got, reference))
    assert worst < 2e-6, worst
    # The first life is that of four ranks, to the bit.
    four = site.reference("lora=null", ranks=4)
    assert got[:3] == four[:3], (got[:3], four[:3])
    site.report("4, 2, 1 and 4 ranks by SIGTERM", f"every sample once in its place, worst loss difference {worst:.1e}", time.time() - begin)


def trainers_of(pid):
    """The processes of train_llama below `pid`."""
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        for child in open(task).read().split():
            yield from [int(child)] if "train_llama" in open(f"/proc/{child}/comm").read() else trainers_of(child)


def changed_data(site):
    """F23: rows edited, list reordered, a file replaced; a file that was moved with the same content is accepted."""
    work = site.work
    rows = np.load(f"{work}/train.npy")
    np.save(f"{work}/first.npy", rows[:20])
    np.save(f"{work}/second.npy", rows[20:])
    two = "data.train=[first.npy, second.npy]"
    site.stopped("origin", two)
    reference = site.reference(two)
    site.copy("origin", "moved")
    os.makedirs(f"{work}/elsewhere")
    for name in ("first.npy", "second.npy"):
        shutil.copy(f"{work}/{name}", f"{work}/elsewhere/{name}")
    done = site.run("data.train=[elsewhere/first.npy, elsewhere/second.npy]", "output.dir=moved")
    assert "continuing with a changed setting: data.train" in done.err and site.numbers("moved") == reference
    site.report("F23 files moved, same content", "resumed, losses equal to the bit", done.seconds)
    site.copy("origin", "reordered")
    done = site.run("data.train=[second.npy, first.npy]", "output.dir=reordered", expect=3)
    assert "training data changed" in done.last and "first.npy" in done.last and "--allow-changed-data" in done.last, done.err
    site.report("F23 list reordered", "exit 3: " + done.last[:160], done.seconds)
    site.copy("origin", "edited")
    rows[3, 5] = (rows[3, 5] + 1) % 100
    np.save(f"{work}/first.npy", rows[:20])
    done = site.run(two, "output.dir=edited", expect=3, ranks=2)
    assert "training data changed" in done.err, done.err
    done = site.run(two, "output.dir=edited", extra=["--allow-changed-data"])
    assert "going on, as --allow-changed-data says" in done.err and len(site.numbers("edited")) == STEPS
    site.report("F23 one token edited", "exit 3; with --allow-changed-data it goes on", done.seconds)
    done = site.run("data.train=train.npy", "output.dir=origin", expect=3)
    assert "1 files where there were 2" in done.last, done.err
    flip(f"{work}/base/model.safetensors", -1)
    np.save(f"{work}/first.npy", np.load(f"{work}/train.npy")[:20])
    done = site.run(two, "output.dir=origin", expect=4)
    assert "base model changed" in done.last, done.err
    site.report("F23 base model edited", "exit 4: " + done.last[:160], done.seconds)


def races(site):
    """F33: a second run in the same directory; a reader while checkpoints are created and removed."""
    # The checkpoints may lie elsewhere: they are still those of the run that names them.
    os.makedirs(f"{site.work}/shared")
    os.makedirs(f"{site.work}/fast/checkpoints")
    os.symlink(f"{site.work}/fast/checkpoints", f"{site.work}/shared/checkpoints")
    process = site.start(EVERY, "output.dir=shared", ranks=2, faults="sigstop@step:step6")
    begin = time.time()
    while not site.whole("shared"):
        assert process.poll() is None and time.time() - begin < 60, process.communicate()[1]
        time.sleep(0.05)
    os.symlink(f"{site.work}/shared", f"{site.work}/named")
    for path in (f"{site.work}/shared", f"{site.work}/shared/checkpoints", f"{site.work}/shared/checkpoints/", f"{site.work}/named", f"{site.work}/named/checkpoints"):
        pruned = subprocess.run([f"{site.args.bin}/trireme", "checkpoint", "prune", path], capture_output=True, text=True)
        assert pruned.returncode == 73 and "a run is training in" in pruned.stderr, (path, process.poll(), pruned.stdout, pruned.stderr)
    if os.geteuid() == 0:  # another user, who can remove files of the run and not write its lock; then not read it
        for folder, _, _ in os.walk(f"{site.work}/shared"):
            os.chmod(folder, 0o777)
        os.chmod(site.work, 0o755)
        for mode, says in ((0o644, "a run is training in"), (0o600, "a run may be training in")):
            os.chmod(f"{site.work}/shared/.lock", mode)
            pruned = subprocess.run([f"{site.args.bin}/trireme", "checkpoint", "prune", f"{site.work}/shared"], capture_output=True, text=True, user=65534, group=65534, extra_groups=[])
            assert pruned.returncode == 73 and says in pruned.stderr, (mode, pruned.stdout, pruned.stderr)
    second = site.run(EVERY, "output.dir=shared", ranks=2, expect=73)
    owner = "in use by another run (run "
    assert owner in second.err and "on host" in second.err and "process" in second.err, second.err
    for pid in trainers_of(process.pid):
        go_on(pid)
    listings = 0
    while process.poll() is None:
        listed = subprocess.run([f"{site.args.bin}/trireme", "checkpoint", "ls", f"{site.work}/shared"], capture_output=True, text=True)
        assert listed.returncode in (0, 4), listed.stderr
        listings += 1
    assert process.wait() == 0, process.communicate()[1]
    site.same("shared", EVERY, ranks=2)
    site.report("F33 second run in the same output.dir", "exit 73: " + [line for line in second.err.splitlines() if owner in line][0][:200], second.seconds)
    site.report("F33 readers during retention", f"{listings} listings, the run unharmed", time.time() - begin)
    # Two at the same time: one trains, the other is refused, whichever is first.
    pair = [site.start("output.dir=pair", ranks=2) for _ in range(2)]
    codes = sorted(p.wait(timeout=120) for p in pair)
    assert codes == [0, 73], (codes, [p.communicate()[1][-800:] for p in pair])
    site.same("pair", ranks=2)
    site.report("F33 two started at once", "one trained, one was refused", 0.0)
    # Checkpoints of another run are neither counted, nor used, nor removed.
    site.stopped("mine")
    site.stopped("theirs")
    shutil.copytree(f"{site.directory('theirs')}/step-00000006", f"{site.directory('mine')}/step-00000050")
    done = site.run("output.dir=mine")
    assert "it belongs to run" in done.err and "resuming after step 6" in done.err, done.err
    assert "step-00000050" in site.whole("mine") and len(site.whole("mine")) == 3, site.whole("mine")
    site.same("mine")
    site.report("F33 another run's checkpoint", "passed over by its run id, neither counted nor removed", done.seconds)


def configuration(site):
    """A different configuration is refused, naming the keys; keys without influence on the result may change."""
    site.stopped("origin")
    done = site.run("output.dir=origin", "optimizer.lr=2e-3", "train.seed=7", expect=73)
    assert "optimizer.lr was 0.001, is 0.002" in done.last and "train.seed was 1234, is 7" in done.last, done.err
    done = site.run("output.dir=origin", "lora.r=8", expect=73)
    assert "lora.r was 4, is 8" in done.last
    done = site.run("output.dir=origin", "lora=null", expect=73)
    assert "lora" in done.last and "belongs to another run" in done.last
    done = site.run("output.dir=origin", "logging.every_steps=3", "output.keep_last=3", "eval.every_samples=16")
    for key in ("logging.every_steps was 1, is 3", "output.keep_last was 2, is 3", "eval.every_samples was null, is 16"):
        assert f"continuing with a changed setting: {key}" in done.err, done.err
    assert len(site.whole("origin")) == 3 and len(site.metrics("origin", "eval")) >= 3
    site.same("origin")
    assert "keep_last: 3" in open(f"{site.work}/origin/config.yaml").read()
    site.report("configuration", "deciding keys refused by name, the others may change", done.seconds)
    # A checkpoint of a version with fewer keys belongs to the same run; one with other values of its keys does not.
    site.stopped("keys")
    newest, older = f"{site.directory('keys')}/step-00000006", f"{site.directory('keys')}/step-00000004"
    edit_manifest(newest, lambda m: m.update(config=m["config"].replace("lr: 0.001", "lr: 0.002"), config_hash="0" * 16))
    edit_manifest(older, lambda m: m.update(config=m["config"].replace("  shuffle: true\n", ""), config_hash="0" * 16))
    done = site.run("output.dir=keys")
    assert "another configuration: optimizer.lr was 0.002, is 0.001" in done.err and "resuming after step 4" in done.err, done.err
    site.same("keys")
    site.report("configuration of a checkpoint", "passed over by key, fewer keys accepted", done.seconds)
    # By time: rank 0's clock decides for all.
    done = site.run("output.dir=clock", "output.save_every_samples=null", "output.save_every_minutes=0.005", ranks=2, faults="sleep@step:0.2s")
    assert 2 <= len(site.metrics("clock", "save")) <= STEPS, site.metrics("clock", "save")
    site.same("clock", ranks=2)
    site.report("output.save_every_minutes", f"{len(site.metrics('clock', 'save'))} saves", done.seconds)


def extend(site):
    """The last step of a run is a checkpoint; a higher train.max_steps resumes from it and reports the effect on the schedule."""
    begin = time.time()
    eight = ("output.dir=run", "train.max_steps=8")
    site.run(*eight)
    assert site.whole("run")[-1] == "step-00000008", f"the last step has no checkpoint:  {site.whole('run')}"
    out = site.checkpoint_tool("export", f"{site.work}/run", "--output", f"{site.work}/out").stdout
    assert "adapter after step 8" in out, out
    names = os.listdir(f"{site.work}/out")
    assert sorted(names) == sorted(os.listdir(f"{site.work}/run/adapter")), names
    for name in names:
        assert open(f"{site.work}/out/{name}", "rb").read() == open(f"{site.work}/run/adapter/{name}", "rb").read(), name
    first = site.numbers("run")
    done = site.run(*eight, expect=73)
    assert "finished" in done.last and "train.max_steps" in done.last, done.err
    done = site.run("output.dir=run", "train.max_steps=6", expect=73)
    assert "train.max_steps was 8, is 6" in done.last, done.err
    done = site.run("output.dir=run", faults="sigkill@step:step11", expect="killed")
    for words in ("train.max_steps was 8, is 12", "resuming after step 8", "the cosine schedule"):
        assert words in done.err, done.err
    site.run("output.dir=run")  # a longer run that died resumes as any other
    assert [n[0] for n in site.numbers("run")] == list(range(1, STEPS + 1)) and site.numbers("run")[:8] == first
    site.reference()
    rates, whole = ([m["lr"] for m in site.metrics(run)] for run in ("run", "reference0"))
    assert rates[8:] == whole[8:] and rates[:8] != whole[:8], (rates, whole)
    assert "resuming" not in site.run("output.dir=run", expect=73).err
    # Killed with all written but the record of the end: the same command writes the end again.
    site.run("output.dir=ended", faults="sigkill@finish", expect="killed")
    written = open(f"{site.work}/ended/adapter/adapter_model.safetensors", "rb").read()
    done = site.run("output.dir=ended")
    assert f"resuming after step {STEPS}" in done.err and os.path.exists(f"{site.work}/ended/finished.json"), done.err
    assert open(f"{site.work}/ended/adapter/adapter_model.safetensors", "rb").read() == written
    site.same("ended")
    # The target that a checkpoint's evaluation reached is not that of a run with another target.
    target = ("output.dir=target", "eval.every_samples=16")
    site.run(*target, "eval.target_loss=100", faults="sigkill@save:after_latest:step2", expect="killed")
    site.run(*target, "eval.target_loss=0.1")
    assert len(site.numbers("target")) == STEPS, site.numbers("target")
    assert json.load(open(f"{site.work}/target/summary.json"))["outcome"] == "done"
    # Without regular checkpoints, and with what was trained not writable: a checkpoint keeps it for the next start.
    single = ("output.dir=single", "output.save_every_samples=null")
    process = site.start(*single, faults="sleep@step:0.2s")
    while not os.path.exists(f"{site.work}/single/metrics.jsonl"):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    open(f"{site.work}/single/adapter", "w").close()
    error = process.communicate()[1]
    assert process.returncode == 73 and f"the state after step {STEPS} is saved" in error, error
    os.remove(f"{site.work}/single/adapter")
    site.run(*single)
    for run in ("single", "reference0"):
        assert len(site.numbers(run)) == STEPS
    gone = ("output.dir=gone", "output.save_every_samples=null")
    site.run(*gone, faults="sigkill@step:step5", expect="killed")
    assert "an earlier start of this run ended after step" in site.run(*gone).err
    read = lambda run: open(f"{site.work}/{run}/adapter/adapter_model.safetensors", "rb").read()
    assert read("single") == read("reference0")
    constant = ("schedule.name=constant", "output.dir=constant")
    site.run(*constant, "train.max_steps=6")
    done = site.run(*constant, faults="sigkill@step:step9", expect="killed")
    ends = [name for name in ("summary.json", "finished.json") if os.path.exists(f"{site.work}/constant/{name}")]
    assert "the constant schedule" in done.err and not ends, (ends, done.err)
    site.run(*constant)
    site.same("constant", "schedule.name=constant")
    bare = ("output.dir=bare", "output.save_every_samples=null")
    site.run(*bare, "train.max_steps=2")
    done = site.run(*bare, "train.max_steps=4", expect=73)
    assert "no checkpoint" in done.last and "save_every_samples" in done.last, done.err
    os.remove(f"{site.work}/bare/finished.json")
    done = site.run(*bare, "train.max_steps=4", expect=73)
    assert "ended after it wrote adapter/" in done.last and "no checkpoint" in done.last, done.err
    # The last step's checkpoint is lost: an older model is never exported without a message.
    shutil.rmtree(f"{site.directory('run')}/step-00000012")
    shutil.rmtree(f"{site.work}/out")
    done = site.checkpoint_tool("export", f"{site.work}/run", "--output", f"{site.work}/out", expect=4)
    assert "finished after step 12" in done.stderr and "run/adapter" in done.stderr and "step-00000010" in done.stderr, done.stderr
    out = site.checkpoint_tool("export", f"{site.directory('run')}/step-00000010", "--output", f"{site.work}/out").stdout
    assert "adapter after step 10" in out, out
    site.report("a finished run goes on", "steps 9 to 12 with the longer schedule; constant: equal to the bit", time.time() - begin)


def lives(site):
    """An export that is killed at every start of a container, in which its process always has ID 1."""
    namespace = ["unshare", "--pid", "--fork"] if os.geteuid() == 0 and shutil.which("unshare") else []
    site.run("output.dir=run", "train.max_steps=2")
    out = f"{site.work}/out"
    command = [*namespace, f"{site.args.bin}/trireme", "checkpoint", "export", f"{site.work}/run", "--output", out]
    begin = time.time()
    for life in range(3):
        done = subprocess.run(command, capture_output=True, text=True, env=site.environment("crash@file:commit"))
        assert done.returncode not in (0, 73), f"life {life}: exit {done.returncode}: {done.stderr}"
        left = [name.split(".tmp-")[0] for name in os.listdir(out) if ".tmp-" in name]
        assert sorted(left) == ["adapter_config.json", "adapter_model.safetensors"], os.listdir(out)
    done = subprocess.run(command, capture_output=True, text=True, env=site.environment())
    assert done.returncode == 0 and not [name for name in os.listdir(out) if ".tmp-" in name], (done.stderr, os.listdir(out))
    site.report("export killed at three starts", "the fourth is complete, nothing of the others remains", time.time() - begin)
    if not namespace:
        print("unshare or root is missing: the starts had different process IDs")


def tool(site):
    """trireme checkpoint ls, verify, export, prune."""
    constant = ("schedule.name=constant",)
    for kind, overrides, artefact in (("lora", (), "adapter"), ("full", ("lora=null", "parallel.shard_size=2"), "model")):
        # With a constant learning rate the first eight steps of a longer run equal a run of eight steps.
        site.run(*constant, *overrides, "train.max_steps=8", f"output.dir={kind}8", ranks=2)
        site.run(*constant, *overrides, f"output.dir={kind}12", ranks=2, faults="sigkill@step:step11", expect="killed")
        listing = site.checkpoint_tool("ls", f"{site.work}/{kind}12").stdout
        newest = site.whole(f"{kind}12")[-1]
        assert newest in listing and "whole" in listing, listing
        assert f"{newest}: whole" in site.checkpoint_tool("verify", f"{site.directory(f'{kind}12')}/{newest}/").stdout
        site.checkpoint_tool("export", f"{site.directory(f'{kind}12')}/step-00000008", "--output", f"{site.work}/{kind}-out")
        compared = 0
        for path in glob.glob(f"{site.work}/{kind}8/{artefact}/*"):
            name = os.path.basename(path)
            assert open(path, "rb").read() == open(f"{site.work}/{kind}-out/{name}", "rb").read(), f"{kind} {name} differs from the run's own"
            compared += 1
        assert compared >= 2
        site.checkpoint_tool("export", f"{site.work}/{kind}12", "--output", f"{site.work}/{kind}-out", expect=73)
        before = site.whole(f"{kind}12")
        dry = site.checkpoint_tool("prune", f"{site.work}/{kind}12", "--keep", "1", "--dry-run").stdout
        assert "would remove" in dry and site.whole(f"{kind}12") == before
        site.checkpoint_tool("prune", f"{site.work}/{kind}12", "--keep", "1")
        assert site.whole(f"{kind}12") == before[-1:] and site.leftovers(f"{kind}12") == []
        done = site.run(*constant, *overrides, f"output.dir={kind}12", ranks=2)
        assert f"resuming after step {int(before[-1][5:])}" in done.err
        site.report(f"tool, {kind}", f"export equals the run's own {artefact} ({compared} files), prune kept the newest", done.seconds)
    site.checkpoint_tool("verify", f"{site.work}/nowhere", expect=4)
    site.checkpoint_tool("ls", f"{site.work}/base", expect=4)
    site.checkpoint_tool("prune", f"{site.directory('full12')}/{site.whole('full12')[-1]}", expect=2)


if __name__ == "__main__":
    main({"F22": position, "F23": changed_data, "F33": races, "world": world, "elastic": elastic, "configuration": configuration, "extend": extend, "lives": lives, "tool": tool},
         CheckpointSite)
