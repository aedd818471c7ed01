#!/usr/bin/env python3
"""No two files define a type of the same qualified name. The program would have one destructor and one copy for both, and neither the compiler nor the
linker would say so."""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
IGNORED = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.S)
NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*$")
TYPE = re.compile(r"\b(?:struct|class|enum|union)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*(?::[^:].*)?$", re.S)


def types_of(text):
    """Qualified names of the types that are defined at namespace scope, without those of anonymous namespaces."""
    text, scopes, begin = IGNORED.sub(" ", text), [], 0
    for mark in re.finditer(r"[{};]", text):
        head, begin = text[begin:mark.start()].strip(), mark.end()
        if mark[0] == "{":
            space, kind = NAMESPACE.search(head), TYPE.search(head)
            if space:
                scopes.append(space[1] or None)
                continue
            if kind and None not in scopes and False not in scopes:
                yield "::".join(scopes + [kind[1]])
            scopes.append(False)
        elif mark[0] == "}" and scopes:
            scopes.pop()


def main():
    assert list(types_of("namespace a { namespace { struct B {}; } struct C final : D { struct E {}; }; class F; void g(struct H* h) {} }")) == ["a::C"]
    files = collections.defaultdict(set)
    for folder in ("include", "src", "models", "data", "kernels"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                for name in types_of(path.read_text()):
                    files[name].add(str(path.relative_to(ROOT)))
    assert len(files) > 300, f"{len(files)} types found"
    twice = {name: sorted(where) for name, where in files.items() if len(where) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())


main()
