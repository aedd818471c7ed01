#!/usr/bin/env python3
"""The tools with input that is often wrong: metrics whose steps go back, temperatures that are not a number, JSON lines that only Python accepts, text in UTF-16; and the profile of a step on a CPU."""
import argparse
import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
from pathlib import Path


class Site:
    def __init__(self, binaries, work, every):
        self.bin, self.work, self.every = binaries, Path(work), every

    def some(self, cases, *default):
        """All cases with --all, else those with these numbers: each of the others is another value of the same kind."""
        return cases if self.every else [cases[i] for i in default]

    def run(self, program, *arguments, code=0, says="", silent_on=""):
        done = subprocess.run([f"{self.bin}/{program}", *map(str, arguments)], capture_output=True, text=True, cwd=self.work)
        text = done.stdout + done.stderr
        assert done.returncode == code, f"{program} {arguments}: exit {done.returncode}, not {code}\n{text[-2000:]}"
        assert says in text, f"{program} {arguments}: no '{says}' in\n{text[-2000:]}"
        assert not silent_on or silent_on not in text, f"{program} {arguments}: '{silent_on}' in\n{text[-2000:]}"
        return text


def check_plot(site):
    def metrics(name, steps, losses=None):
        rows = [{"event": "train", "step": step, "loss": loss} for step, loss in zip(steps, losses or [6 - 0.1 * i for i in range(len(steps))])]
        (site.work / name).write_text("\n".join(map(json.dumps, rows)) + "\n")
        return name

    site.run("trireme", "plot", metrics("back.jsonl", [1, 2, 500, 90000, 3, 4, 5, 80000, 2]), says="step 1")
    site.run("trireme", "plot", metrics("large.jsonl", [1, 2, 3], [1e308, -1e308, 1e300]))
    if site.every:
        site.run("trireme", "plot", metrics("down.jsonl", list(range(4000, 0, -1))), says="step 1 ")
        site.run("trireme", "plot", metrics("one.jsonl", [7]))
    for step in site.some((None, "3", 1e300), 2):
        site.run("trireme", "plot", metrics("bad.jsonl", [1, step]), code=3, says='bad.jsonl:2: "step" is')
    (site.work / "event.jsonl").write_text('{"event": 5}\n{"event": "train", "step": 1, "loss": 2.0}\n')
    site.run("trireme", "plot", "event.jsonl")
    os.mkfifo(site.work / "fifo.jsonl")
    site.run("trireme", "plot", "fifo.jsonl", code=3, says="cannot read fifo.jsonl: it is not a regular file")
    subprocess.run(f"cat event.jsonl | {site.bin}/trireme plot /dev/stdin", shell=True, check=True, cwd=site.work, stdout=subprocess.DEVNULL)
    # Labels have the digits that tell neighbours apart, beside the same picture.
    for low, high, step in ((1e-5, 3e-5, 1e-6), (1e6, 1e6 + 5, 1), (2.00001, 2.00003, 1e-6), (-3e-5, -1e-5, 1e-6), (0.5, 6, 1)):
        text = site.run("trireme", "plot", metrics("axis.jsonl", [1, 2, 3], [high, low, low]), "--columns", 20, "--rows", 6)
        labels = [line.split("|")[0] for line in text.splitlines() if "|" in line]
        assert len(set(labels)) == 6 and len({len(label) for label in labels}) == 1 and all(" |" in line for line in text.splitlines() if "|" in line), text
        assert abs(float(labels[0]) - high) < step and abs(float(labels[-1]) - low) < step, text
        assert len({len(line) for line in text.splitlines()[1:8]}) == 1, text
        ends = re.search(r"loss (\S+) -> (\S+)", text)
        assert abs(float(ends[1]) / high - 1) < 1e-6 and abs(float(ends[2]) / low - 1) < 1e-6, text
    site.run("trireme", "plot", metrics("flat.jsonl", [1, 2], [1e-5, 1e-5]), says="1.00e-05 |")
    # Losses that are not finite are said.
    site.run("trireme", "plot", metrics("nan.jsonl", [7, 8, 9, 10], [2, "nan", "inf", 1]), says="train loss 2 -> 1: 2 of 4 training losses are not finite, the first at step 8\n")
    site.run("trireme", "plot", metrics("nan.jsonl", [7, 8], [2, "nan"]), says="train loss 2 -> nan: 1 of 2 training losses is not finite, the first at step 8\n")
    site.run("trireme", "plot", metrics("nan.jsonl", [7, 8], ["nan", "nan"]), code=3, says="'train' lines with a finite loss: 2 of 2 training losses are not finite, the first at step 7")
    falls = metrics("falls.jsonl", list(range(1, 41)))
    for locale, ascii_only in (({"LC_ALL": "C"}, True), ({"LC_ALL": "", "LC_CTYPE": "", "LANG": ""}, True), ({"LC_ALL": "", "LC_CTYPE": "C.UTF-8"}, False),
                               ({"LC_ALL": "POSIX", "LANG": "en_US.utf8"}, True)):
        text = subprocess.run([f"{site.bin}/trireme", "plot", site.work / falls, "--columns", "20", "--rows", "5"], capture_output=True, check=True,
                              env={**os.environ, **locale}).stdout.decode()
        assert text.isascii() == ascii_only, (locale, text)
        drawn = [line.split("|")[1] for line in text.splitlines() if "|" in line]
        assert len(drawn) == 5 and all(len(line) == 20 for line in drawn), text
        # From the upper left to the lower right.
        assert drawn[0][0] not in " \u2800" and drawn[-1][-1] not in " \u2800" and drawn[0][-1] in " \u2800" and drawn[-1][0] in " \u2800", text
    for columns, widest in ((60, 60), (200, 83)):  # of the terminal; of a line
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        subprocess.run([f"{site.bin}/trireme", "plot", site.work / "back.jsonl"], stdout=inner, check=True)
        lines = os.read(outer, 1 << 16).decode().splitlines()
        assert len(lines) == 15 and max(map(len, lines[1:])) == widest, (columns, lines)
        os.close(inner)
        os.close(outer)


