#!/usr/bin/env python3
"""Damaged, forged and old checkpoints: each is skipped with its reason, and the newest intact one is used. Exit code 77 = skipped."""
import json
import os
import shutil
import subprocess

from checkpoint_site import CheckpointSite, edit_manifest, flip, make_shim, read_header, write_header
from run_site import main

NEWEST, OLDER = "step-00000006", "step-00000004"


def falls_back(site, fault, what, damage, expect, ranks=0):
    """Damages the newest of two checkpoints; the run says why it skips it, resumes from the older one and ends with the same numbers."""
    run = f"{fault}-{what}".replace(" ", "-").replace("/", "-")
    directory = site.copy(f"base{ranks}", run)
    damage(f"{directory}/{NEWEST}")
    verdict = site.checkpoint_tool("verify", f"{site.work}/{run}", expect=4)
    assert f"{OLDER}: whole" in verdict.stdout and f"{NEWEST}: damaged" in verdict.stdout, verdict.stdout
    done = site.run(f"output.dir={run}", ranks=ranks)
    reason = [line for line in done.err.splitlines() if "is passed over" in line and NEWEST in line]
    assert len(reason) == 1, done.err
    for word in expect:
        assert word in reason[0], (word, reason[0])
    assert "resuming after step 4" in done.err, done.err
    assert os.path.isdir(f"{directory}/{NEWEST}.damaged"), os.listdir(directory)
    site.same(run, ranks=ranks)
    site.report(f"{fault} {what}", reason[0].split("passed over: ")[1][:160], done.seconds)


def refused(site, fault, what, damage, expect, ranks=0):
    """Damages the only checkpoint: exit 4 with the reason; --allow-fresh starts from the beginning."""
    run = f"{fault}-only-{what}".replace(" ", "-").replace("/", "-")
    directory = site.copy(f"base{ranks}", run)
    shutil.rmtree(f"{directory}/{OLDER}")
    damage(f"{directory}/{NEWEST}")
    done = site.run(f"output.dir={run}", ranks=ranks, expect=4)
    assert "none of the 1 checkpoints" in done.last and "--allow-fresh" in done.last, done.err
    for word in expect:
        assert word in done.last, (word, done.last)
    assert "step 1/" not in done.out and "step 7/" not in done.out
    assert os.path.isdir(f"{directory}/{NEWEST}"), "a refused checkpoint stays where it is"
    site.report(f"{fault} {what}", "exit 4: " + done.last[:240], done.seconds)
    return run


def truncated(site):
    """F10: one byte short, empty, header only."""
    site.stopped("base0")
    shard = "rank-00000.safetensors"
    size = os.path.getsize(f"{site.directory('base0')}/{NEWEST}/{shard}")
    header = len(read_header(f"{site.directory('base0')}/{NEWEST}/{shard}")[0]) + 8
    for what, length in (("one byte short", size - 1), ("empty", 0), ("header only", header)):
        falls_back(site, "F10", what, lambda d, n=length: os.truncate(f"{d}/{shard}", n), [shard, str(length), str(size)])
    falls_back(site, "F10", "manifest cut", lambda d: os.truncate(f"{d}/MANIFEST.json", 300), ["MANIFEST.json"])
    falls_back(site, "F10", "manifest empty", lambda d: os.truncate(f"{d}/MANIFEST.json", 0), ["MANIFEST.json"])
    falls_back(site, "F10", "file gone", lambda d: os.remove(f"{d}/{shard}"), [f"{shard} is missing"])
    falls_back(site, "F10", "manifest gone", lambda d: os.remove(f"{d}/MANIFEST.json"), ["never completed"])


def flipped(site):
    """F11: one bit in data, header or manifest; on one and on two ranks."""
    site.stopped("base0")
    site.stopped("base2", ranks=2)
    shard = "rank-00000.safetensors"
    falls_back(site, "F11", "bit in data", lambda d: flip(f"{d}/{shard}", -5000), [shard, "tensor ", "hash"])
    falls_back(site, "F11", "last byte", lambda d: flip(f"{d}/{shard}", -1), [shard, "tensor ", "hash"])
    falls_back(site, "F11", "bit in rank 1's data", lambda d: flip(f"{d}/rank-00001.safetensors", -40), ["rank-00001", "tensor ", "hash"], ranks=2)
    falls_back(site, "F11", "bit in header", lambda d: flip(f"{d}/{shard}", 40), [shard])
    text = open(f"{site.directory('base0')}/{NEWEST}/MANIFEST.json").read()
    for what, at in (("digit in manifest", text.index('"step": ') + 8), ("white space in manifest", 2), ("hash in manifest", text.index('"xxh3": "') + 12)):
        falls_back(site, "F11", what, lambda d, n=at: flip(f"{d}/MANIFEST.json", n), ["MANIFEST.json"])
    # No intact checkpoint.
    refused(site, "F11", "bit in the only one", lambda d: flip(f"{d}/{shard}", -5000), ["tensor ", "hash"])


