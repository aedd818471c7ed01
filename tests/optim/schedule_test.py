#!/usr/bin/env python3
"""Every learning rate of some hundred random schedules against fms-fsdp's and torchtitan's definitions, written down here from their formulas."""
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


def cases(random):
    for _ in range(400):
        steps, lr = random.randint(1, 400), 10 ** random.uniform(-5, -2)
        warmup = random.choice([0, 1, steps // 20, random.randint(0, steps), steps])
        least = random.choice([None, 0.0, 0.1, 1.0, random.random()])
        ratio = random.choice([None, 0.0, 1.0, 0.5, random.random()])  # 0.5 of an odd count is rounded half to even
        kind = random.choice(["linear", "sqrt", "cosine"])
        name = random.choice(["wsd", "wsd", "fms_cosine", "fms_cosine", "annealing", "cosine", "linear", "constant"])
        yield name, steps, lr, warmup, least, ratio, kind


def expected(case, step):
    name, steps, lr, warmup, least, ratio, kind = case
    if name == "wsd":
        return lr * torchtitan(step, steps, warmup, ratio, kind, least or 0.0)
    if name == "fms_cosine":
        return lr * fms(step, steps, warmup, 0.1 if least is None else least)
    if name == "annealing":
        return lr * (1 - step / steps)
    return old(name, step, steps, warmup, lr, lr * 0.25)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--probe", required=True)
    args = parser.parse_args()
    everything = list(cases(random.Random(20)))
    text = lambda value: "-" if value is None else repr(value)
    lines = [f"{name} {warmup} {lr * 0.25!r} {text(least)} {text(ratio)} {kind} {lr!r} {steps}" for name, steps, lr, warmup, least, ratio, kind in everything]
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
        assert rates[steps + 1] == rates[steps + 2], f"{case}: the rate changes after the run's end: {rates[-3:]}"
    # The step before the virtual last one still trains: torchtitan's rate never reaches 0 inside a run.
    assert all(min(map(float, row.split()[:case[1]])) > 0 for case, row in zip(everything, rows) if case[0] == "wsd")
    # fms-fsdp's first step has rate 0, with a warm-up.
    assert all(float(row.split()[0]) == 0 for case, row in zip(everything, rows) if case[0] == "fms_cosine" and case[3])
    print(f"ok: {checked} rates of {len(everything)} schedules")


if __name__ == "__main__":
    main()
