#!/usr/bin/env python3
"""Faults of the machine: crashes with their stacks (F4), unusable directories (F14), a lost bootstrap port (F19, F20), a single failing allocation (F34), a wall clock that is set (F35). Exit code 77 = skipped."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import fault_site
from fault_site import process_shim

HOST = re.escape(socket.gethostname())


def crash(site):
    """An invalid pointer and an abort: one sentence and the stack; the other ranks end as after any death."""
    for fault, name in (("crash@rank1:step5", "SIGSEGV at address 0x[0-9a-f]+"), ("abort@rank1:step5", "SIGABRT")):
        run = site.start(f"output.dir={fault[:5]}", TRIREME_FAULT=fault)
        run.wait_for("fault injected", 60)
        code = run.end(10)
        text = run.text()
        assert code not in (0, 2, 3, 4, 75), code
        assert re.search(rf"rank 1 on {HOST}: ended by {name}; a bug: report it with the stack that follows", text), text[-3000:]
        stack = text[text.index("ended by SIG"):]
        assert "_ZN7trireme9TrainStep10train_step" in stack and "_ZN7trireme7Trainer3run" in stack, stack[:3000]
        assert re.search(rf"rank 1 on {HOST} \(process \d+\) died in step 5", run.last_words()), text[-3000:]
        print(f"{fault}: all gone after {run.seconds:.1f} s, exit {code}: {run.last_words()[:120]}")
    # Without a launcher the shell sees the signal itself.
    run = site.start("output.dir=alone", ranks=0, TRIREME_FAULT="crash@step5")
    assert run.end(60) == -signal.SIGSEGV, run.process.returncode
    assert f"rank 0 on {socket.gethostname()}: ended by SIGSEGV at address 0x" in run.text(), run.text()[-2000:]


def stack(site):
    """F4: the report contains the stack of a rank that does not reach the collective."""
    run = site.start("output.dir=asleep", TRIREME_FAULT="sleep@reduce:rank2:step5:600s", TRIREME_HANG_SECONDS="3")
    run.wait_for("fault injected", 60)
    assert run.end(15) == 71, run.text()[-3000:]
    text = run.text()
    part = re.search(rf"the training thread of rank 2 on {HOST}:\n((?:  #\d+ .*\n)+)", text)
    assert part, text[-4000:]
    frames = part[1].splitlines()
    for words in ("trireme::fault_point(", "trireme::TrainStep::train_step(", "trireme::Trainer::run()"):
        assert any(words in frame for frame in frames), (words, frames)
    assert re.search(rf"rank \d on {HOST}: no progress for .* rank 2 on {HOST} never reached", text[text.index(frames[-1]):]), text[-2000:]
    print("\n".join(frames[:6]))


def directories(site):
    """F14: an output.dir whose parents are missing, are not directories, or are removed during the run."""
    def refused(name, target, words):
        before = sorted(os.listdir(site.work))
        run = site.train(f"output.dir={target}", ranks=2, expect=73, name=name)
        assert all(word in run.last_words() for word in (*words, "output.dir")), (name, run.last_words())
        assert sorted(set(os.listdir(site.work)) - {f"{name}.txt"}) == before, "something was made all the same"
        print(f"{name}: exit 73: {run.last_words()[:200]}")

    site.train("output.dir=a/b/c/run", ranks=2)
    assert len(site.metrics("a/b/c/run")) == 12
    open(f"{site.work}/file", "w").close()
    os.symlink(f"{site.work}/nowhere/at/all", f"{site.work}/dangling")
    os.symlink("loop", f"{site.work}/loop")
    refused("parent-is-a-file", "file/run", ["file/run", "Not a directory"])
    refused("is-a-file", "file", ["file"])
    refused("dangling-link", "dangling", ["dangling"])
    refused("link-loop", "loop/run", ["loop/run", "Too many levels"])
    refused("long-name", "x" * 300, ["File name too long"])

    # Each rank sees a directory of its own under the name, as on hosts without a common file system; or none can be made.
    alone, both = site.command("output.dir=mine", ranks=0), site.launch(1)
    for theirs in ("theirs", "mine/../elsewhere"):
        other = site.command(f"output.dir={theirs}", ranks=0)
        done = subprocess.run([*both, *alone, ":", *both[both.index("-n"):], *other], capture_output=True, text=True, env=site.environment(), timeout=60)
        assert done.returncode == 73 and re.search(rf"rank 1 on {re.escape(socket.gethostname())}: output.dir \S+ is not the directory", done.stderr), done
        assert not os.path.exists(f"{site.work}/mine/run.json") and not os.path.exists(f"{site.work}/theirs"), done

    # Removed during the run: every save reports it, the third ends the run, and no incomplete files are written
    # elsewhere.
    run = site.start("output.dir=gone", "train.max_steps=40", "output.save_every_samples=16", ranks=2, TRIREME_FAULT="sleep@step:rank0:step6:2s")
    run.wait_for("fault injected", 60)
    shutil.rmtree(f"{site.work}/gone")
    code = run.end(60)
    assert code == 73, f"exit {code}: {run.text()[-3000:]}"
    assert "No such file or directory" in run.text() and "3 saves in a row failed" in run.text(), run.text()[-3000:]
    assert not os.path.exists(f"{site.work}/gone") or not site.checkpoints("gone"), os.listdir(f"{site.work}/gone")
    print(f"output.dir removed under the run: exit 73: {run.last_words()[:200]}")

    # The base removed during the run: what is written lacks its files.
    run = site.start("output.dir=baseless", "lora=null", ranks=2, TRIREME_FAULT="sleep@step:rank0:step6:2s")
    run.wait_for("fault injected", 60)
    shutil.rmtree(f"{site.work}/base")
    code = run.end(60)
    assert code == 0 and re.search(r"warning: model.path \S+ is not there any more: its tokenizer, .* are not copied to \S+/baseless/model", run.text()), (code, run.text()[-3000:])


def clock(site):
    """F35: the wall clock of one rank goes back, then forward, by an hour: same numbers, no false alarm, and a hang is still detected."""
    shim = process_shim(site.work)
    saves = ("output.save_every_minutes=0.01", "output.save_every_samples=null")
    slow = "sleep@step:rank0:0.3s"
    site.train("output.dir=whole", *saves, TRIREME_FAULT=slow)
    for seconds in (-3600, 3600):
        for rank in (0, 1):
            name = f"clock{seconds}-{rank}"
            shifted = dict(LD_PRELOAD=shim, SHIM_CLOCK_SECONDS=str(seconds), SHIM_CLOCK_FILE=f"{site.work}/{name}.now", SHIM_RANK=str(rank), TRIREME_HANG_SECONDS="20")
            run = site.start(f"output.dir={name}", *saves, TRIREME_FAULT=f"{slow},sigkill@rank1:step10", **shifted)
            run.wait_for("step 3/", 60)
            open(shifted["SHIM_CLOCK_FILE"], "w").close()
            run.wait_for("fault injected: sigkill", 60)
            code = run.end(10)
            assert code != 0, code
            if rank == 0:
                stamps = [int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in re.findall(r"^(\d\d):(\d\d):(\d\d) ", run.text(), re.M)]
                steps = [(b - a + 43200) % 86400 - 43200 for a, b in zip(stamps, stamps[1:])]
                jumps = [step for step in steps if abs(step) > 1800]
                assert len(jumps) == 1 and (jumps[0] < 0) == (seconds < 0), (stamps, jumps)
            newest = site.checkpoints(name)[-1]
            run = site.train(f"output.dir={name}", *saves, TRIREME_FAULT=slow, **shifted)
            assert f"resuming after step {newest}" in run.text(), run.text()[-2500:]
            site.same_run("whole", name)
            assert all(0 < m["step_time_s"] < 60 for m in site.metrics(name)), site.metrics(name)
            print(f"wall clock of rank {rank} moved by {seconds} s: same numbers, resumed after step {newest}")
        hung = dict(LD_PRELOAD=shim, SHIM_CLOCK_SECONDS=str(seconds), SHIM_CLOCK_FILE=f"{site.work}/hung{seconds}.now", TRIREME_HANG_SECONDS="4")
        run = site.start(f"output.dir=hung{seconds}", TRIREME_FAULT=f"{slow},sigstop@rank2:step9", **hung)
        run.wait_for("step 3/", 60)
        open(hung["SHIM_CLOCK_FILE"], "w").close()
        run.wait_for("fault injected: sigstop", 60)
        assert run.end(14) == 71, run.text()[-3000:]
        assert f"rank 2 on {socket.gethostname()} never reached" in run.text(), run.text()[-3000:]
        print(f"hang with a clock moved by {seconds} s: exit 71 after {run.seconds:.1f} s")


def allocation(site):
    """F34: the nth allocation of a tensor fails: the message lists the memory use and remedies, and all ranks end."""
    shim = process_shim(site.work)
    failed = 0
    for nth in (1, 10, 40, 160, 640, 5000):
        run = site.start(f"output.dir=nth{nth}", ranks=0, LD_PRELOAD=shim, SHIM_MEMORY_NTH=str(nth), SHIM_MEMORY_LEAST="1024")
        code = run.end(60)
        last = run.text().strip().splitlines()[-1]
        if code == 0:
            assert failed >= 3, f"allocation {nth} did not fail"
            break
        failed += 1
        assert code == 2 and "is out of memory" in last, (nth, code, last)
        if nth == 5000:  # in a step
            end = json.load(open(f"{site.work}/nth{nth}/summary.json"))
            assert end["exit_code"] == 2 and "is out of memory" in end["reason"] and site.metrics(f"nth{nth}", "end") == [end], end
        if "the plan counts" in last:
            assert all(word in last for word in ("weights", "moments", "gradients", "activations", "parallel.recompute: full")), last
        print(f"allocation {nth}: exit {code}: {last[:160]}")
    assert failed >= 3, failed
    run = site.start("output.dir=rank2", LD_PRELOAD=shim, SHIM_MEMORY_NTH="200", SHIM_MEMORY_LEAST="1024", SHIM_MEMORY_TIMES="1000000", SHIM_RANK="2")
    code = run.end(60)
    assert code == 2 and re.search(rf"rank 2 .*is out of memory: the plan counts", run.text()), (code, run.text()[-3000:])
    print(f"one rank of four: exit 2, all gone after {run.seconds:.1f} s")


def bootstrap(site):
    """F20: an unused address, a name that does not resolve, a port that accepts and never answers; each ends within its limit with a message."""
    driver = f"{site.args.bin}/../tests/rank_driver"

    def rank(address, port, expect, seconds=12):
        begin = time.time()
        done = subprocess.run([driver], capture_output=True, text=True, timeout=60,
                              env=site.environment(RANK="1", WORLD_SIZE="2", MASTER_ADDR=address, MASTER_PORT=str(port), TRIREME_RENDEZVOUS_SECONDS="3"))
        took = time.time() - begin
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 2 and all(word in last for word in expect) and took < seconds, (address, port, done.returncode, took, done.stderr)
        print(f"{address}:{port}: exit 2 after {took:.1f} s: {last[:180]}")

    with fault_site.reserved_port() as unused:
        rank("127.0.0.1", unused.getsockname()[1], ["cannot reach rank 0 at 127.0.0.1", "MASTER_ADDR"])
    rank("no-such-host.invalid", 29500, ["cannot reach rank 0 at no-such-host.invalid:29500", "MASTER_ADDR"])
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        rank("127.0.0.1", silent.getsockname()[1], ["cannot reach rank 0 at 127.0.0.1", "MASTER_PORT this job's alone"])
    with socket.socket() as rude:  # like a web server: answers in another protocol and closes the connection
        rude.bind(("127.0.0.1", 0))
        rude.listen()

        def serve():
            while True:
                try:
                    connection = rude.accept()[0]
                except OSError:
                    return
                with connection:
                    connection.recv(64)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        threading.Thread(target=serve, daemon=True).start()
        rank("127.0.0.1", rude.getsockname()[1], ["127.0.0.1", "MASTER_PORT"])
        rude.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    fault_site.main({"crash": crash, "stack": stack, "directories": directories, "clock": clock, "allocation": allocation, "bootstrap": bootstrap})
