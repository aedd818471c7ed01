#!/usr/bin/env python3
"""SIGTERM to one rank of a run at awkward moments (fault F6). Exit code 77 = skipped.

Every time: exit code 75, one new checkpoint at the same step on all ranks, and started again the run ends as one that was never stopped.
"""
import os
import re
import signal
import time

import fault_site

SETTINGS = ("train.max_steps=16", "eval.every_samples=32", "output.save_every_samples=64")


def stop(site, name, fault, moment, kill=(signal.SIGTERM,), rank=1, grace=30, more=()):
    """Sends the signals to one rank once `moment` is in the log; the fault holds the ranks there long enough."""
    run = site.start(f"output.dir={name}", *SETTINGS, *more, TRIREME_FAULT=fault)
    run.wait_for(moment, 60)
    pids = run.pids()
    assert len(pids) == 4, pids
    for number in kill:
        os.kill(pids[rank], number)
        time.sleep(0.3)
    code = run.end(grace)
    text = run.text()
    assert code == 75, f"exit {code}:\n{text[-3500:]}"
    stopped = re.search(r"stopped by a signal after step (\d+)", text)
    assert stopped, text[-2500:]
    step = int(stopped[1])
    saved = site.checkpoints(name)
    assert saved and saved[-1] == step, (step, saved)
    assert not [d for d in os.listdir(f"{site.work}/{name}/checkpoints") if ".tmp" in d], os.listdir(f"{site.work}/{name}/checkpoints")
    site.train(f"output.dir={name}", *SETTINGS, *more)
    site.same_run("whole", name)
    print(f"{name}: stopped after step {step}, exit 75 after {run.seconds:.1f} s, checkpoints {saved}")
    return step, text


def whole(site):
    site.train("output.dir=whole", *SETTINGS)


def early(site):
    whole(site)
    step, _ = stop(site, "early", "sleep@load:2s", "fault injected: sleep@load")
    assert step == 0, f"{step} steps were run after a signal that came before the first"


def warm_up(site):
    """MLPerf runs warm up before the clock starts."""
    whole(site)
    at, _ = stop(site, "warm", "sleep@warm-up:2s", "fault injected: sleep@warm-up", more=("logging.mlperf=true",))
    assert at == 0, at


def step(site):
    whole(site)
    at, _ = stop(site, "mid", "sleep@step:step6:1s", "fault injected: sleep@step")
    assert at in (6, 7), at
    at, _ = stop(site, "usr1", "sleep@step:rank3:step7:1s", "fault injected: sleep@step", kill=(signal.SIGUSR1,), rank=3)
    assert at in (7, 8), at


def evaluation(site):
    whole(site)
    at, text = stop(site, "eval", "sleep@evaluation:step4:rank0:1s:x1", "fault injected: sleep@evaluation")
    assert at == 4 and "the evaluation after step 4 is left" in text, text[-2500:]


def save(site):
    whole(site)
    # x1: the save of step 8 alone; asynchronous ones are on their way when the signal comes.
    at, _ = stop(site, "save", "sleep@save:step8:1s:x1", "fault injected: sleep@save")
    assert at == 8, at


def twice(site):
    whole(site)
    stop(site, "twice", "sleep@step:step6:1s,sleep@save:step7:1s", "fault injected: sleep@step", kill=(signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM))


def alone(site):
    """One process without a launcher: SIGINT of a terminal."""
    site.train("output.dir=whole", *SETTINGS, ranks=0)
    run = site.start("output.dir=alone", *SETTINGS, ranks=0, TRIREME_FAULT="sleep@step:step6:1s")
    run.wait_for("fault injected")
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end(30) == 75, run.text()[-2000:]
    site.train("output.dir=alone", *SETTINGS, ranks=0)
    site.same_run("whole", "alone")


if __name__ == "__main__":
    fault_site.main({"early": early, "warm-up": warm_up, "step": step, "evaluation": evaluation, "save": save, "twice": twice, "alone": alone})
