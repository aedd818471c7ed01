#!/usr/bin/env python3
"""Each module includes headers of the modules that src/CMakeLists.txt names as its DEPS, and of theirs, alone. The compiler does not see
to that: all public headers lie in one include directory."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Modules whose public headers lie in include/trireme/NAME.
SHARED = {"comm": {"comm", "world"}, "config": {"config", "compose", "config_import"}, "formats": {"formats", "arrow"}, "train": {"train"}}
KEYWORDS = {"DIR", "TORCH", "QUICK", "DEPS", "LIBS"}


def modules():
    """Folders and DEPS of each module."""
    text = (ROOT / "src/CMakeLists.txt").read_text()
    text = text.replace("${formats}", "${CMAKE_CURRENT_SOURCE_DIR}/formats").replace("${CMAKE_CURRENT_SOURCE_DIR}", "src").replace("${PROJECT_SOURCE_DIR}/", "")
    folders, deps = {}, {}
    for name, body in re.findall(r"trireme_module\((\w+)([^)]*)\)", text):
        lists, at = {key: [] for key in KEYWORDS}, None
        for word in body.split():
            at = word if word in KEYWORDS else at
            if word not in KEYWORDS:
                lists[at].append(word)
        folders[name], deps[name] = lists["DIR"] or [f"src/{name}"], set(lists["DEPS"])
    return folders, deps


def closure(name, deps):
    found, left = set(), [name]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += deps[one]
    return found


def owners(include, folders):
    """The modules that have the header; empty: a file of the folder itself, or of a library."""
    if found := re.match(r"trireme/(\w+)/", include):
        return SHARED.get(found[1], {found[1]})
    folder = include.rpartition("/")[0]
    return {name for name, places in folders.items() if folder in places} if folder.startswith(("data", "models")) else set()


def main():
    folders, deps = modules()
    assert len(folders) > 20 and "base" in closure("train", deps), folders
    problems, files = [], 0
    sources = [({name}, path) for name, places in folders.items() for place in places for path in (ROOT / place).iterdir()]
    sources += [(owners(f"trireme/{path.relative_to(ROOT / 'include/trireme')}", folders), path) for path in (ROOT / "include/trireme").rglob("*.h")]
    for names, path in sources:
        if path.suffix not in (".h", ".cpp", ".inc") or not names:
            continue
        files += 1
        allowed = set().union(*(closure(name, deps) for name in names))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = re.match(r'#include "([^"]+)"', line)
            of = owners(include[1], folders) if include else set()
            if of and not of & allowed:
                problems.append(f"{path.relative_to(ROOT)}:{number}: {include[1]} is of {'/'.join(sorted(of))}, which {'/'.join(sorted(names))} may not include")
            if include and include[1].startswith("kernels/") and not names & {"ops", "optim"}:
                problems.append(f"{path.relative_to(ROOT)}:{number}: {include[1]}: kernels are launched by ops and optim alone")
    assert files > 400, files
    assert not problems, "\n".join(problems)
    print(f"{files} files include what their module may")


if __name__ == "__main__":
    main()
