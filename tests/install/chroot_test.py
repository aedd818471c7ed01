#!/usr/bin/env python3
"""The packages in a bare Debian: packs the programs with their libraries, puts them into a chroot of debootstrap's minbase that has
no compiler and no Python, trains there on the CPU without a network and compares the losses with the build's. --form archive: a
folder, a copy of it and a moved one; --form deb: installed by apt, and removed again. Needs root, debootstrap and a Debian mirror (that
of this machine's apt); without them it skips with a sentence."""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

started = time.monotonic()

# Runs in the chroot and, with another TRIREME, on this machine. Each line must succeed.
STEPS = r"""set -e
cd "$WORK"
export PATH="$TRIREME/bin:$PATH" TRIREME_DEVICE=cpu OMP_NUM_THREADS=1 HOME="$WORK"
trireme --version
trireme tokenizer train --input text.txt --vocab-size 512 --output tokenizer.model --threads 1
trireme init-model --preset llama-tiny --vocab-size 512 --tokenizer tokenizer.model --output model
trireme data pack --tokenizer tokenizer.model --input text.txt --seq-length 64 --bos --output train.npy --threads 1
train_llama --config run.yaml
trireme generate --model run/model --prompt 'The plan' --max-new-tokens 8
train_bert --version
train_gpt --version
trireme-calibrate --help >/dev/null
"""
CONFIG = """model: {path: model}
data: {train: train.npy, seq_length: 64}
batch: {global_batch_size: 4, micro_batch_size: 2}
optimizer: {lr: 1.0e-3}
train: {max_steps: 5, seed: 7}
output: {dir: run}
"""


ABSENT = ("cc", "gcc", "g++", "python3", "mpirun")
PROGRAMS = {"train_llama", "train_bert", "train_gpt", "trireme", "trireme-calibrate"}
FORMS = {"archive": ("TZST", "*.tar.zst"), "deb": ("DEB", "*.deb")}  # CPack's generator, its file


def note(text):
    print(f"[{time.monotonic() - started:5.0f} s] {text}", flush=True)


def skip(text):
    print(f"SKIPPED: {text}")
    sys.exit(0)


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def mirror():
    """Suite and address of the Debian mirror that apt uses here."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.M))
    if release.get("ID") != "debian" or not shutil.which("apt-get"):
        skip("the chroot is made from the packages of a Debian machine, and this is none")
    suite = release["VERSION_CODENAME"]
    for line in run("apt-get", "indextargets", "--format", "$(CODENAME) $(SITE)").splitlines():
        codename, site = line.split()
        if codename == suite:
            return suite, site
    skip(f"apt has no package lists of {suite}: run apt-get update")


def pack(args, work):
    environment = {**os.environ, "TRIREME_BUNDLE": "ON"}
    generator, pattern = FORMS[args.form]
    run(args.cpack, "--config", Path(args.build) / "CPackConfig.cmake", "-B", work / "package", "-G", generator, env=environment)
    (package,) = (work / "package").glob(pattern)
    note(f"packed {package.name}: {package.stat().st_size / 2**20:.0f} MiB")
    shutil.rmtree(work / "package/_CPack_Packages")
    return package


def inside(root, script, network=False):
    """In the chroot, with /proc and /dev of its own mount namespace and, unless asked for, without a network."""
    mounts = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev"
    namespaces = ["--mount"] if network else ["--mount", "--net"]
    return run("unshare", *namespaces, "bash", "-c", f"{mounts} && exec chroot {root} /bin/bash -c {shlex.quote(script)}",
               env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"})


def steps(place, work):
    return f"export TRIREME={place} WORK={work}\n{STEPS}"


def prepare(folder, source):
    folder.mkdir(parents=True)
    pages = sorted(Path(source, "docs/howto").glob("*.md"))
    (folder / "text.txt").write_text("".join(page.read_text() for page in pages))
    (folder / "run.yaml").write_text(CONFIG)


def losses(folder):
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["event"] == "train"]


def check_libraries(root, programs, libraries):
    missing = inside(root, f"for f in {programs} {libraries}/*.so*; do ldd $f | sed \"s|^|$f:|\"; done | grep 'not found' || true")
    missing = [line for line in missing.splitlines() if "libcuda.so.1" not in line]  # the GPU driver's, of LibTorch's NVRTC wrapper only
    assert not missing, missing
    loaded = inside(root, f"for f in {programs}; do ldd $f; done | grep -E 'libtorch|libc10|libcu|libnccl' | grep -v libcurl").splitlines()
    outside = [line for line in loaded if os.path.normpath(os.path.dirname(line.split()[2])) != libraries]
    assert not outside, outside
    note("ldd: nothing missing")


def train(root, source, place, name):
    """The losses of the run in the chroot's folder `name` with the programs of `place`."""
    prepare(root / name, source)
    said = inside(root, steps(place, f"/{name}"))
    return losses(root / name), said


