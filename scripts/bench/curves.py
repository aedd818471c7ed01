#!/usr/bin/env python3
"""Loss curves of runs that differ in how they compute, relative to one of them.

  scripts/bench/curves.py gaps FOLDER SEED REFERENCE RUN...   prints JSON: 100-step means of FOLDER/SEED-RUN/metrics.jsonl
                                                              over those of REFERENCE, less 1, in percent
  scripts/bench/curves.py draw [--check] FILE.json            writes FILE.svg; --check compares only, and ends with 1
                                                              when it differs

FILE.json: title; bounds {any: percent at any 100 steps, end: percent at the last}; machine, commit, command; runs
[{name, seed, gaps}]. Standard library only; the same JSON gives the same bytes.
"""
import json
import math
import sys
from html import escape
from pathlib import Path

WINDOW = 100
WIDTH, HEIGHT, LEFT, TOP, RIGHT = 560, 240, 44, 40, 170
COLOURS = ["#0969da", "#cf222e", "#1a7f37", "#8250df", "#9a6700", "#59636e", "#bf3989", "#0550ae"]
STYLE = """<style>
text{font:12px sans-serif;fill:#1f2328}.s{fill:#59636e;font-size:11px}.p{fill:#fff}.g{stroke:#d1d9e0}.b{fill:#59636e;opacity:.12}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}.p{fill:#0d1117}.g{stroke:#3d444d}}
</style>"""


def means(path):
    lines = [json.loads(line) for line in open(path)]
    losses = [float(line["loss"]) for line in lines if line["event"] == "train"]
    if len(losses) < WINDOW or not all(map(math.isfinite, losses)):
        sys.exit(f"curves.py: {path}: needs {WINDOW} steps or more, each with a finite loss")
    return [sum(losses[i:i + WINDOW]) / WINDOW for i in range(0, len(losses) - WINDOW + 1, WINDOW)]


def gaps(folder, seed, reference, runs):
    base = means(f"{folder}/{seed}-{reference}/metrics.jsonl")
    found = []
    for run in runs:
        gap = [round((a / b - 1) * 100, 3) for a, b in zip(means(f"{folder}/{seed}-{run}/metrics.jsonl"), base)]
        found.append(dict(name=run, seed=int(seed), gaps=gap))
        print(f"{run}: end {gap[-1]:+.3f} %, worst {max(gap, key=abs):+.3f} %", file=sys.stderr)
    print(json.dumps(found))


def svg(data):
    most = max(0.5, max(abs(gap) for run in data["runs"] for gap in run["gaps"]))
    top = -(-most // 0.5) * 0.5
    steps = max(len(run["gaps"]) for run in data["runs"])

    def x(i):
        return LEFT + WIDTH * (i + 1) / steps

    def y(gap):
        return TOP + HEIGHT * (top - gap) / (2 * top)

    total_width, total_height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + 40
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}" role="img">', STYLE,
             f'<rect class="p" width="{total_width}" height="{total_height}"/>',
             f'<text x="8" y="18">{escape(data["title"])}</text>',
             f'<text class="s" x="8" y="33">percent of the loss, means of {WINDOW} steps; '
             f'grey: within {data["bounds"]["any"]} %</text>',
             f'<rect class="b" x="{LEFT}" y="{y(data["bounds"]["any"]):.1f}" width="{WIDTH}" '
             f'height="{y(-data["bounds"]["any"]) - y(data["bounds"]["any"]):.1f}"/>']
    for tick in range(-int(top / 0.5), int(top / 0.5) + 1):
        lines.append(f'<path class="g" d="M{LEFT} {y(tick / 2):.1f}h{WIDTH}"/>'
                     f'<text class="s" x="{LEFT - 6}" y="{y(tick / 2) + 4:.1f}" text-anchor="end">{tick / 2:+g}</text>')
    for i in range(steps // 4, steps + 1, max(1, steps // 4)):
        lines.append(f'<text class="s" x="{x(i - 1):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{i * WINDOW}</text>')
    lines.append(f'<text class="s" x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">step</text>')
    for i, run in enumerate(data["runs"]):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(f"{x(k):.1f},{y(gap):.1f}" for k, gap in enumerate(run["gaps"]))
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{points}"/>')
        at = TOP + 12 + 18 * i
        lines.append(f'<path stroke="{colour}" stroke-width="3" d="M{LEFT + WIDTH + 10} {at - 4}h16"/>'
                     f'<text class="s" x="{LEFT + WIDTH + 32}" y="{at}">{escape(run["name"])}, seed {run["seed"]}</text>')
    return "\n".join(lines + ["</svg>", ""])


def draw(arguments):
    check = arguments[0] == "--check"
    path = Path(arguments[-1])
    made = svg(json.loads(path.read_text()))
    target = path.with_suffix(".svg")
    if not check:
        target.write_text(made)
    elif not target.exists() or target.read_text() != made:
        sys.exit(f"{target} does not match {path}: run scripts/bench/curves.py draw {path}")


def main():
    if len(sys.argv) >= 6 and sys.argv[1] == "gaps":
        gaps(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    elif len(sys.argv) >= 3 and sys.argv[1] == "draw":
        draw(sys.argv[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
