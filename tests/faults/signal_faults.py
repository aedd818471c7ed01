#!/usr/bin/env python3
"""SIGTERM to one rank of a run at critical times (fault F6). Exit code 77 = skipped.

In every case: exit code 75, one new checkpoint at the same step on all ranks, and after a restart the same numbers as an uninterrupted run.
"""
import os
import re
import signal
import time

import fault_site
from run_site import go_on

SETTINGS = ("train.max_steps=16", "eval.every_samples=32", "output.save_every_samples=64")


def stop(site, name, fault, moment, kill=(signal.SIGTERM,), rank=1, grace=30, more=()):
    """Sends the signals to one rank once `moment` is in the log. The fault keeps it there: stopped, or asleep for long enough."""
    run = site.start(f"output.dir={name}", *SETTINGS, *more, TRIREME_FAULT=fault)
    run.wait_for(moment, 60)
    pids = run.pids()
    assert len(pids) == 4, pids
    for number in kill:
        os.kill(pids[rank], number)
        if len(kill) > 1:
            time.sleep(0.3)
    if fault.startswith("sigstop@"):
        go_on(pids[rank])
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
    step, _ = stop(site, "early", "sigstop@load:rank1", "fault injected: sigstop@load")
    assert step == 0, f"{step} steps were run after a signal that came before the first"


def warm_up(site):
    """MLPerf runs warm up before the clock starts."""
    whole(site)
    os.environ["MLPERF_SUBMISSION_DIVISION"] = "open"
    at, _ = stop(site, "warm", "sigstop@warm-up:rank1", "fault injected: sigstop@warm-up", more=("logging.mlperf=true",))
    assert at == 0, at


def step(site):
    whole(site)
    at, _ = stop(site, "mid", "sigstop@step:rank1:step6", "fault injected: sigstop@step")
    assert at in (6, 7), at


def usr1(site):
    whole(site)
    at, _ = stop(site, "usr1", "sigstop@step:rank3:step7", "fault injected: sigstop@step", kill=(signal.SIGUSR1,), rank=3)
    assert at in (7, 8), at


def evaluation(site):
    whole(site)
    at, text = stop(site, "eval", "sigstop@evaluation:step4:rank0:x1", "fault injected: sigstop@evaluation", rank=0)
    assert at == 4 and "the evaluation after step 4 is interrupted" in text, text[-2500:]


def save(site):
    whole(site)
    # x1: only the save of step 8; asynchronous saves are in progress when the signal arrives.
    at, _ = stop(site, "save", "sigstop@save:step8:rank1:x1", "fault injected: sigstop@save")
    assert at == 8, at


def twice(site):
    whole(site)
    stop(site, "twice", "sleep@step:step6:1s,sleep@save:step7:1s", "fault injected: sleep@step", kill=(signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM))


def alone(site):
    """One process without a launcher: SIGINT from a terminal."""
    site.train("output.dir=whole", *SETTINGS, ranks=0)
    run = site.start("output.dir=alone", *SETTINGS, ranks=0, TRIREME_FAULT="sigstop@step:step6")
    run.wait_for("fault injected")
    os.kill(run.process.pid, signal.SIGINT)
    go_on(run.process.pid)
    assert run.end(30) == 75, run.text()[-2000:]
    site.train("output.dir=alone", *SETTINGS, ranks=0)
    site.same_run("whole", "alone")


def stop_one(site, name, fault, *overrides, expect=75):
    """SIGTERM to a run of one process at the place of the fault; the run's log."""
    return site.train(f"output.dir={name}", *overrides, ranks=0, expect=expect, TRIREME_FAULT=fault).text()


def bad_step(site, kinds=(("fp32", "train.on_nonfinite=skip"),)):
    """The last step before the stop has a NaN gradient: it changes nothing, and the state after it is saved."""
    for kind, setting in kinds:
        bad = "nan@gradient:model.layers.0.self_attn.k_proj.lora_A.weight:step6"
        settings = ("train.max_steps=10", setting)
        site.train(f"output.dir=whole-{kind}", *settings, ranks=0, TRIREME_FAULT=bad)
        text = stop_one(site, kind, f"sigterm@step:step5,{bad}", *settings)
        assert "stopped by a signal after step 6; state saved" in text, text[-2500:]
        assert site.metrics(kind)[-1]["grad_norm"] == "nan", "the stop does not follow the bad step: this test shows nothing"
        assert site.checkpoints(kind) == [6], f"exit 75 requires a saved state:  {site.checkpoints(kind)}"
        site.train(f"output.dir={kind}", *settings, ranks=0)
        site.same_run(f"whole-{kind}", kind)


