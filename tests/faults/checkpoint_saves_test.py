#!/usr/bin/env python3
"""Faults while a checkpoint is being written: kills, full disks, failing and slow storage. Exit code 77 = skipped."""
import json
import os
import shutil
import statistics
import subprocess
import time

from checkpoint_site import STEPS, CheckpointSite, make_shim, mounted
from run_site import go_on, main


def killed_while_saving(site):
    """F2: shards written, no manifest."""
    done = site.run("output.dir=cut", ranks=2, faults="sigkill@save:after_shards:step4", expect="killed")
    assert done.seconds < 60, done.seconds
    assert site.whole("cut") == ["step-00000002"], site.whole("cut")
    assert len(site.leftovers("cut")) == 1, "the half-written checkpoint should lie there"
    again = site.run("output.dir=cut", ranks=2)
    assert "resuming after step 2" in again.err and "which a dead run left unfinished" in again.err, again.err
    assert site.leftovers("cut") == []
    site.same("cut", ranks=2)
    site.report("F2 killed between shards and manifest", "resumed from step 2, temporary directory removed, losses equal to the bit", done.seconds)
    done = site.run("output.dir=rank1", ranks=2, faults="sigkill@save:write:rank1:step4", expect="killed")
    site.run("output.dir=rank1", ranks=2)
    site.same("rank1", ranks=2)
    site.report("F2 a rank killed before its shard", "resumed from step 2, losses equal to the bit", done.seconds)


def killed_around_the_commit(site):
    """F3: after a kill either the old or the new checkpoint is there."""
    for point, newest in (("after_manifest", "step-00000004"), ("after_rename", "step-00000006"), ("after_latest", "step-00000006"),
                          ("retention", "step-00000006")):
        run = f"cut-{point}"
        done = site.run(f"output.dir={run}", faults=f"sigkill@save:{point}:step6", expect="killed")
        whole = site.whole(run)
        assert whole[-1] == newest and len(whole) >= 2, (point, whole)
        site.checkpoint_tool("verify", f"{site.work}/{run}")
        again = site.run(f"output.dir={run}")
        assert f"resuming after step {int(newest[5:])}" in again.err, again.err
        assert site.leftovers(run) == [] and len(site.whole(run)) == 2
        site.same(run)
        site.report(f"F3 killed at {point}", f"{newest} used, losses equal to the bit", done.seconds)


def disk_full(site):
    """F13: a file system of 4 MiB that fills up during the run; and one that is too small from the start."""
    full = ("lora=null",)
    reference = site.reference(*full)
    target = f"{site.work}/run13/checkpoints"
    os.makedirs(f"{site.work}/tiny/checkpoints")
    with mounted("-t", "tmpfs", "-o", "size=512k", "tmpfs", target=f"{site.work}/tiny/checkpoints"):
        prepare(site, "tiny", *full)
        done = site.run(*full, "output.dir=tiny", expect=73)
        assert "do not fit" in done.last and "free" in done.last and "step 1/" not in done.out, done.err
        site.report("F13 too little space at the start", "exit 73 before the first step: " + done.last, done.seconds)
    stops = (*full, "output.save_every_samples=null", "train.max_steps=2")
    for name, save, warnings in (("warned", "true", 1), ("unwanted", "false", 0)):
        os.makedirs(f"{site.work}/{name}/checkpoints")
        with mounted("-t", "tmpfs", "-o", "size=128k", "tmpfs", target=f"{site.work}/{name}/checkpoints"):
            prepare(site, name, *stops)
            done = site.run(*stops, f"output.save_on_stop={save}", f"output.dir={name}")
            assert done.err.count("the checkpoint that a stop by a signal saves does not fit") == warnings, done.err
            if warnings:
                shutil.rmtree(f"{site.work}/{name}/model")
                os.remove(f"{site.work}/{name}/finished.json")
                done = site.run(*stops, f"output.dir={name}", faults="sigterm@step:step1", expect=73)
                assert "its state could not be saved" in done.err.splitlines()[-1], done.err[-2000:]
    site.report("F13 too little space for a save at a stop", "a warning, trained all the same; a signal then: exit 73", 0.0)
    prepare(site, "run13", *full)
    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", target=target):
        # The run stops after the first save until this process has filled the disk.
        process = site.start(*full, "output.dir=run13", faults="sigstop@save:begin:step4")
        begin = time.time()
        while not os.path.exists(f"{target}/step-00000002/MANIFEST.json"):
            assert time.time() - begin < 60 and process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        subprocess.run(["dd", "if=/dev/zero", f"of={target}/filler", "bs=64k"], capture_output=True)
        go_on(process.pid)
        out, err = process.communicate(timeout=120)
        seconds = time.time() - begin
        assert process.returncode == 73, (process.returncode, err[-2000:])
        assert "3 saves in a row failed" in err.splitlines()[-1] and "No space left" in err, err[-2000:]
        failed = site.metrics("run13", "save_failed")
        assert [f["step"] for f in failed] == [4, 6, 8] and "No space left" in failed[0]["reason"], failed
        assert len(site.metrics("run13")) >= 8, "training goes on between failed saves"
        assert site.leftovers("run13") == []
        site.checkpoint_tool("verify", f"{site.work}/run13")
        os.remove(f"{target}/filler")
        site.run(*full, "output.dir=run13")
        assert site.numbers("run13") == reference
    site.report("F13 disk fills during the run", "3 warnings and events, exit 73, step-2 whole; with space again losses equal to the bit", seconds)