def check_tokenizer_lines(site):
    site.run("trireme", "tokenizer", "train", "--input", "text.txt", "--vocab-size", 320, "--output", "lines")
    done = subprocess.run([f"{site.bin}/trireme", "tokenizer", "encode", "--model", "lines", "-"], input=b"good\nb\xffd\n", capture_output=True, cwd=site.work)
    assert done.returncode == 3 and b"line 2 of the standard input: " in done.stderr, done


def check_tokenizer_outputs(site):
    train = ["tokenizer", "train", "--input", "text.txt", "--vocab-size", 320, "--output"]
    for output, foreign in (("one", "one/tokenizer.json"), ("two.model", "two.model"), ("three.npy", "three.npy")):
        (site.work / foreign).parent.mkdir(exist_ok=True)
        (site.work / foreign).write_text("{}")
    for options, says in ((("x.model", "--min-frequency", 2), "--min-frequency is for --format byte-level"), (("x.model", "--pattern", "gpt2"), "--pattern is for --format byte-level"),
                          (("x", "--threads", 1), "--threads is for --format sentencepiece"), (("x", "--verbose"), "--verbose is for --format sentencepiece")):
        site.run("trireme", *train, *options, code=2, says=says)
    site.run("trireme", *train, "one", code=73, says="one has a tokenizer or file that is not of this program")
    # Of sentencepiece's own program: its trainer_spec names the input.
    (site.work / "spm.model").write_bytes((site.work / "made/by/it/t.model").read_bytes() + b"\x12\x03\n\x01x")
    site.run("trireme", *train, "spm.model", code=73, says="spm.model has a tokenizer or file that is not of this program")
    (site.work / "bert").mkdir()
    (site.work / "bert" / "vocab.txt").write_text("[PAD]")
    site.run("trireme", *train, "bert", code=73, says="bert has a tokenizer or file that is not of this program")
    os.mkfifo(site.work / "fifo.npy")
    site.run("trireme", "data", "pack", "--tokenizer", "made/by/it/t.model", "--seq-length", 16, "--input", "text.txt", "--output", "fifo.npy", code=2,
             says="fifo.npy is there and is a FIFO: name a file")
    site.run("trireme", *train, "two.model", code=73, says="two.model has a tokenizer or file that is not of this program")
    site.run("trireme", "data", "pack", "--tokenizer", "made/by/it/t.model", "--seq-length", 16, "--input", "text.txt", "--output", "three.npy", code=2,
             says="three.npy is there and holds no rows: name another file")
    assert (site.work / "one" / "tokenizer.json").read_text() == (site.work / "two.model").read_text() == (site.work / "three.npy").read_text() == "{}"
    for output in ("new", "new/t.model"):
        site.run("trireme", *train, output)
        site.run("trireme", *train, output)
        (site.work / "new" / "config.json").write_text("{}")
        site.run("trireme", *train, output, code=73, says=f"{output} is the tokenizer of a model; choose another --output or add --force")
        site.run("trireme", *train, output, "--force")
        (site.work / "new" / "config.json").unlink()
        site.run("trireme", "tokenizer", "train", "--input", "absent.txt", "--vocab-size", 320, "--output", f"absent/{output}", code=3)
        assert not (site.work / "absent").exists()


