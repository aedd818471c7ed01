#!/usr/bin/env python3
"""`trireme report`: the page has what metrics.jsonl says, asks the network for nothing, stays small for long runs, and refuses what is no run."""
import argparse
import html.parser
import json
import math
import os
import re
import subprocess
import tempfile

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


def cells(text):
    """The table's row of the first run, by its column."""
    heads = re.findall("<th>([^<]*)</th>", text[:text.index("</tr>")])[1:]
    return dict(zip(heads, re.findall("<td>(.*?)</td>", text)))


def tool(args, *arguments, expect=0):
    done = subprocess.run([f"{args.bin}/trireme", "report", *arguments], capture_output=True, text=True)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


def resumed(args, work):
    """The time of all processes of a run; ranks on CPUs share the processor of their host, which is named once."""
    os.makedirs(f"{work}/parts")
    step = '{"event":"train","step":%d,"samples":8,"tokens":8,"loss":1.0,"grad_norm":1,"lr":0.1,"step_time_s":10.5,"samples_per_s":1,"tokens_per_s":1,"mfu":null,"memory_gib":1}\n'
    start = {"event": "run", "commit": "abc", "world_size": 2, "hosts": ["vm", "vm"], "devices": ["AMD EPYC", "AMD EPYC"], "device_type": "cpu"}
    with open(f"{work}/parts/metrics.jsonl", "w") as out:
        # The first process stopped after 100 s, the second was killed in its second step, the third has ended.
        out.write(json.dumps(start) + "\n" + step % 1 + json.dumps({"event": "end", "outcome": "signal", "step": 1, "train_runtime": 100}) + "\n")
        out.write(json.dumps({**start, "resumed_after_step": 1}) + "\n" + step % 2 + step % 3)
        out.write(json.dumps({**start, "resumed_after_step": 3}) + "\n" + step % 4 + json.dumps({"event": "end", "outcome": "done", "step": 4, "train_runtime": 50}) + "\n")
    tool(args, f"{work}/parts", "--output", f"{work}/out/parts.html")
    text = Page(open(f"{work}/out/parts.html").read()).all
    assert "2m51s" in text and ": AMD EPYC on vm, commit abc" in text, text[:1500]

    # Two steps on four ranks, then two on two: 100, 100, 120, 120 tokens/s and rank. A median of an even number lies between the two in the middle.
    with open(f"{work}/parts/metrics.jsonl", "w") as out:
        number = 0
        for ranks, rate in ((4, 400), (2, 240)):
            out.write(json.dumps({**start, "world_size": ranks, "resumed_after_step": number}) + "\n")
            for _ in range(2):
                number += 1
                out.write(json.dumps({"event": "train", "step": number, "loss": "nan" if number in (2, 4) else 1.5, "tokens_per_s": rate, "step_time_s": 2**number}) + "\n")
        out.write('{"event":"eval","step":4,"loss":"nan"}\n{"event":"eval","step":4,"loss":2.5}\n')
    tool(args, f"{work}/parts", "--output", f"{work}/parts.html")
    text = open(f"{work}/parts.html").read()
    found = cells(text)
    assert (found["median step"], found["tok/s per rank"], found["ranks"]) == ("6.0 s", "110", "4, then 2"), found
    # Losses that are not finite are said, whatever the others are.
    assert (found["last loss"], found["last eval"]) == ("not finite", "2.5"), found
    for says in ("2 of 4 training losses are not finite, the first at step 2", "1 of 2 evaluation losses is not finite, the first at step 4"):
        assert says in text, Page(text).all[:1500]

    # Values that differ in the fifth digit have ticks that differ.
    with open(f"{work}/parts/metrics.jsonl", "w") as out:
        out.write(json.dumps(start) + "\n" + "".join(json.dumps({"event": "train", "step": number, "loss": 2.3456 + 1e-5 * number, "step_time_s": 1}) + "\n" for number in range(1, 50)))
    tool(args, f"{work}/parts", "--output", f"{work}/parts.html")
    figure = next(part for part in open(f"{work}/parts.html").read().split("<figure>") if part.startswith("<figcaption>Training loss"))
    ticks = re.findall('class="v">([^<]*)<', figure)
    assert len(ticks) >= 3 and len(set(ticks)) == len(ticks) and all(len(tick) <= 8 for tick in ticks), ticks


def samples(args, work):
    """Answers to prompts: the first and the newest ones, as text, and the page stays small."""
    write_run(f"{work}/told", 40)
    with open(f"{work}/told/metrics.jsonl", "a") as out:
        for step in range(10, 500, 10):
            for number in range(40):
                out.write(json.dumps({"event": "sample", "step": step, "prompt_number": number + 1, "prompt": f"prompt {number}\n<second line>",
                                      "text": f"answer of {step}\n\n<b>" + '"' * 4000, "ended": False}) + "\n")
        out.write('{"event":"sample","step":500,"prompt":5}\n')
    tool(args, f"{work}/told", "--output", f"{work}/told.html")
    text = open(f"{work}/told.html").read()
    found = Page(text).all
    assert len(text) < 1e6 and "prompt 15\n<second line>" in found and "prompt 16" not in found, len(text)
    assert "answer of 10\n\n<b>" in found and "answer of 490" in found and "answer of 450" in found and "answer of 440" not in found and "answer of 20\n" not in found