def wrong_tensors(site):
    """F12: missing and extra files and tensors, duplicates, wrong types and shapes."""
    site.stopped("base2", ranks=2)
    shard = "rank-00001.safetensors"

    def header(change):
        def damage(directory):
            text, data = read_header(f"{directory}/{shard}")
            write_header(f"{directory}/{shard}", change(text), data)
        return damage

    def rehashed(change):
        """As from a faulty writer: the manifest matches the file's size."""
        def damage(directory):
            header(change)(directory)
            size = os.path.getsize(f"{directory}/{shard}")
            edit_manifest(directory, lambda m: m["files"][1].update(bytes=size))
        return damage

    name = '"exp_avg.adapters"'
    refused(site, "F12", "missing shard", lambda d: os.remove(f"{d}/{shard}"), [f"{shard} is missing"], ranks=2)
    refused(site, "F12", "extra shard", lambda d: shutil.copy(f"{d}/{shard}", f"{d}/rank-00002.safetensors"), ["rank-00002.safetensors is there"], ranks=2)
    refused(site, "F12", "wrong type", header(lambda t: t.replace('"dtype":"F32"', '"dtype":"I32"', 1)), [shard, "I32", "F32"], ranks=2)
    count = json.loads(read_header(f"{site.directory('base2')}/{NEWEST}/{shard}")[0])["exp_avg.adapters"]["shape"][0]
    refused(site, "F12", "wrong shape", rehashed(lambda t: t.replace(f'[{count}]', f'[2,{count // 2}]')), [f"[2, {count // 2}]", f"[{count}]"], ranks=2)
    refused(site, "F12", "duplicated tensor", rehashed(lambda t: t.replace(name, '"exp_avg_sq.adapters"')), ["twice"], ranks=2)
    refused(site, "F12", "renamed tensor", header(lambda t: t.replace(name, '"exp_avx.adapters"')), ["lacks tensor exp_avg.adapters", "exp_avx.adapters"],
            ranks=2)
    refused(site, "F12", "elements twice", lambda d: edit_manifest(d, lambda m: m["files"][1]["tensors"][0].update(begin=0)), ["twice"], ranks=2)
    refused(site, "F12", "file named twice", lambda d: edit_manifest(d, lambda m: m["files"].append(m["files"][0])), ["twice"], ranks=2)
    many = [f"rank-{i:05}.safetensors" for i in range(10, 18)]
    run = refused(site, "F12", "many differences", lambda d: [shutil.copy(f"{d}/{shard}", f"{d}/{n}") for n in many], ["; and 3 more"], ranks=2)
    done = site.run(f"output.dir={run}", ranks=2, extra=["--allow-fresh"])
    assert "starting afresh" in done.err, done.err
    site.same(run, ranks=2)
    site.report("F12 --allow-fresh", "started afresh, same numbers", done.seconds)

    def other_model(manifest):
        for tensor in manifest["units"][0]["tensors"][:7]:
            tensor["name"] += ".other"
    refused(site, "F12", "tensors of another model", lambda d: edit_manifest(d, other_model), ["lora_A.weight is missing", "; and 9 more"], ranks=2)


