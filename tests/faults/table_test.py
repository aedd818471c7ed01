#!/usr/bin/env python3
"""Checks that docs/faults.md has a row for every fault from F1 on without a gap, with tests that exist. table_test.py --ctest CTEST --build FOLDER"""
import argparse
import os
import re
import subprocess

LEAST = 51


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ctest", required=True)
    parser.add_argument("--build", required=True)
    args = parser.parse_args()
    listing = subprocess.run([args.ctest, "-N"], cwd=args.build, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^\s*Test\s+#\d+: (\S+)", listing, re.M))
    assert len(known) > 50, f"ctest -N lists {len(known)} tests only:\n{listing[:500]}"
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "faults.md")
    text = open(path).read()
    table = text[: text.index("## What only other machines can show")]
    rows = re.findall(r"^\| F(\d+) [^|]*\|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|$", table, re.M)
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= LEAST, [row[0] for row in rows]
    for number, tests, outcome, seconds in rows:
        names = [name for name in re.findall(r"`([^`]+)`", tests) if " " not in name]
        assert names, f"F{number} names no test"
        unknown = [name for name in names if name not in known]
        assert not unknown, f"F{number}: ctest knows no {', '.join(unknown)}"
        assert outcome.strip() and seconds.strip() and "@" not in seconds, f"F{number}: an outcome or a time is missing"
    print(f"{len(rows)} faults, each with tests that exist")


if __name__ == "__main__":
    main()
