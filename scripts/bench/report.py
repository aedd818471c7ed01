#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md and of README.md and the charts docs/results/*.svg from docs/results/*.json.

  scripts/bench/report.py [--check] [--docs FOLDER]

--check writes nothing and ends with 1 when the page or a chart does not match the JSON. A broken JSON file ends with 2
and one line that names file and key. Standard library only; the same JSON gives the same bytes.

A JSON file is one group of figures:
  title, order   heading; place on the page
  note           optional text below the heading
  layout         "rows": a line a row. "shapes": a line a name, a column a shape. "list": a line a name, its shapes in
                 one cell
  chart          optional {kind, shape?, reference?}. kind "speedup": ours against best, rows that have one. kind
                 "value": bars in the group's one unit, one a name, of `shape` or else of its first row; `reference`
                 {label, value} is drawn as a line
  defaults       keys that hold for every row that does not have them itself
  readme         optional: names of rows that README.md shows, in its order
  rows           name, machine, commit (of the measurement; null: not known), command, unit, ours, best (null: none),
                 best_source; optional must, shape
"""
import argparse
import json
import re
import sys
from decimal import Decimal
from html import escape
from itertools import count
from pathlib import Path

HIGHER = {"TB/s", "TFLOP/s", "GiB/s", "MiB/s", "tokens/s", "sequences/s", "samples/s"}
LOWER = {"s", "ms", "us", "deviation"}
ROW_KEYS = {"name": str, "machine": str, "commit": (str, type(None)), "command": str, "unit": str,
            "ours": (int, Decimal), "best": (int, Decimal, type(None)), "best_source": (str, type(None))}
OPTIONAL_ROW_KEYS = {"must": (int, Decimal), "shape": str}
GROUP_KEYS = {"title": str, "order": int, "layout": str, "rows": list}
OPTIONAL_GROUP_KEYS = {"note": str, "chart": dict, "defaults": dict, "readme": list}
CHART_KEYS = {"kind": str, "shape": str, "reference": dict}
BEGIN, END = "<!-- results: made by scripts/bench/report.py -->", "<!-- results: end -->"
NOT_RECORDED = "not recorded"
MOST_LINES, MOST_SVG_BYTES = 150, 20 * 1024


class Broken(Exception):
    """A file, the key in it, and what is wrong there."""


def fail(path, key, what):
    raise Broken(f"{path}: {key}: {what}")


def check_keys(path, where, value, required, optional):
    def at(key):
        return f"{where}.{key}" if where else key
    for key in value:
        if key not in required and key not in optional:
            fail(path, at(key), "unknown key")
    for key, types in required.items():
        if key not in value:
            fail(path, at(key), "missing")
        check_type(path, at(key), value[key], types)
    for key, types in optional.items():
        if key in value:
            check_type(path, at(key), value[key], types)


def check_type(path, where, value, types):
    if isinstance(value, bool) or not isinstance(value, types):
        names = {str: "a string", int: "a number", Decimal: "a number", type(None): "null", list: "a list",
                 dict: "an object"}
        wanted = types if isinstance(types, tuple) else (types,)
        fail(path, where, "must be " + " or ".join(dict.fromkeys(names[t] for t in wanted)))


def check_row(path, where, row):
    check_keys(path, where, row, ROW_KEYS, OPTIONAL_ROW_KEYS)
    if row["commit"] is not None and not re.fullmatch(r"[0-9a-f]{7,40}", row["commit"]):
        fail(path, f"{where}.commit", "must be a commit's hexadecimal name or null")
    if row["unit"] not in HIGHER | LOWER:
        fail(path, f"{where}.unit", f"unknown unit '{row['unit']}', known are {', '.join(sorted(HIGHER | LOWER))}")
    for key in ("ours", "best", "must"):
        if row.get(key) is not None and row[key] < 0:
            fail(path, f"{where}.{key}", "must not be negative")
    if (row["best"] is None) != (row["best_source"] is None):
        fail(path, f"{where}.best_source", "best and best_source are given together or are both null")
    for key in ("name", "machine", "command", "shape"):
        if "|" in row.get(key, "") or "\n" in row.get(key, ""):
            fail(path, f"{where}.{key}", "must not contain '|' or a line break")


def no_duplicates(path):
    def build(pairs):
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                fail(path, key, "given twice")
        return dict(pairs)
    return build


def load_group(path):
    try:
        group = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, object_pairs_hook=no_duplicates(path))
    except (OSError, ValueError) as error:
        fail(path, "(whole file)", error)
    if not isinstance(group, dict):
        fail(path, "(whole file)", "must be an object")
    check_keys(path, "", group, GROUP_KEYS, OPTIONAL_GROUP_KEYS)
    if group["layout"] not in ("rows", "shapes", "list"):
        fail(path, "layout", "must be rows, shapes or list")
    if not group["rows"]:
        fail(path, "rows", "must not be empty")
    defaults = group.get("defaults", {})
    for key in defaults:
        if key not in ROW_KEYS and key not in OPTIONAL_ROW_KEYS:
            fail(path, f"defaults.{key}", "unknown key")
    rows, seen = [], set()
    for i, row in enumerate(group["rows"]):
        if not isinstance(row, dict):
            fail(path, f"rows[{i}]", "must be an object")
        row = {**defaults, **row}
        check_row(path, f"rows[{i}]", row)
        if group["layout"] == "shapes" and "shape" not in row:
            fail(path, f"rows[{i}].shape", "missing")
        if (row["name"], row.get("shape")) in seen:
            fail(path, f"rows[{i}].name", f"'{row['name']}' with this shape is given twice")
        seen.add((row["name"], row.get("shape")))
        rows.append(row)
    group["rows"] = rows
    chart = group.get("chart")
    if chart is not None:
        check_keys(path, "chart", chart, {"kind": str}, CHART_KEYS)
        if chart["kind"] not in ("speedup", "value"):
            fail(path, "chart.kind", "must be speedup or value")
        if chart["kind"] == "value" and len({row["unit"] for row in rows}) > 1:
            fail(path, "chart.kind", "value needs one unit for all rows")
        if "reference" in chart:
            check_keys(path, "chart.reference", chart["reference"], {"label": str, "value": (int, Decimal)}, {})
        if not charted(group):
            fail(path, "chart", "no row to draw")
    group["name"] = path.stem
    return group


def load_groups(folder):
    paths = sorted(folder.glob("*.json"))
    if not paths:
        fail(folder, "*.json", "no file")
    return sorted((load_group(path) for path in paths), key=lambda group: (group["order"], group["name"]))


# --- tables ---

def number(value):
    return f"{value:e}" if 0 < value < Decimal("0.001") else f"{value:,}"


def common(rows, key):
    values = {row[key] for row in rows}
    return len(values) == 1


def shown(row, key):
    if row[key] in (None, NOT_RECORDED):
        return NOT_RECORDED
    return f"`{row[key]}`" if key == "command" else row[key]


def compared(row, with_source):
    """The figure and the one it is compared with."""
    if row["best"] is None:
        return f"**{number(row['ours'])}**"
    source = f"{row['best_source']} " if with_source else ""
    return f"**{number(row['ours'])}** ({source}{number(row['best'])})"


def joined(values):
    return "; ".join(dict.fromkeys(values))


def table(group):
    rows, layout = group["rows"], group["layout"]
    keys = [key for key in ("machine", "commit", "command") if not common(rows, key)]
    musts = any("must" in row for row in rows)
    one_unit, one_source = common(rows, "unit"), len({row["best_source"] for row in rows} - {None}) <= 1

    def tail(of):
        cells = []
        if musts:
            cells.append(joined(number(row["must"]) for row in of if "must" in row))
        for key in keys:
            cells.append(joined(shown(row, key) for row in of))
        return cells

    tail_heads = (["must"] if musts else []) + keys
    lines = []
    if layout == "rows":
        heads = ["work", "ours", "best known"] + tail_heads
        for row in rows:
            best = "" if row["best"] is None else f"{number(row['best'])} ({row['best_source']})"
            unit = "" if one_unit else f" {row['unit']}"
            lines.append([row["name"], f"**{number(row['ours'])}**{unit}", best] + tail([row]))
    else:
        names = list(dict.fromkeys(row["name"] for row in rows))
        shapes = list(dict.fromkeys(row.get("shape", "") for row in rows))
        heads = ["work"] + (shapes if layout == "shapes" else ["figures"]) + tail_heads
        for name in names:
            of = [row for row in rows if row["name"] == name]
            unit = "" if one_unit else f", {of[0]['unit']}"
            if layout == "shapes":
                by_shape = {row["shape"]: compared(row, not one_source) for row in of}
                cells = [by_shape.get(shape, "") for shape in shapes]
            else:
                cells = ["; ".join((f"{row['shape']}: " if "shape" in row else "") + compared(row, not one_source)
                                   for row in of)]
            lines.append([name + unit] + cells + tail(of))
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)] + ["| " + " | ".join(l) + " |" for l in lines]


def summary(group):
    """What holds for the whole table, in one line."""
    rows = group["rows"]
    parts = [group["note"]] if "note" in group else []
    if common(rows, "unit"):
        parts.append(f"Unit: {rows[0]['unit']}.")
    sources = {row["best_source"] for row in rows} - {None}
    if len(sources) == 1 and group["layout"] != "rows":
        parts.append(f"In brackets: {sources.pop()}.")
    for key in ("machine", "commit", "command"):
        if common(rows, key):
            parts.append(f"{key.capitalize()}: {shown(rows[0], key)}.")
    return " ".join(parts)


def section(group):
    lines = [f"## {group['title']}", summary(group)]
    if "chart" in group:
        lines.append(f"![{group['title']}](results/{group['name']}.svg)")
    return [line for line in lines if line] + [""] + table(group)


def readme_table(groups, path):
    """The named rows with all their figures, as docs/benchmarks.md has them."""
    lines = ["| work | figures (best known elsewhere) |", "|---|---|"]
    for group in groups:
        for name in group.get("readme", []):
            of = [row for row in group["rows"] if row["name"] == name]
            if not of:
                fail(path / f"{group['name']}.json", "readme", f"no row has the name {name!r}")
            cells = ((f"{row['shape']}: " if "shape" in row else "") + compared(row, True) for row in of)
            lines.append(f"| {name}, {of[0]['unit']} | {'; '.join(cells)} |")
    return "\n".join(lines)


def page(text, made, path):
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        fail(path, BEGIN, f"must stand there once, before one '{END}'")
    return text[:text.index(BEGIN)] + f"{BEGIN}\n\n{made}\n\n" + text[text.index(END):]


# --- charts ---

STYLE = """<style>
text{font:12px sans-serif;fill:#1f2328}.s{fill:#59636e;font-size:11px}.p{fill:#fff}.o{fill:#0969da}.b{fill:#afb8c1}
.l{stroke:#cf222e;stroke-width:1.5}.g{stroke:#d1d9e0}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}.p{fill:#0d1117}.o{fill:#4493f8}.b{fill:#6e7681}
.l{stroke:#ff7b72}.g{stroke:#3d444d}}
</style>"""
PLOT, TOP, ROW, BAR, LETTER = 300, 44, 24, 16, 7


def charted(group):
    if group["chart"]["kind"] == "speedup":
        return [row for row in group["rows"] if row["best"] is not None and row["ours"] > 0 and row["best"] > 0]
    shape, rows = group["chart"].get("shape"), {}
    for row in group["rows"]:
        if row["name"] not in rows or row.get("shape") == shape:
            rows[row["name"]] = row
    return list(rows.values())


def label_of(row, kind):
    return row["name"] + (f", {row['shape']}" if kind == "speedup" and "shape" in row else "")


def speedup(row):
    ratio = row["ours"] / Decimal(row["best"]) if row["unit"] in HIGHER else row["best"] / Decimal(row["ours"])
    return ratio.quantize(Decimal("0.001"))


def ticks(most):
    step = next(s for k in count(-1) for s in (Decimal(d).scaleb(k) for d in ("1", "2", "2.5", "5")) if most / s <= 7)
    return [step * i for i in range(int(most / step) + 1)]


def chart(group):
    kind, shape = group["chart"]["kind"], group["chart"].get("shape")
    reference, rows = group["chart"].get("reference"), charted(group)
    if kind == "speedup":
        reference = {"label": "best known = 1", "value": Decimal(1)}
        values = [(speedup(row), None) for row in rows]
        texts = [f"{value}x: {number(row['ours'])} against {number(row['best'])} {row['unit']}"
                 for row, (value, _) in zip(rows, values)]
        subtitle = "times the speed of the best known; longer is faster"
    else:
        values = [(row["ours"], row["best"]) for row in rows]
        texts = [number(row["ours"]) + ("" if row["best"] is None else f" ({row['best_source']} {number(row['best'])})")
                 for row in rows]
        better = "longer is better" if rows[0]["unit"] in HIGHER else "shorter is better"
        subtitle = f"{rows[0]['unit']}, {shape or 'the first figure of each row'}; {better}; grey: best known"
    labels = [label_of(row, kind) for row in rows]
    left = max(LETTER * max(map(len, labels)) + 16, 330)
    width = left + PLOT + LETTER * max(map(len, texts)) + 12
    most = max([v for pair in values for v in pair if v is not None] + ([reference["value"]] if reference else [])) or 1

    def x(value):
        return (left + PLOT * Decimal(value) / most).quantize(Decimal("0.1"))

    height, bottom = TOP + ROW * len(rows) + 24, TOP + ROW * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" role="img">', f"<title>{escape(group['title'])}</title>",
           STYLE, f'<rect class="p" width="{width}" height="{height}"/>',
           f'<text x="8" y="16" font-weight="bold">{escape(group["title"])}</text>',
           f'<text class="s" x="8" y="33">{escape(subtitle)}</text>']
    for tick in ticks(most):
        out.append(f'<path class="g" d="M{x(tick)} {TOP - 4}V{bottom}"/>'
                   f'<text class="s" x="{x(tick)}" y="{bottom + 15}" text-anchor="middle">{tick.normalize():f}</text>')
    for i, (label, (ours, best), text) in enumerate(zip(labels, values, texts)):
        y = TOP + ROW * i + (ROW - BAR) // 2
        out.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>')
        tall = BAR if best is None else BAR - 6
        out.append(f'<rect class="o" x="{left}" y="{y}" width="{x(ours) - left}" height="{tall}"/>')
        if best is not None:
            out.append(f'<rect class="b" x="{left}" y="{y + tall}" width="{x(best) - left}" height="6"/>')
        out.append(f'<text class="s" x="{left + PLOT + 6}" y="{y + 12}">{escape(text)}</text>')
    if reference:
        out.append(f'<path class="l" d="M{x(reference["value"])} {TOP - 8}V{bottom}"/>'
                   f'<text class="s" x="{x(reference["value"])}" y="{TOP - 11}" text-anchor="end">'
                   f'{escape(reference["label"])}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when something is out of date")
    parser.add_argument("--docs", type=Path, default=Path(__file__).resolve().parents[2] / "docs")
    args = parser.parse_args()
    results, benchmarks = args.docs / "results", args.docs / "benchmarks.md"
    try:
        groups = load_groups(results)
        files = {results / f"{group['name']}.svg": chart(group) for group in groups if "chart" in group}
        made = "\n\n".join("\n".join(section(group)) for group in groups)
        files[benchmarks] = page(benchmarks.read_text(encoding="utf-8"), made, benchmarks)
        if (readme := args.docs.parent / "README.md").exists():
            files[readme] = page(readme.read_text(encoding="utf-8"), readme_table(groups, results), readme)
    except Broken as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    problems = [f"{path}: {len(text.encode())} bytes, at most {MOST_SVG_BYTES}" for path, text in files.items()
                if path.suffix == ".svg" and len(text.encode()) > MOST_SVG_BYTES]
    if (lines := files[benchmarks].count("\n")) > MOST_LINES:
        problems.append(f"{benchmarks}: {lines} lines, at most {MOST_LINES}")
    stale = sorted(set(results.glob("*.svg")) - set(files))
    for path, text in files.items():
        if args.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                problems.append(f"{path} does not match docs/results/*.json: run scripts/bench/report.py")
        else:
            path.write_text(text, encoding="utf-8")
    for path in stale:
        if args.check:
            problems.append(f"{path} belongs to no JSON file: run scripts/bench/report.py")
        else:
            path.unlink()
    for problem in problems:
        print(f"report.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