def metrics_on_a_full_disk(site):
    """F13: output.dir itself fills up: the run continues, and metrics.jsonl has every line when there is space again."""
    begin = time.time()
    folder = f"{site.work}/run"
    os.environ["MLPERF_SUBMISSION_DIVISION"] = "open"
    command = site.command("train.max_steps=60", "output.save_every_samples=null", "logging.mlperf=true", "output.dir=run")
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", target=folder):
        with open(f"{site.work}/err.txt", "w") as err:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err,
                                       env=site.environment("sigstop@step:step4,sigstop@step:step50"))

        def reached(words):
            until = time.time() + 60
            while words not in open(f"{site.work}/err.txt").read():
                assert time.time() < until and process.poll() is None, (process.poll(), open(f"{site.work}/err.txt").read()[-2000:])
                time.sleep(0.02)

        reached("step4")
        subprocess.run(["dd", "if=/dev/zero", f"of={folder}/filler", "bs=4k"], capture_output=True)
        go_on(process.pid)
        reached("step50")
        assert "metrics.jsonl" in open(f"{site.work}/err.txt").read() and len(open(f"{folder}/metrics.jsonl").readlines()) < 49
        os.remove(f"{folder}/filler")
        go_on(process.pid)
        code = process.wait(100)
        text = open(f"{site.work}/err.txt").read()
        assert code == 0, (code, text[-2000:])
        assert [m["step"] for m in site.metrics("run")] == list(range(1, 61))
        assert all(json.loads(line[len(":::MLLOG "):]) for line in open(f"{folder}/mllog.log")) and "run_stop" in open(f"{folder}/mllog.log").read()
        for name in ("metrics.jsonl", "mllog.log"):
            said = [line for line in text.splitlines() if f"run/{name}" in line]
            assert len(said) == 2 and "kept in memory" in said[0] and "written again" in said[1], (said, text[-2000:])
    # A results file that stays cut short: no success, and what was trained is there.
    full = f"{site.work}/full"
    with mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs", target=full):
        subprocess.run(["dd", "if=/dev/zero", f"of={full}/filler", "bs=4k"], capture_output=True)
        cut = ("logging.mlperf=true", "output.save_every_samples=null", "output.dir=cut")
        site.run(*cut, faults="sigkill@step:step4", expect=-9)
        os.remove(f"{site.work}/cut/mllog.log")
        os.symlink(f"{full}/mllog.log", f"{site.work}/cut/mllog.log")
        done = site.run(*cut, expect=73)
    assert "mllog.log is no result" in done.last and "No space left" in done.last, done.err
    summary = json.load(open(f"{site.work}/cut/summary.json"))
    assert (summary["exit_code"], summary["step"]) == (73, STEPS) and "mllog.log" in summary["reason"], summary
    assert os.path.exists(f"{site.work}/cut/adapter/adapter_model.safetensors")
    site.report("F13 the disk of metrics.jsonl is full for a while", "a warning, exit 0, every line there", time.time() - begin)