def check_text(site):
    (site.work / "text.txt").write_text("\n\n".join(f"The trireme crossed the strait with {170 + i} rowers." for i in range(60)))
    site.run("trireme", "tokenizer", "train", "--input", "text.txt", "--vocab-size", 320, "--output", "made/by/it/t.model")
    pack = ["data", "pack", "--tokenizer", "made/by/it/t.model", "--seq-length", 16, "--output", "also/made/rows.npy"]
    check_tokenizer_outputs(site)
    check_tokenizer_lines(site)
    lines = ['{"text": "The rowers crossed the strait with the trireme."}'] * 20
    lines += ['{"text": "The rowers crossed.", "score": NaN, "n": 1e999, "id": "\\ud83d"}', '{"text": "half \\udc00 a pair"}'] + lines
    (site.work / "python.jsonl").write_text("\n".join(lines))
    site.run("trireme", *pack, "--input", "python.jsonl", says="skipped 1 document not encoded in UTF-8, the first at python.jsonl:22")
    (site.work / "wide.txt").write_text((site.work / "text.txt").read_text(), encoding="utf-16")
    site.run("trireme", *pack, "--input", "wide.txt", code=3, says="the text is UTF-16 or UTF-32, only UTF-8 is read")
    site.run("trireme", "tokenizer", "train", "--input", "wide.txt", "--vocab-size", 320, "--output", "w.model", code=3, says="the text is UTF-16")


