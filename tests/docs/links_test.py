#!/usr/bin/env python3
"""Relative links and pictures of README.md and docs/**/*.md lead to files that exist."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken, count = [], 0
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            count += 1
            if not (page.parent / target.split("#")[0]).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert count > 30, f"only {count} links found"
    if broken:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    print(f"{count} links of {len(pages)} pages")


if __name__ == "__main__":
    main()