def prepare(site, run, *overrides):
    """The run's directory before a first start, with only an empty checkpoints folder (a mount point) in it."""
    os.makedirs(f"{site.work}/{run}/checkpoints", exist_ok=True)


def failing_storage(site):
    """F14: ENOSPC, EIO and EROFS on the nth call, short writes, a read-only and a vanished directory."""
    shim = make_shim(site.work)
    cases = [("pwrite", "ENOSPC", 3, "No space left"), ("pwrite", "EIO", 4, "Input/output error"), ("fsync", "EIO", 5, "Input/output error"),
             ("fsync", "ENOSPC", 8, "No space left"), ("rename", "EROFS", 4, "Read-only"), ("rename", "EIO", 3, "Input/output error")]
    for call, mode, nth, reason in cases:
        run = f"{call}-{mode}"
        done = site.run(f"output.dir={run}", env={"LD_PRELOAD": shim, "SHIM_CALL": call, "SHIM_MODE": mode, "SHIM_NTH": str(nth)})
        failed = site.metrics(run, "save_failed")
        warned = [line for line in done.err.splitlines() if "warning" in line and reason in line]
        assert len(warned) >= 1, (run, done.err)
        assert len(failed) <= 1 and all(reason in f["reason"] for f in failed), (run, failed)
        assert len(site.whole(run)) >= 2 and site.leftovers(run) == []
        site.checkpoint_tool("verify", f"{site.work}/{run}")
        site.same(run)
        site.report(f"F14 {mode} of {call} {nth}", "one warning, training went on, older ones whole", done.seconds)
    done = site.run("output.dir=unsynced", env={"LD_PRELOAD": shim, "SHIM_CALL": "fdatasync", "SHIM_MODE": "EIO", "SHIM_TIMES": "99"})
    assert done.err.count("metrics.jsonl: Input/output error") == 1, done.err
    site.same("unsynced")
    done = site.run("output.dir=short", env={"LD_PRELOAD": shim, "SHIM_MODE": "short"})
    assert site.metrics("short", "save_failed") == [] and len(site.metrics("short", "save")) == STEPS // 2
    site.checkpoint_tool("verify", f"{site.work}/short")
    site.report("F14 short writes", "retried to completion, every checkpoint whole", done.seconds)
    done = site.run("output.dir=always", env={"LD_PRELOAD": shim, "SHIM_CALL": "pwrite", "SHIM_MODE": "EIO", "SHIM_TIMES": "100000"}, expect=73)
    assert "3 saves in a row failed" in done.last and site.whole("always") == []
    site.report("F14 EIO for good", "exit 73 after three saves", done.seconds)
    os.makedirs(f"{site.work}/ro/checkpoints")
    prepare(site, "ro")
    with mounted("--bind", f"{site.work}/ro/checkpoints", target=f"{site.work}/ro/checkpoints"):
        subprocess.run(["mount", "-o", "remount,ro,bind", f"{site.work}/ro/checkpoints"], check=True)
        done = site.run("output.dir=ro", expect=73)
        assert "Read-only" in done.err, done.err
        site.report("F14 read-only directory", "exit 73: " + done.last, done.seconds)


