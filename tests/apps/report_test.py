#!/usr/bin/env python3
"""`trireme report`: the page has what metrics.jsonl says, asks the network for nothing, stays small for long runs, and refuses what is no run."""
import argparse
import html.parser
import json
import math
import os
import subprocess
import tempfile
import time

CONFIG = "model: {path: /m, init: random}\ndata: {train: /t.npy, seq_length: 64}\noptimizer: {lr: %s}\noutput: {dir: /o}\n"


def write_run(path, steps, lr="0.001", end=True, shift=0.0):
    os.makedirs(path)
    with open(f"{path}/metrics.jsonl", "w") as out:
        out.write(json.dumps({"event": "run", "commit": "abc", "world_size": 2, "hosts": ["n1", "n1"], "devices": ["GPU", "GPU"]}) + "\n")
        for step in range(1, steps + 1):
            loss = 4 * math.exp(-step / steps) + shift + (0.3 if step % 97 == 0 else 0)
            out.write(f'{{"event":"train","step":{step},"samples":{step * 8},"tokens":{step * 512},"loss":{loss},"grad_norm":{1 + step % 3},'
                      f'"lr":{0.001 * (1 - step / steps)},"step_time_s":{0.1 + 0.001 * (step % 7)},"samples_per_s":80,"tokens_per_s":5120,"mfu":0.4,"memory_gib":2.5}}\n')
            if step % (steps // 4) == 0:
                out.write(json.dumps({"event": "eval", "step": step, "samples": step * 8, "loss": loss + 0.1, "eval_time_s": 1}) + "\n")
                out.write(json.dumps({"event": "save", "step": step}) + "\n")
        out.write(json.dumps({"event": "spike", "step": steps // 2, "loss": 9, "z": 12, "skipped": True}) + "\n")
        if end:
            out.write(json.dumps({"event": "end", "outcome": "signal", "reason": "stopped by a signal <here>", "step": steps, "train_runtime": 61.5,
                                  "peak_memory_bytes": 2.5 * 2**30, "planned_memory_bytes": 2.4 * 2**30}) + "\n")
    with open(f"{path}/config.yaml", "w") as out:
        out.write(CONFIG % lr)


class Page(html.parser.HTMLParser):
    """Every element that is opened is closed; nothing is loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.figures, self.text = [], [], []
        self.feed(text)
        assert not self.open, self.open
        assert "<script" not in text and "http" not in text.replace("http-equiv", ""), "nothing comes from elsewhere"
        self.all = " ".join(self.text)

    def handle_starttag(self, tag, attributes):
        if tag == "meta":
            return
        for name, value in attributes:
            assert name not in ("src", "href"), (tag, name, value)
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        for name, value in attributes:
            assert "nan" not in str(value) and "inf" not in str(value), (tag, name, value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] == "figcaption":
            self.figures.append(data.strip())


def tool(args, *arguments, expect=0):
    done = subprocess.run([f"{args.bin}/trireme", "report", *arguments], capture_output=True, text=True)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


def page(args, work):
    write_run(f"{work}/one", 200)
    write_run(f"{work}/two", 400, lr="0.002", end=False, shift=0.2)
    tool(args, f"{work}/one", "--output", f"{work}/out/one.html")
    text = open(f"{work}/out/one.html").read()
    one = Page(text)
    for title in ("Training loss", "Evaluation loss", "Learning rate", "Gradient norm", "Throughput", "MFU", "Step times", "Peak memory of rank 0"):
        assert title in one.figures, (title, one.figures)
    assert "stopped by a signal <here>" in one.all and "&lt;here&gt;" in text, "what a file says is text"
    assert "2.5 GiB / 2.4 GiB" in one.all and "1m02s" in one.all and "2.56k" in one.all, "memory, time, tokens per second and rank"
    assert "checkpoint (4)" in one.all and "skipped step (1)" in one.all and "stop (1)" in one.all, one.all[:1500]
    assert "optimizer.lr" in one.all and "0.001" in one.all and "Keys that differ" not in one.all

    tool(args, f"{work}/one", f"{work}/two/metrics.jsonl", "--output", f"{work}/both.html")
    both = Page(open(f"{work}/both.html").read())
    differing = both.all[both.all.index("Keys that differ"):both.all.index("keys", both.all.index("Keys that differ") + 20)]
    assert "optimizer.lr" in differing and "0.002" in differing and "data.seq_length" not in differing, differing
    assert "no end line" in both.all and both.figures.count("Training loss") == 1

    # Values that are not finite leave gaps; a line that is still being written is no error.
    with open(f"{work}/two/metrics.jsonl", "a") as out:
        out.write('{"event":"train","step":401,"loss":"nan","grad_norm":"inf","lr":0,"step_time_s":0.1}\n{"event":"tr')
    tool(args, f"{work}/two", "--output", f"{work}/two.html")
    assert "1 value is not finite" in Page(open(f"{work}/two.html").read()).all

    for content, message in (("", "has no line of a step"), ("[1]\n{}\n", ":1: not a JSON object"), ('{"event":"train","step":-1}\n{}\n', ':1: "step" is -1')):
        with open(f"{work}/bad.jsonl", "w") as out:
            out.write(content)
        done = tool(args, f"{work}/bad.jsonl", "--output", f"{work}/bad.html", expect=3)
        assert message in done.stderr and not os.path.exists(f"{work}/bad.html"), done.stderr
    assert "name the output.dir" in tool(args, f"{work}/nowhere", expect=3).stderr
    print("the page of one run and of two is right")


def million(args, work):
    """Eight runs, one of a million steps: a page below 1 MB, with the lowest and highest value of every pixel."""
    write_run(f"{work}/long", 1000000)
    begin = time.monotonic()
    tool(args, f"{work}/long", "--output", f"{work}/long.html")
    took, size = time.monotonic() - begin, os.path.getsize(f"{work}/long.html")
    assert size < 300e3, size
    Page(open(f"{work}/long.html").read())
    for number in range(8):
        write_run(f"{work}/run{number}", 20000, shift=number / 10)
    tool(args, *[f"{work}/run{number}" for number in range(8)], "--output", f"{work}/eight.html")
    assert os.path.getsize(f"{work}/eight.html") < 1e6, os.path.getsize(f"{work}/eight.html")
    print(f"a million steps: {size} bytes, made in {took:.1f} s; eight runs: {os.path.getsize(f'{work}/eight.html')} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"page": page, "million": million}[arguments.case](arguments, folder)