def check_archive(root, package, args, here):
    (root / "opt/first").mkdir()
    run("tar", "--zstd", "-xf", package, "-C", root / "opt/first", "--strip-components=1")
    note("unpacked")
    check_libraries(root, "/opt/first/bin/*", "/opt/first/lib/trireme")
    there, said = train(root, args.source, "/opt/first", "a")
    print(said)
    assert there == here, f"losses differ: build {here}, chroot {there}"
    note(f"losses equal the build's: {here}")

    # A second copy in another folder, and a moved one: nothing of the first place is left in them.
    run("cp", "-al", root / "opt/first", root / "srv/second")
    (root / "opt/first").rename(root / "opt/moved")
    for place, name in (("/srv/second", "b"), ("/opt/moved", "c")):
        assert train(root, args.source, place, name)[0] == here, place
    note("a copy and a moved folder train alike")


def check_deb(root, package, args, here):
    print(run("dpkg-deb", "--field", package, "Depends", "Installed-Size"))
    shutil.move(package, root / "srv/trireme.deb")
    try:
        inside(root, "apt-get update", network=True)
    except AssertionError as error:
        skip(f"apt reaches no mirror from the chroot: {error}")
    inside(root, "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /srv/trireme.deb", network=True)
    note(f"installed, with {inside(root, 'dpkg-query -f . -W').count('.')} packages in all")
    for absent in ABSENT:
        assert not (root / "usr/bin" / absent).exists(), f"the package installs {absent}"
    programs = inside(root, "dpkg -L trireme | grep ^/usr/bin/.").split()
    assert {Path(program).name for program in programs} == PROGRAMS, programs
    assert not (root / "usr/lib/trireme/system").exists(), "the .deb has copies of Debian's libraries"
    check_libraries(root, " ".join(programs), "/usr/lib/trireme")
    there, said = train(root, args.source, "/usr", "a")
    print(said)
    assert there == here, f"losses differ: build {here}, chroot {there}"
    note(f"losses equal the build's: {here}")
    inside(root, "dpkg --purge trireme")
    left = [path for path in ("usr/lib/trireme", "usr/share/trireme", "usr/bin/trireme") if (root / path).exists()]
    assert not left, f"dpkg --purge leaves {left}"
    note("removed without a rest")


def main():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "build", "source"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--form", choices=FORMS, default="archive")
    parser.add_argument("--package", type=Path, help="a package to test (default: packs the build)")
    args = parser.parse_args()
    if os.geteuid() != 0:
        skip("a chroot needs root")
    for tool in ("debootstrap", "unshare", "zstd"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed")
    suite, site = mirror()
    if shutil.disk_usage(tempfile.gettempdir()).free < 15 * 2**30:
        skip("less than 15 GiB are free for the package and its chroot")
    with tempfile.TemporaryDirectory(prefix="trireme-chroot-") as directory:
        work, root = Path(directory), Path(directory) / "root"
        made = subprocess.run(["debootstrap", "--variant=minbase", suite, root, site], capture_output=True, text=True)
        if made.returncode != 0:
            skip(f"debootstrap has no mirror: {made.stdout.strip().splitlines()[-1:]}")
        note(f"bare {suite}")
        for absent in ABSENT:
            assert not (root / "usr/bin" / absent).exists(), f"the chroot is not bare: it has {absent}"
        prepare(work / "here", args.source)
        run("bash", "-c", steps(args.build, work / "here"))
        here = losses(work / "here")
        assert len(here) == 5, here
        package = shutil.copy(args.package, work) if args.package else pack(args, work)
        (check_archive if args.form == "archive" else check_deb)(root, package, args, here)
    print("ok")


if __name__ == "__main__":
    main()