def slow_storage(site):
    """F15: steps do not wait for slow storage; a second save waits for the first, and says so."""
    calm = statistics.median(m["step_time_s"] for m in metrics_of(site))
    done = site.run("output.dir=slow", faults="sleep@save:write:2s")
    steps = {m["step"]: m["step_time_s"] for m in site.metrics("slow")}
    saves = site.metrics("slow", "save")
    assert len(saves) == STEPS // 2 and all(s["seconds"] >= 2 for s in saves), saves
    assert all(s["pause_s"] < 0.5 for s in saves), saves
    during = [steps[s] for s in range(3, STEPS + 1)]
    assert max(during) < 1.0, f"a step waited for the storage: {during}"
    waits = [line for line in done.err.splitlines() if "waited" in line and "for the save of step" in line]
    assert len(waits) == STEPS // 2 - 1, done.err
    site.same("slow")
    # A save's event stands behind the lines of later steps, which a resume cuts.
    site.run("output.dir=late", faults="sleep@step:0.3s,sleep@save:write:1s,sigkill@step:step9", expect="killed")
    newest = site.whole("late")[-1]
    assert newest in ("step-00000004", "step-00000006"), newest
    site.run("output.dir=late")
    assert int(newest[5:]) in [m["step"] for m in site.metrics("late", "save")], (newest, site.metrics("late", "save"))
    site.same("late")
    site.report("F15 storage that takes 2 s a save", f"slowest step {max(during) * 1e3:.0f} ms (calm median {calm * 1e3:.0f} ms), "
                f"longest pause {max(s['pause_s'] for s in saves) * 1e3:.1f} ms, {len(waits)} waits logged", done.seconds)


def metrics_of(site):
    site.reference()
    return site.metrics("reference0")


def writer_fails(site):
    """F36: a writer's failure on one rank is reported at the next step boundary on all of them."""
    done = site.run("output.dir=once", ranks=2, faults="fail@save:write:rank1:step4")
    failed = site.metrics("once", "save_failed")
    assert [f["step"] for f in failed] == [4] and failed[0]["reason"].startswith("rank 1: fault injected"), failed
    assert "checkpoint of step 4 could not be saved (1 in a row" in done.err, done.err
    lines = [json.loads(line) for line in open(f"{site.work}/once/metrics.jsonl")]
    at = next(i for i, line in enumerate(lines) if line["event"] == "save_failed")
    assert max(line["step"] for line in lines[:at] if line["event"] == "train") <= 8, "it came late"
    assert site.leftovers("once") == []
    site.same("once", ranks=2)
    site.report("F36 one rank's writer throws once", "warning and event, training went on", done.seconds)
    for rank in (0, 1):
        run = f"always{rank}"
        done = site.run(f"output.dir={run}", ranks=2, faults=f"fail@save:write:rank{rank}:step4,fail@save:write:rank{rank}:step6,"
                        f"fail@save:write:rank{rank}:step8", expect=73)
        assert "3 saves in a row failed" in done.err and site.whole(run) == ["step-00000002"], (done.err, site.whole(run))
        assert done.seconds < 60
        site.checkpoint_tool("verify", f"{site.work}/{run}")
        site.run(f"output.dir={run}", ranks=2)
        site.same(run, ranks=2)
        site.report(f"F36 rank {rank}'s writer throws three times", "exit 73 on all ranks, step-2 whole, resumed to equal losses", done.seconds)
    done = site.run("output.dir=copy", ranks=2, faults="fail@save:copy:rank1:step6")
    failed = site.metrics("copy", "save_failed")
    assert [f["step"] for f in failed] == [6] and "rank 1: the state could not be copied to host memory" in failed[0]["reason"], failed
    assert [s["step"] for s in site.metrics("copy", "save")] == [step for step in range(2, STEPS + 1, 2) if step != 6] and site.leftovers("copy") == []
    site.same("copy", ranks=2)
    site.report("F36 one rank has no memory for the copy", "warning and event, the next save is whole, training went on", done.seconds)
    done = site.run("output.dir=commit", ranks=2, faults="fail@save:after_shards:step6")
    assert [f["step"] for f in site.metrics("commit", "save_failed")] == [6]
    site.report("F36 the commit throws", "warning and event, training went on", done.seconds)


if __name__ == "__main__":
    main({"F02": killed_while_saving, "F03": killed_around_the_commit, "F13": disk_full, "F14": failing_storage, "F15": slow_storage,
          "F36": writer_fails, "full": metrics_on_a_full_disk}, CheckpointSite)
