#!/usr/bin/env python3
"""docs/howto/coming-from.md: a trainer refuses each of the names and names what the page puts in its place."""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    page = (ROOT / "docs/howto/coming-from.md").read_text(encoding="utf-8")
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ") and not line.endswith("| here |")]
    expected = {name: ours for *names, ours in rows for name in names if name}
    assert len(rows) > 30 and len(expected) > 50, (len(rows), len(expected))
    expected.pop("optimizer")  # the name of a section here
    names, said = list(expected), {}
    with tempfile.TemporaryDirectory() as work:
        config = pathlib.Path(work, "a.yaml")
        for begin in range(0, len(names), 50):  # the program suggests nothing after its first hundred problems
            config.write_text("".join(f"{name}: 1\n" for name in names[begin:begin + 50]))
            done = subprocess.run([sys.argv[1], "--config", config, "--print-config"], capture_output=True, text=True)
            assert done.returncode == 2, done
            said |= dict(re.findall(r"a\.yaml:\d+:\d+: unknown section '(\w+)'\.(.*)", done.stderr))
    wrong = [f"{name}: the page says {ours}, the program:{said.get(name)}" for name, ours in expected.items() if ours not in said.get(name, "")]
    assert not wrong, "\n".join(wrong)
    print(f"{len(expected)} names are answered")


if __name__ == "__main__":
    main()