def paths(site):
    """F31: file names in a manifest, and links, that lead out of its directory."""
    site.stopped("base0")
    outside = f"{site.work}/outside.safetensors"
    shutil.copy(f"{site.directory('base0')}/{NEWEST}/rank-00000.safetensors", outside)
    before = sorted(os.listdir(site.work))
    for what, name in (("parent", "../outside.safetensors"), ("absolute", outside), ("long", "x" * 5000), ("NUL", "rank\0"), ("empty", ""),
                       ("manifest itself", "MANIFEST.json"), ("far parent", "a/../../../../../../outside.safetensors")):
        refused(site, "F31", f"name {what}", lambda d, n=name: edit_manifest(d, lambda m: m["files"][0].update(name=n)), ["MANIFEST.json"] if what == "manifest itself" else [])

    def link(directory):
        os.remove(f"{directory}/rank-00000.safetensors")
        os.symlink(outside, f"{directory}/rank-00000.safetensors")
    refused(site, "F31", "link out of the directory", link, ["symbolic link leads out"])
    created = set(os.listdir(site.work)) - set(before)
    assert all(name.startswith("F31-only-") for name in created), created
    site.report("F31", "nothing created outside", 0.0)


def upgrade(site):
    """F37: version 1 (stored fixtures) is read; later versions are refused by number."""
    fixtures = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train", "fixtures")
    work = site.work
    subprocess.run([f"{site.args.bin}/trireme", "init-model", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1",
                    "--intermediate-size", "32", "--vocab-size", "64", "--max-positions", "64", "--output", f"{work}/small"], check=True,
                   capture_output=True)
    import numpy as np
    np.save(f"{work}/small.npy", ((np.arange(12 * 16).reshape(12, 16) * 7 + 3) % 64).astype(np.int32))
    shape = ["model.path=small", "data.train=small.npy", "data.valid=null", "data.seq_length=16", "batch.global_batch_size=4", "optimizer.lr=1e-2",
             "train.max_steps=6", "output.save_every_samples=null"]
    lora = ["lora.r=2", "lora.alpha=4", "lora.dropout=0.1", "lora.target_modules=[q_proj, v_proj]"]
    cases = (("lora", lora, 0, "checkpoint-v1-lora"), ("lora-two-ranks", lora, 2, "checkpoint-v1-lora"),
             ("full", ["lora=null", "parallel.shard_size=2"], 2, "checkpoint-v1-full"), ("full-one-rank", ["lora=null"], 0, "checkpoint-v1-full"))
    for name, overrides, ranks, fixture in cases:
        site.run(*shape, *overrides, f"output.dir=clean-{name}", ranks=ranks)
        os.makedirs(f"{work}/{name}/checkpoints")
        shutil.copytree(f"{fixtures}/{fixture}", f"{work}/{name}/checkpoints/step-00000002")
        text = subprocess.run(site.command(*shape, *overrides, f"output.dir={name}", extra=["--print-config"]), capture_output=True, text=True,
                              check=True).stdout
        open(f"{work}/{name}/config.yaml", "w").write(text)
        assert "step-00000002: whole" in site.checkpoint_tool("verify", f"{work}/{name}").stdout
        done = site.run(*shape, *overrides, f"output.dir={name}", ranks=ranks)
        assert "resuming after step 2" in done.err, done.err
        got, want = site.numbers(name), [n for n in site.numbers(f"clean-{name}") if n[0] > 2]
        assert [g[0] for g in got] == [3, 4, 5, 6]
        # The steps before the checkpoint ran on another kind of CPU, which sums in another order.
        worst = max(abs(a[i] - b[i]) / abs(b[i]) for a, b in zip(got, want) for i in (2, 3))
        assert worst < 1e-6, (name, got, want)
        site.report(f"F37 version 1, {name}", f"read, losses equal to {worst:.0e}", done.seconds)
        damaged = f"{work}/{name}-damaged"
        shutil.copytree(f"{fixtures}/{fixture}", f"{damaged}/step-00000002")
        flip(f"{damaged}/step-00000002/rank-00000.safetensors", -100)
        site.checkpoint_tool("verify", damaged, expect=4)
    site.stopped("base0")
    refused(site, "F37", "version 99", lambda d: edit_manifest(d, lambda m: m.update(format_version=99)), ["format version 99", "later"])


