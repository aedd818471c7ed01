#!/usr/bin/env python3
"""Every learning rate of some hundred random schedules against NeMo's, fms-fsdp's and torchtitan's definitions, written down here from their formulas."""
import argparse
import math
import random
import subprocess


def fms(step, steps, warmup, least):
    ramp = 1 - (1 - min(step, warmup) / warmup) ** 2 if warmup else 1.0
    return min(ramp, least + 0.5 * (1 - least) * (1 + math.cos(min(step, steps) / steps * math.pi)))


def torchtitan(step, steps, warmup, ratio, kind, least):
    decay = min(round(steps * ratio), steps - warmup) if ratio is not None else steps - warmup
    flat_end = steps + 1 - decay  # warm-up and stable steps, with the step after the last one
    if step < warmup:
        return (step + 1) / warmup
    if step < flat_end:
        return 1.0
    progress = (step + 1 - flat_end) / decay
    shape = {"linear": 1 - progress, "sqrt": 1 - math.sqrt(progress), "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[kind]
    return least + (1 - least) * shape


def old(name, step, steps, warmup, lr, least):
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    share = min(1.0, (step - warmup) / (steps - warmup)) if steps > warmup else 1.0
    return {"constant": lr, "linear": least + (lr - least) * (1 - share), "cosine": least + (lr - least) * 0.5 * (1 + math.cos(math.pi * share))}[name]


def nemo(step, steps, warmup, constant, lr, least):
    """CosineAnnealing with constant steps."""
    decay = steps - constant - warmup
    if warmup > 0 and step <= warmup:
        return lr * step / warmup
    if decay <= 0 or step > warmup + decay:
        return least
    return least + 0.5 * (math.cos(math.pi * (step - warmup) / decay) + 1) * (lr - least)


def cases(random):
    for _ in range(400):
        steps, lr = random.randint(1, 400), 10 ** random.uniform(-5, -2)
        warmup = random.choice([0, 1, steps // 20, random.randint(0, steps), steps])
        least = random.choice([None, 0.0, 0.1, 1.0, random.random()])
        ratio = random.choice([None, 0.0, 1.0, 0.5, random.random()])  # 0.5 of an odd count is rounded half to even
        kind = random.choice(["linear", "sqrt", "cosine"])
        constant = 0
        name = random.choice(["wsd", "wsd", "fms_cosine", "fms_cosine", "annealing", "cosine", "linear", "constant"])
        yield name, steps, lr, warmup, constant, least, ratio, kind
    for _ in range(100):
        steps = random.randint(1, 400)
        yield "cosine", steps, 10 ** random.uniform(-5, -2), random.choice([0, 1, steps, 2 * steps, random.randint(0, steps)]), \
            random.choice([1, steps, 2 * steps, random.randint(1, steps)]), None, None, "linear"


def expected(case, step):
    name, steps, lr, warmup, constant, least, ratio, kind = case
    if name == "wsd":
        return lr * torchtitan(step, steps, warmup, ratio, kind, least or 0.0)
    if name == "fms_cosine":
        return lr * fms(step, steps, warmup, 0.1 if least is None else least)
    if name == "annealing":
        return lr * (1 - step / steps)
    if constant:
        return nemo(step, steps, warmup, constant, lr, lr * 0.25)
    return old(name, step, steps, warmup, lr, lr * 0.25)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    args = parser.parse_args()
    everything = list(cases(random.Random(20)))
    text = lambda value: "-" if value is None else repr(value)
    lines = [f"{name} {warmup} {constant} {lr * 0.25!r} {text(least)} {text(ratio)} {kind} {lr!r} {steps}"
             for name, steps, lr, warmup, constant, least, ratio, kind in everything]
    done = subprocess.run([args.probe], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()
    assert len(rows) == len(everything)
    checked = 0
    for case, row in zip(everything, rows):
        rates = list(map(float, row.split()))
        steps, lr = case[1], case[2]
        assert len(rates) == steps + 3
        for step in range(steps):
            want = expected(case, step)
            assert math.isclose(rates[step], want, rel_tol=1e-12, abs_tol=1e-15 * lr), f"{case} step {step}: {rates[step]!r}, not {want!r}"
            checked += 1
        assert 0 <= min(rates) and max(rates) <= lr * (1 + 1e-15), case
        # A warm-up that the run does not leave goes on behind its end.
        assert case[4] or rates[steps + 1] == rates[steps + 2], f"{case}: the rate changes after the run's end: {rates[-3:]}"
    # The step before the virtual last one still trains: torchtitan's rate never reaches 0 inside a run.
    assert all(min(map(float, row.split()[:case[1]])) > 0 for case, row in zip(everything, rows) if case[0] == "wsd")
    # NeMo's gpt3/126m with max_steps 100: the decay is negative, and the run ends inside the warm-up.
    golden = subprocess.run([args.probe], input="cosine 636 100000 6e-5 - - linear 6e-4 100\ncosine 636 100000 6e-5 - - linear 6e-4 600000\n",
                            capture_output=True, text=True, check=True).stdout.splitlines()
    short, whole = (list(map(float, line.split())) for line in golden)
    assert short[0] == 0 and math.isclose(short[100], 9.43396226415e-5, rel_tol=1e-9), short[100]
    assert whole[636] == 6e-4 and whole[637] < 6e-4 and math.isclose(whole[250318], 3.3e-4, rel_tol=1e-9), whole[250318]
    assert math.isclose(whole[500000], 6e-5, rel_tol=1e-12) and whole[500001] == whole[599999] == 6e-5
    # fms-fsdp's first step has rate 0, with a warm-up.
    assert all(float(row.split()[0]) == 0 for case, row in zip(everything, rows) if case[0] == "fms_cosine" and case[3])
    print(f"ok: {checked} rates of {len(everything)} schedules")


if __name__ == "__main__":
    main()