def check_names(site):
    """The program acts by its name: a link of another one is refused, and argv[0] alone decides nothing."""
    other = site.work / "train_lama"
    other.symlink_to(Path(site.bin, "trireme").resolve())
    done = subprocess.run([other, "--version"], capture_output=True, text=True)
    assert done.returncode == 2 and "'train_lama': name it one of trireme" in done.stderr and "train_llama" in done.stderr, done
    done = subprocess.run(["anything", "--version"], executable=f"{site.bin}/trireme", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("trireme "), done
    done = subprocess.run(["anything", "--help"], executable=f"{site.bin}/trireme-calibrate", capture_output=True, text=True)
    assert "trireme calibrate" in done.stdout, done


def check_wrong_command_lines(site):
    for arguments, says in site.some((
            ("data megatron --output data/my-text", "trireme: data megatron: unknown option '--output'. Did you mean '--output-prefix'? (see trireme data megatron --help)"),
            ("data megatron --workers x", "--workers must be an integer >= 0, not 'x'"),
            ("data megatron --input a --output-prefix", "--output-prefix needs a value"),
            ("data megatron --input a --merge b", "--input and --merge exclude each other: give one of them"),
            ("data megatron --merge a b --output-prefix c --append-eod", "--append-eod and --merge exclude each other: give one of them"),
            ("data pack --input a", "trireme: data pack: --tokenizer, --output, --seq-length are missing (see trireme data pack --help)"),
            ("data pck", "trireme: data: unknown subcommand 'pck'. Did you mean 'pack'? (see trireme data --help)"),
            ("data", "trireme: data: a subcommand is missing: "),
            ("plot", "trireme: plot: the argument "),
            ("", "trireme: a subcommand is missing: init-model, ")), 0, 3, 4, 5):
        site.run("trireme", *arguments.split(), code=2, says=says)
    for arguments, says in site.some((
            ("--dry-rn", "train_llama: unknown option '--dry-rn'. Did you mean '--dry-run'?"),
            ("--config", "--config needs a value"),
            ("--ranks 0", "--ranks must be an integer from 1 to 1048576, not '0'"),
            ("--config x --ranks 2 --print-config", "--ranks is for --dry-run"),
            ("--config x extra", "train_llama: unexpected argument 'extra'")), 0, 2, 3):
        site.run("train_llama", *arguments.split(), code=2, says=says)


def check_sizes(site):
    """Sizes of init-model that no model has: exit code 2 with every preset, never 70."""
    listed = site.run("trireme", "init-model", "--preset", "none", "--output", "odd", code=2).split("Presets: ")[-1]
    presets = re.findall(r"[\w.-]*\w", listed) + ["bert-tiny", "bert-large"]
    assert len(presets) > 40 and "gemma3-1b" in presets, presets
    options = ("--layers", "--hidden-size", "--heads", "--kv-heads", "--head-dim", "--intermediate-size", "--vocab-size", "--max-positions")
    cases = [(preset, "--layers") for preset in presets] + [(preset, option) for preset in ("gemma3-1b", "gpt2", "bert-tiny") for option in options]
    for preset, option in site.some(cases, presets.index("gemma3-1b"), -1):
        if preset.startswith("bert") and option in ("--kv-heads", "--head-dim"):
            continue
        for value in site.some((-1, 0, 2**31, 10**18, -2**63), 0, 3) if preset == "gemma3-1b" else (-1,):
            site.run("trireme", "init-model", "--preset", preset, f"{option}={value}", "--config-only", "--output", "odd", code=2, says=f"{option} is {value}; it must be from 1")
        for value in site.some((3, 2**31 - 1), 1) if option != "--layers" or preset == "gemma3-1b" else ():
            done = subprocess.run([f"{site.bin}/trireme", "init-model", "--preset", preset, f"{option}={value}", "--config-only", "--force", "--output", "odd"],
                                  capture_output=True, text=True, cwd=site.work)
            assert done.returncode in (0, 2), (preset, option, value, done.returncode, done.stderr)


def check_adapter_and_export(site):
    """`adapter show` counts what the file holds; an export replaces no file of others."""
    train = ["train_llama", "--config", "run.yaml", "--set", "train.max_steps=1", "--set", "logging.profile_step=null", "--set"]
    site.run(*train, "lora.trainable_token_indices=[3, 50, 7]", "--set", "output.dir=tokens")
    stored = (site.work / "tokens/adapter/adapter_model.safetensors").read_bytes()
    entries = json.loads(stored[8:8 + int.from_bytes(stored[:8], "little")])
    sizes = {name: math.prod(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    text = site.run("trireme", "adapter", "show", "tokens/adapter", says=f"\n{sum(sizes.values()):,} parameters in ")
    rows, = (size for name, size in sizes.items() if "trainable_tokens" in name)
    assert f"\n3 rows of model.embed_tokens, {rows:,} parameters\n" in text, text
    site.run(*train, "output.save_every_samples=2", "--set", "output.dir=saved")
    for name, says in (("adapter_config.json", "taken already holds adapter_config.json; choose another directory"), ("tokenizer.json", "taken holds files of a model or tokenizer"),
                       ("model.safetensors", "taken holds files of a model or tokenizer")):
        (site.work / "taken").mkdir(exist_ok=True)
        (site.work / "taken" / name).write_text("mine")
        site.run("trireme", "checkpoint", "export", "saved", "--output", "taken", code=73, says=says)
        assert (site.work / "taken" / name).read_text() == "mine" and len(os.listdir(site.work / "taken")) == 1
        (site.work / "taken" / name).unlink()
    # What an interrupted export has left is no obstacle.
    (site.work / "taken" / ".incomplete").mkdir()
    (site.work / "taken" / "model.safetensors").write_text("half")
    site.run("trireme", "checkpoint", "export", "saved", "--output", "taken", says="model after step 1 in taken")


def check_generate_and_profile(site):
    site.run("trireme", "init-model", "--preset", "llama-tiny", "--vocab-size", 320, "--tokenizer", "made/by/it/t.model", "--output", "model")
    small = ["init-model", "--preset", "gpt3-126m", "--layers", 1, "--heads", 4, "--vocab-size", 320, "--hidden-size", 64]
    site.run("trireme", *small, "--output", "gpt")
    assert json.loads((site.work / "gpt/config.json").read_text())["n_inner"] == 256
    site.run("trireme", "init-model", "--preset", "llama2-7b", "--hidden-size", 100, "--output", "odd", code=2, says="no whole number: add --intermediate-size")
    site.run("trireme", "init-model", "--preset", "bert-tiny", "--kv-heads", 1, "--output", "odd", code=2, says="--kv-heads is not for BERT")
    for temperature in site.some(("nan", "-1", "inf"), 0):
        site.run("trireme", "generate", "--model", "model", "--prompt", "The", f"--temperature={temperature}", code=2, says="--temperature")
    (site.work / "run.yaml").write_text("""
model: {path: model}
data: {train: also/made/rows.npy, seq_length: 16}
batch: {global_batch_size: 2}
train: {max_steps: 2}
logging: {profile_step: 1}
output: {dir: run}
""")
    site.run("train_llama", "--config", "run.yaml", says="timeline of step 1", silent_on="gpuGetDeviceCount")
    assert site.run("trireme", "profile", "summarise", "run") == site.run("trireme", "profile", "summarise", "run/profile", says="attention")
    check_adapter_and_export(site)
    # Conversations are refused with the command that makes rows of them.
    messages = '{"messages": [{"role": "user", "content": "Who rows?"}, {"role": "assistant", "content": "The rowers."}]}'
    for name, text in site.some((("chat.jsonl", messages), ("chat.json", f"[{messages}]"),
                                 ("gpt.jsonl", messages.replace("messages", "conversations")), ("alpaca.jsonl", '{"instruction": "a", "output": "b"}'),
                                 ("pairs.jsonl", '{"prompt": "a", "completion": "b"}'), ("asked.jsonl", '{"query": "a", "response": "b"}')), 0, 3):
        (site.work / name).write_text(text + "\n")
        for key in ("data.train", "data.valid") if site.every else ("data.train",):
            out = site.run("train_llama", "--config", "run.yaml", "--dry-run", "--set", "output.dir=chat", "--set", f"{key}={name}", code=3,
                           says=": holds " + {"alpaca.jsonl": "instructions ('", "pairs.jsonl": "prompts and completions ('", "asked.jsonl": "questions and answers ('response'). Make rows of them, once they are named instruction and output, with"}.get(name, "conversations ('"))
            rows = Path(name).stem + ".npy"
            assert f"then set {key} to {rows}" in out and f"data chat --model '{site.work}/model' --input '{site.work}/{name}' --seq-length 16 --output {rows}" in out, out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        site = Site(args.bin, work, args.all)
        check_plot(site)
        check_text(site)
        check_names(site)
        check_wrong_command_lines(site)
        check_sizes(site)
        check_generate_and_profile(site)
    print("ok")


if __name__ == "__main__":
    main()
