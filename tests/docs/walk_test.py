#!/usr/bin/env python3
"""Executes the marked blocks of one page of docs/howto, in order, in a temporary folder on the CPU. Exit code 77 = skipped.

    walk_test.py --bin build/release/bin docs/howto/train-lora.md

A mark is an HTML comment on the line before a block:
    <!-- run -->          a shell block runs with bash -euo pipefail, a Python block with this Python; exit code 0 is expected
    <!-- file: NAME -->   the block's text is written to NAME
    <!-- shows -->        each line of the block occurs in the output of the block run before; blanks count as one, … is any text
The folder has build/release/bin, models and scripts as the repository has them. Blocks without a mark are not executed.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"^([ ]*)<!-- (run|shows|file: (\S+)) -->\n\1```(\w*)\n(.*?)^\1```$", re.M | re.S)
LICENCES = Path("/usr/share/common-licenses")


def marked_blocks(text, page):
    """(line, kind, name, language, body); every mark must stand before a block."""
    blocks = [(text.count("\n", 0, m.start()) + 1, m[2].split(":")[0], m[3], m[4], textwrap.dedent(m[5])) for m in MARK.finditer(text)]
    marks = len(re.findall(r"^[ ]*<!-- (?:run|shows|file:)", text, re.M))
    if marks != len(blocks):
        sys.exit(f"{page}: {marks} marks, but {len(blocks)} marked blocks: a mark is directly before ``` and as far indented")
    if not any(kind == "run" for _, kind, *_ in blocks):
        sys.exit(f"{page}: no block is marked <!-- run -->")
    return blocks


def execute(body, language, folder, environment):
    command = [sys.executable, "-c", body] if language == "python" else ["bash", "-euo", "pipefail", "-c", body]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, errors="replace")


def missing_lines(expected, output):
    """Lines of `expected` that no line of `output` contains."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    missing = []
    for line in filter(str.strip, expected.splitlines()):
        pattern = ".*".join(re.escape(part.strip()) for part in " ".join(line.split()).split("…"))
        if not any(re.search(pattern, text) for text in lines):
            missing.append(line)
    return missing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=Path)
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    if not (LICENCES / "GPL-3").is_file():
        print(f"SKIPPED: {LICENCES} has no texts to train on (package base-files)")
        sys.exit(77)
    blocks = marked_blocks(arguments.page.read_text(encoding="utf-8"), arguments.page)
    environment = {**os.environ, "TRIREME_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "build/release").mkdir(parents=True)
        (folder / "build/release/bin").symlink_to(arguments.bin.resolve())
        for name in ("models", "scripts"):
            (folder / name).symlink_to(ROOT / name)
        output, without = "", []
        for line, kind, name, language, body in blocks:
            place = f"{arguments.page.name}:{line}"
            before = os.times()
            if kind == "file":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(body, encoding="utf-8")
            elif kind == "shows":
                missing = missing_lines(body, output)
                if missing:
                    sys.exit(f"{place}: the output before does not have:\n" + "\n".join(missing) + f"\nIt is:\n{output[-4000:]}")
            else:
                done = execute(body, language, folder, environment)
                output = done.stdout
                absent = re.search(r"^ModuleNotFoundError: No module named '(\w+)", output, re.M)
                if language == "python" and absent:
                    without.append(f"{place} needs the package {absent[1]}")
                elif done.returncode != 0:
                    sys.exit(f"{place}: the block ended with exit code {done.returncode}:\n{body}\nOutput:\n{output[-4000:]}")
            after = os.times()
            used = after.children_user + after.children_system - before.children_user - before.children_system
            print(f"{place}: {kind} {name or language}{f', {used:.1f} s of processor time' if kind == 'run' else ''}", flush=True)
        if without:
            print("SKIPPED: the other blocks ran, but " + "; ".join(without))
            sys.exit(77)


if __name__ == "__main__":
    main()