def storage(site):
    """Checkpoints that cannot be listed, opened or found ask for another start and change nothing."""
    site.stopped("run")
    shim, directory = make_shim(site.work), site.directory("run")

    def content():
        return sorted(name for name in os.listdir(directory) if ".tmp-" not in name), open(f"{site.work}/run/metrics.jsonl").read()
    before = content()

    def ends(what, expect, ranks=0, extra=(), **env):
        done = site.run("output.dir=run", ranks=ranks, extra=extra, expect=4, env={"LD_PRELOAD": shim, **env} if env else {})
        assert all(word in done.last for word in expect) and "is passed over" not in done.err, done.err
        site.report(what, done.last[:200], done.seconds)
    for call, mode, text in (("list", "ESTALE", "Stale file handle"), ("list", "EACCES", "Permission denied"), ("open", "ESTALE", "Stale file handle")):
        ends(f"{call} fails with {mode}", [f"cannot {call} ", text, "nothing is changed"], SHIM_CALL=call, SHIM_MODE=mode, SHIM_TIMES="9")
        assert content() == before
    for nth in ("1", "3"):
        ends(f"readdir {nth} fails", ["cannot list ", "Input/output error"], SHIM_CALL="readdir", SHIM_MODE="EIO", SHIM_NTH=nth)
        assert content() == before
    # The check of the space opens each manifest first; then the newest checkpoint is read.
    for nth in ("3", "4", "5"):
        ends(f"open {nth} fails", ["cannot open ", "Stale file handle"], ranks=2, SHIM_CALL="open", SHIM_MODE="ESTALE", SHIM_NTH=nth)
        assert content() == before
    shims = {**os.environ, "LD_PRELOAD": shim, "SHIM_CALL": "open", "SHIM_MODE": "ESTALE"}
    for tool, *more in (("verify",), ("prune", "--keep", "1"), ("export", "--output", f"{site.work}/exported")):
        done = subprocess.run([f"{site.args.bin}/trireme", "checkpoint", tool, f"{site.work}/run", *more], capture_output=True, text=True, env=shims)
        assert done.returncode == 4 and "Stale file handle" in done.stderr.splitlines()[-1], (done.stdout, done.stderr)
        assert "damaged" not in done.stdout + done.stderr and not os.path.exists(f"{site.work}/exported"), (done.stdout, done.stderr)
        assert content() == before

    def unread():
        done = site.run("output.dir=run", expect=73, env={"LD_PRELOAD": shim, "SHIM_CALL": "metrics", "SHIM_MODE": "EIO"})
        assert "metrics.jsonl: Input/output error" in done.last, done.err
    unread()
    assert content() == before
    os.rename(directory, f"{site.work}/unmounted")
    os.makedirs(directory)
    unread()
    for extra in ([], ["--dry-run"]):
        ends("a mount is missing", ["holds no checkpoint", "--allow-fresh"], extra=extra)
    os.rename(f"{site.work}/run/config.yaml", f"{site.work}/kept.yaml")
    ends("config.yaml is lost too", ["holds no checkpoint", "--allow-fresh"])
    os.rename(f"{site.work}/kept.yaml", f"{site.work}/run/config.yaml")
    assert content() == ([], before[1])
    os.rmdir(directory)
    os.rename(f"{site.work}/unmounted", directory)
    done = site.run("output.dir=run")
    assert "resuming after step 6" in done.err, done.err
    site.same("run")
    shutil.rmtree(directory)
    shutil.rmtree(f"{site.work}/run/adapter")
    done = site.run("output.dir=run", extra=["--allow-fresh"])
    assert "the run starts again, as --allow-fresh says" in done.err and "output.save_every_samples" not in done.err, done.err
    site.same("run")
    for name in (directory, f"{site.work}/run/adapter"):
        shutil.rmtree(name)
    os.remove(f"{site.work}/run/metrics.jsonl")
    assert "neither its metrics.jsonl nor a checkpoint" in site.run("output.dir=run", extra=["--dry-run"]).err


def other_run(site):
    """--allow-fresh beside checkpoints of another run, as a lost run.json leaves them: they are moved aside at the start."""
    site.stopped("run")
    os.remove(f"{site.work}/run/run.json")
    done = site.run("output.dir=run", expect=4)
    assert "belongs to run" in done.last and "--allow-fresh" in done.last, done.err
    done = site.run("output.dir=run", extra=["--allow-fresh"])
    assert {f"{NEWEST}.damaged", f"{OLDER}.damaged"} <= set(os.listdir(site.directory("run"))), os.listdir(site.directory("run"))
    site.same("run")
    site.report("--allow-fresh beside another run's checkpoints", "moved aside, same numbers", done.seconds)


if __name__ == "__main__":
    main({"F10": truncated, "F11": flipped, "F12": wrong_tensors, "F31": paths, "F37": upgrade, "storage": storage, "other-run": other_run}, CheckpointSite)
