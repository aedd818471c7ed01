#!/usr/bin/env python3
"""The package in a bare Debian: packs the programs with their libraries, unpacks them in a chroot of debootstrap's minbase that has
no compiler, no Python and no network, trains there on the CPU and compares the losses with the build's. Needs root, debootstrap
and a Debian mirror (that of this machine's apt); without them it skips with a sentence."""
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
    run(args.cpack, "--config", Path(args.build) / "CPackConfig.cmake", "-B", work / "package", "-G", "TZST", env=environment)
    (package,) = (work / "package").glob("*.tar.zst")
    note(f"packed {package.name}: {package.stat().st_size / 2**20:.0f} MiB")
    shutil.rmtree(work / "package/_CPack_Packages")
    return package


def inside(root, script):
    """In the chroot, with /proc and /dev of its own mount namespace and without a network."""
    mounts = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev"
    return run("unshare", "--mount", "--net", "bash", "-c", f"{mounts} && exec chroot {root} /bin/bash -c {shlex.quote(script)}",
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


def main():
    parser = argparse.ArgumentParser()
    for name in ("cpack", "build", "source"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--package", type=Path, help="an archive to test (default: packs the build)")
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
        for absent in ("cc", "gcc", "g++", "python3", "mpirun"):
            assert not list(root.glob(f"usr/bin/{absent}")), f"the chroot is not bare: it has {absent}"

        package = args.package or pack(args, work)
        (root / "opt/first").mkdir()
        run("tar", "--zstd", "-xf", package, "-C", root / "opt/first", "--strip-components=1")
        note("unpacked")
        missing = inside(root, "for f in /opt/first/bin/* /opt/first/lib/trireme/*.so*; do ldd $f | sed \"s|^|$f:|\"; done | grep 'not found' || true")
        missing = [line for line in missing.splitlines() if "libcuda.so.1" not in line]  # the GPU driver's, of LibTorch's NVRTC wrapper only
        assert not missing, missing
        outside = inside(root, "for f in /opt/first/bin/*; do ldd $f; done | grep -E 'libtorch|libc10|libcu|libnccl' | grep -v '=> /opt/first/' || true")
        assert not outside, outside
        note("ldd: nothing missing")

        prepare(root / "work", args.source)
        print(inside(root, steps("/opt/first", "/work")))
        note("trained in the chroot")
        prepare(work / "here", args.source)
        run("bash", "-c", steps(args.build, work / "here"))
        here, there = losses(work / "here"), losses(root / "work")
        assert len(here) == 5 and here == there, f"losses differ: build {here}, chroot {there}"
        note(f"losses equal the build's: {here}")

        # A second copy in another folder, and a moved one: nothing of the first place is left in them.
        run("cp", "-al", root / "opt/first", root / "srv/second")
        (root / "opt/first").rename(root / "opt/moved")
        for place, name in (("/srv/second", "b"), ("/opt/moved", "c")):
            prepare(root / name, args.source)
            inside(root, steps(place, "/" + name))
            assert losses(root / name) == here, place
        note("a copy and a moved folder train alike")
    print("ok")


if __name__ == "__main__":
    main()