def page(args, work):
    samples(args, work)
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
    found = Page(open(f"{work}/two.html").read()).all
    assert "1 value is not finite" in found and "1 of 401 training losses is not finite, the first at step 401" in found, found[:1500]

    for content, message in (("", "has no line of a step"), ("[1]\n{}\n", ":1: not a JSON object"), ('{"event":"train","step":-1}\n{}\n', ':1: "step" is -1')):
        with open(f"{work}/bad.jsonl", "w") as out:
            out.write(content)
        done = tool(args, f"{work}/bad.jsonl", "--output", f"{work}/bad.html", expect=3)
        assert message in done.stderr and not os.path.exists(f"{work}/bad.html"), done.stderr
    assert "name the output.dir" in tool(args, f"{work}/nowhere", expect=3).stderr
    os.symlink("circle", f"{work}/circle")
    assert "circle" in tool(args, f"{work}/circle", expect=2).stderr.splitlines()[-1]
    with open(f"{work}/one/page.html", "w") as out:
        out.write('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Ours</title></head></html>\n')
    for name in ("metrics.jsonl", "config.yaml", "page.html"):
        before = open(f"{work}/one/{name}").read()
        assert "name another file" in tool(args, f"{work}/one", "--output", f"{work}/one/{name}", expect=2).stderr
        assert open(f"{work}/one/{name}").read() == before
    tool(args, f"{work}/two", "--output", f"{work}/out/one.html")
    assert open(f"{work}/out/one.html").read() == open(f"{work}/two.html").read(), "an earlier report is replaced"
    forms(args, work)
    print("the page of one run and of two is right")


JUNK = ("", "{", "null", '{"event":"train","step":2,"loss":01}', '{"event":"train","step":2,"loss":1.}', '{"event":"train","step":2,"loss":.5}',
        '{"event":"train","step":2,"loss":nan}', '{"event":"train","step":2,"loss":-inf}', '{"event":"train","step":2,"loss":1e999}',
        '{"event":"train","step":2,"loss":1,}', '{"event":"train","step":2,"loss":1}}', '{"event":"train","step":2,"loss":"a\tb"}',
        '{"event":"train","step":2,"loss" 1}', '{"event":"train","step":2')
NO_STEP = ('{"event":"train","step":"x"}', '{"event":"train","step":null}', '{"event":"train","step":1e300}', '{"event":"train","step":-1,"loss":1}')


def forms(args, work):
    """The form of a line that the trainer writes and any other JSON of it give the same page."""
    write_run(f"{work}/plain/run", 300)
    plain = open(f"{work}/plain/run/metrics.jsonl").read()
    with open(f"{work}/plain/run/metrics.jsonl", "a") as out:
        out.write('{"event":"train","step":301,"loss":"nan","grad_norm":null,"lr":-1.5E-3,"loss":2.5,"mfu":null}\n')
    os.makedirs(f"{work}/other/run")
    with open(f"{work}/other/run/metrics.jsonl", "w") as out:
        for line in plain.splitlines():
            out.write(json.dumps(dict(reversed(json.loads(line).items())), indent=None) + " \n")
        out.write('{"more": {"loss": [1]}, "mfu": null, "lr": -0.0015, "loss": 2.5, "step": 301, "event": "train"}\n')
    with open(f"{work}/other/run/config.yaml", "w") as out:
        out.write(CONFIG % "0.001")
    for name in ("plain", "other"):
        tool(args, f"{work}/{name}/run", "--output", f"{work}/{name}.html")
    assert open(f"{work}/plain.html").read() == open(f"{work}/other.html").read()


def junk(args, work):
    """Lines that are almost the trainer's form are refused with their number."""
    for line, message in [*((line, ":2: not a JSON object") for line in JUNK), *((line, ':2: "step" is') for line in NO_STEP)]:
        with open(f"{work}/junk.jsonl", "w") as out:
            out.write('{"event":"train","step":1,"loss":3}\n' + line + '\n{"event":"train","step":3,"loss":2}\n')
        done = tool(args, f"{work}/junk.jsonl", "--output", f"{work}/junk.html", expect=3)
        assert message in done.stderr, (line, done.stderr)
    print(f"{len(JUNK) + len(NO_STEP)} wrong lines are refused")


def processor_seconds(args, *arguments):
    before = os.times()
    tool(args, *arguments)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def million(args, work):
    """One run of a million steps, then eight shorter ones: pages below 300 kB and 1 MB, with the lowest and highest value of every pixel."""
    write_run(f"{work}/long", 1000000)
    took = processor_seconds(args, f"{work}/long", "--output", f"{work}/long.html")
    size = os.path.getsize(f"{work}/long.html")
    assert size < 300e3, size
    Page(open(f"{work}/long.html").read())

    # The trainer's lines are read without the JSON library, which lines with a blank need. Both are timed on this machine: a
    # change of the trainer's form that makes every line slow fails here, a slow machine does not.
    with open(f"{work}/long/metrics.jsonl") as lines, open(f"{work}/blanks.jsonl", "w") as out:
        out.writelines(line.replace(",", ", ", 1) for line in lines)
    slow = processor_seconds(args, f"{work}/blanks.jsonl", "--output", f"{work}/blanks.html")
    assert took < 0.5 * slow, (took, slow)

    for number in range(8):
        write_run(f"{work}/run{number}", 20000, shift=number / 10)
    tool(args, *[f"{work}/run{number}" for number in range(8)], "--output", f"{work}/eight.html")
    assert os.path.getsize(f"{work}/eight.html") < 1e6, os.path.getsize(f"{work}/eight.html")
    print(f"a million steps: {size} bytes, {took:.1f} s of processor time ({slow:.1f} s through the JSON library); "
          f"eight runs: {os.path.getsize(f'{work}/eight.html')} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"page": page, "resumed": resumed, "junk": junk, "million": million}[arguments.case](arguments, folder)
