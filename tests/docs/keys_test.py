#!/usr/bin/env python3
"""docs/reference/keys.md is what the program writes."""
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    program, page = Path(sys.argv[1]).absolute(), ROOT / "docs/reference/keys.md"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "--write-interface", folder], check=True)
        written = (Path(folder) / "keys.md").read_text(encoding="utf-8")
    keys = [line.split("`")[1] for line in written.splitlines() if line.startswith("| `")]
    assert len(keys) > 80 and len(keys) == len(set(keys)), keys
    assert {"model.path", "lora.r", "optimizer.lr", "batch.packing_rate", "profile.active"} <= set(keys), keys
    for line in written.splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 6, f"not five columns: {line}"
    if written != page.read_text(encoding="utf-8"):
        changes = difflib.unified_diff(page.read_text(encoding="utf-8").splitlines(), written.splitlines(), "the tree's", "the program's", lineterm="", n=0)
        sys.exit("\n".join(list(changes)[:20]) + "\ndocs/reference/keys.md is old: " + f"{program.name} --write-interface DIR && cp DIR/keys.md docs/reference/keys.md")
    print(f"{len(keys)} keys")


if __name__ == "__main__":
    main()