def last_evaluation(site):
    """A signal in the last step or in the evaluation after it: that evaluation is not lost."""
    for name, fault, every in (("in-evaluation", "sigterm@evaluation:step6:x1", "null"), ("in-step", "sigterm@step:step6", "16")):
        settings = ("train.max_steps=6", f"eval.every_samples={every}")
        site.train(f"output.dir=whole-{name}", *settings, ranks=0)
        text = stop_one(site, name, fault, *settings)
        assert "state saved" in text and site.checkpoints(name) == [6], (text[-2500:], site.checkpoints(name))
        assert 6 not in [e["step"] for e in site.metrics(name, "eval")] and not os.path.exists(f"{site.work}/{name}/adapter"), text[-2500:]
        site.train(f"output.dir={name}", *settings, ranks=0)
        assert [e["step"] for e in site.metrics(name, "eval")] == [e["step"] for e in site.metrics(f"whole-{name}", "eval")]
        site.same_run(f"whole-{name}", name)


def bad_step_fp16(site):
    bad_step(site, (("fp16", "precision.compute=fp16"),))


def vote(site):
    """Between the forward passes of an evaluation the ranks exchange their signal flags on the device, not through the hosts."""
    run = site.start("output.dir=vote", "train.max_steps=1", ranks=2, TRIREME_FAULT="sleep@evaluation:rank1:20s:x1", TRIREME_HANG_SECONDS="2")
    assert run.end(30) == 71, run.text()[-2500:]
    assert re.search(r"rank 1 on .* never reached #\d+ all_reduce\[1\] on world", run.text()), run.text()[-2500:]


def without_saving(site):
    """output.save_on_stop: false: the run ends as if killed by the signal, and reports the steps that are lost."""
    settings = ("train.max_steps=12", "output.save_on_stop=false")
    site.train("output.dir=whole", "train.max_steps=12", ranks=0)
    text = stop_one(site, "none", "sigterm@step:step5", *settings, expect=128 + signal.SIGTERM)
    assert re.search(r"stopped by a signal after step [56] without saving \(output.save_on_stop: false\): the run's [56] steps are lost", text), text[-2000:]
    assert "state saved" not in text and site.checkpoints("none") == []
    regular = (*settings, "output.save_every_samples=32")
    text = stop_one(site, "some", "sigterm@step:step6", *regular, expect=128 + signal.SIGTERM)
    assert re.search(r"without saving .*: steps 5 to [67] are lost, the same command goes on after step 4", text), text[-2000:]
    assert site.checkpoints("some") == [4], site.checkpoints("some")
    site.train("output.dir=some", *regular, ranks=0)
    site.same_run("whole", "some")


def launcher(site):
    """Signals to mpirun: it forwards SIGUSR1 to the ranks; it sends SIGTERM a second later, and SIGKILL a second after that."""
    settings = ("train.max_steps=200",)
    for number, expected in ((signal.SIGUSR1, 75), (signal.SIGTERM, 1)):
        name = number.name
        run = site.start(f"output.dir={name}", *settings, ranks=2, TRIREME_FAULT="sleep@step:step6:0.3s")
        run.wait_for("fault injected")
        os.kill(run.process.pid, number)
        code = run.end(30)
        assert code == expected, f"exit {code}, expected {expected}:\n{run.text()[-2500:]}"
        saved = "state saved" in run.text()
        assert saved or number == signal.SIGTERM, run.text()[-2500:]  # on a loaded machine one second may not be enough to save
        assert len(site.checkpoints(name)) == saved, (site.checkpoints(name), run.text()[-2500:])
        print(f"{name} to mpirun: exit {code}, checkpoints of steps {site.checkpoints(name)}")


if __name__ == "__main__":
    fault_site.main({"early": early, "warm-up": warm_up, "step": step, "usr1": usr1, "evaluation": evaluation, "save": save, "twice": twice, "alone": alone,
                     "bad-step": bad_step, "bad-step-fp16": bad_step_fp16, "last-evaluation": last_evaluation, "vote": vote, "without-saving": without_saving, "launcher": launcher})
