#!/usr/bin/env python3
"""scripts/bench/report.py on a small set of figures: the same bytes twice, --check, and broken JSON files."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "report.py"
PAGE = "# Figures\n\n<!-- results: made by scripts/bench/report.py -->\n<!-- results: end -->\n"
ROW = {"name": "norm", "machine": "1 H200", "commit": "55d7c1a", "command": "bench", "unit": "TB/s", "ours": 4.1,
       "best": 3.2, "best_source": "LibTorch"}
GROUP = {"title": "Kernels", "order": 1, "layout": "rows", "chart": {"kind": "value"},
         "rows": [ROW, {**ROW, "name": "gelu <erf>", "commit": None, "best": None, "best_source": None, "must": 3.6}]}


def run(docs, *flags):
    return subprocess.run([sys.executable, REPORT, "--docs", docs, *flags], capture_output=True, text=True)


def write(docs, text):
    (docs / "results").mkdir(exist_ok=True)
    (docs / "results" / "kernels.json").write_text(text)
    (docs / "benchmarks.md").write_text(PAGE)


def changed(**keys):
    return {**GROUP, **keys}


def with_row(**keys):
    return changed(rows=[ROW, {**ROW, "name": "other", **keys}])


def without(key):
    return changed(rows=[{k: v for k, v in ROW.items() if k != key}])


BROKEN = [
    ("{", "kernels.json: (whole file): Expecting"),
    ("[]", "kernels.json: (whole file): must be an object"),
    ('{"title": "a", "title": "b"}', "kernels.json: title: given twice"),
    (without("unit"), "kernels.json: rows[0].unit: missing"),
    (with_row(commit="head"), "kernels.json: rows[1].commit: must be a commit's hexadecimal name or null"),
    (with_row(ours="fast"), "kernels.json: rows[1].ours: must be a number"),
    (with_row(ours=True), "kernels.json: rows[1].ours: must be a number"),
    (with_row(unit="furlongs"), "kernels.json: rows[1].unit: unknown unit 'furlongs'"),
    (with_row(best=None), "kernels.json: rows[1].best_source: best and best_source"),
    (with_row(speed=1), "kernels.json: rows[1].speed: unknown key"),
    (with_row(name="norm"), "kernels.json: rows[1].name: 'norm' with this shape is given twice"),
    (changed(order="first"), "kernels.json: order: must be a number"),
    (changed(chart={"kind": "pie"}), "kernels.json: chart.kind: must be speedup or value"),
    (changed(defaults={"colour": "red"}), "kernels.json: defaults.colour: unknown key"),
    (changed(layout="shapes"), "kernels.json: rows[0].shape: missing"),
    (changed(rows=[]), "kernels.json: rows: must not be empty"),
]


def main():
    with tempfile.TemporaryDirectory() as folder:
        docs = Path(folder) / "docs"
        docs.mkdir()
        write(docs, json.dumps(GROUP))
        assert run(docs, "--check").returncode == 1, "a page without its tables passes"
        assert run(docs).returncode == 0
        page, chart = (docs / "benchmarks.md").read_bytes(), (docs / "results" / "kernels.svg").read_bytes()
        assert b"not recorded" in page and b"**4.1**" in page and b"gelu &lt;erf&gt;" in chart, page
        assert run(docs).returncode == 0 and run(docs, "--check").returncode == 0
        assert page == (docs / "benchmarks.md").read_bytes()
        assert chart == (docs / "results" / "kernels.svg").read_bytes()

        (docs / "results" / "kernels.json").write_text(json.dumps(GROUP).replace("4.1", "4.2"))
        out = run(docs, "--check")
        assert out.returncode == 1 and "kernels.svg does not match" in out.stderr and "benchmarks.md" in out.stderr, out
        assert page == (docs / "benchmarks.md").read_bytes(), "--check writes"

        # Charts of large figures and of zeros.
        for ours in (600000, 0):
            write(docs, json.dumps(changed(rows=[{**ROW, "ours": ours, "best": None, "best_source": None}])))
            assert run(docs).returncode == 0 and run(docs, "--check").returncode == 0, run(docs)
        # README.md has the rows that a group names.
        readme = docs.parent / "README.md"
        write(docs, json.dumps(changed(readme=["norm"])))
        readme.write_text(PAGE)
        assert run(docs).returncode == 0 and "| norm, TB/s | **4.1** (LibTorch 3.2) |" in readme.read_text(), readme.read_text()
        assert "gelu" not in readme.read_text() and run(docs, "--check").returncode == 0
        readme.write_text(readme.read_text().replace("4.1", "5"))
        out = run(docs, "--check")
        assert out.returncode == 1 and "README.md does not match" in out.stderr, out
        write(docs, json.dumps(changed(readme=["nrm"])))
        assert run(docs).returncode == 2 and "no row has the name 'nrm'" in run(docs).stderr
        readme.unlink()

        for broken, sentence in BROKEN:
            write(docs, broken if isinstance(broken, str) else json.dumps(broken))
            out = run(docs)
            assert out.returncode == 2 and sentence in out.stderr and len(out.stderr.splitlines()) == 1, (sentence, out)
            assert (docs / "benchmarks.md").read_text() == PAGE, f"{sentence}: the page is written"
    print(f"report.py: {len(BROKEN)} broken files are named, the page is reproduced")


if __name__ == "__main__":
    main()
