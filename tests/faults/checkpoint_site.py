"""Common code of the checkpoint fault tests: a small run, its reference, and ways to damage a checkpoint. Exit code 77 = skipped."""
import contextlib
import ctypes
import ctypes.util
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "train"))
from run_test import Site, np  # noqa: E402

STEPS, SAMPLES = 12, 8  # of the reference; an epoch of 40 rows is 5 steps


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def xxh3(data):
    name = ctypes.util.find_library("xxhash")
    if name is None:
        skip("libxxhash is not installed (Debian package libxxhash0): manifests cannot be written again after an edit")
    library = ctypes.CDLL(name)
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return f"{library.XXH3_64bits(data, len(data)):016x}"


class Outcome:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def last(self):
        """The program's last line; mpirun prints more after it."""
        lines = [line for line in self.err.splitlines() if line.startswith("train_llama: ")]
        return lines[-1] if lines else ""


class CheckpointSite(Site):
    """Runs of STEPS steps that save after every second one unless told otherwise."""

    def __init__(self, args, work):
        super().__init__(args, work)
        self.begin = time.time()
        self.references = {}

    def command(self, *overrides, **kwargs):
        return super().command(f"train.max_steps={STEPS}", f"output.save_every_samples={2 * SAMPLES}", *overrides, **kwargs)

    def environment(self, faults="", env=None):
        return dict(os.environ, TRIREME_FAULT=faults, **(env or {}))

    def run(self, *overrides, ranks=0, faults="", expect=0, extra=(), env=None, limit=120):
        begin = time.time()
        done = subprocess.run(self.command(*overrides, ranks=ranks, extra=extra), capture_output=True, text=True, timeout=limit,
                              env=self.environment(faults, env))
        result = Outcome(done.returncode, done.stdout, done.stderr, time.time() - begin)
        accepted = expect if isinstance(expect, (tuple, set)) else (expect,)
        assert result.code in accepted or (expect == "killed" and result.code not in (0, 75)), \
            f"exit {result.code}, expected {expect}, of {overrides} {faults}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        return result

    def start(self, *overrides, ranks=0, faults="", env=None):
        return subprocess.Popen(self.command(*overrides, ranks=ranks), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(faults, env))

    def numbers(self, run):
        return [(m["step"], m["samples"], m["loss"], m["grad_norm"]) for m in self.metrics(run)]

    def reference(self, *overrides, ranks=0):
        """Losses of a run without faults."""
        key = (overrides, ranks)
        if key not in self.references:
            name = f"reference{len(self.references)}"
            self.run(*overrides, f"output.dir={name}", ranks=ranks)
            self.references[key] = self.numbers(name)
            assert [n[0] for n in self.references[key]] == list(range(1, STEPS + 1))
        return self.references[key]

    def same(self, run, *overrides, ranks=0):
        """The run's numbers are bitwise equal to those of the run without faults."""
        got, want = self.numbers(run), self.reference(*overrides, ranks=ranks)
        assert got == want, "\n".join(f"{a} {b}" for a, b in zip(got, want) if a != b) or f"{len(got)} steps of {len(want)}"

    def directory(self, run):
        return f"{self.work}/{run}/checkpoints"

    def whole(self, run):
        return sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(f"{self.directory(run)}/step-????????/MANIFEST.json"))

    def leftovers(self, run):
        return [name for name in os.listdir(self.directory(run)) if ".tmp" in name]

    def stopped(self, run, *overrides, ranks=0):
        """A run that was killed with steps 4 and 6 saved: the state that the tests damage. Step 8's save has started then, after step 6's was committed."""
        self.run(*overrides, f"output.dir={run}", ranks=ranks, faults="sigkill@step:step9", expect="killed")
        assert self.whole(run) == ["step-00000004", "step-00000006"], self.whole(run)

    def checkpoint_tool(self, *arguments, expect=0):
        done = subprocess.run([f"{self.args.bin}/trireme", "checkpoint", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == expect, f"exit {done.returncode}, expected {expect}, of {arguments}:\n{done.stdout}\n{done.stderr}"
        return done

    def copy(self, source, target):
        """A copy of the run in another directory; its configuration is adapted."""
        shutil.copytree(f"{self.work}/{source}", f"{self.work}/{target}")
        return f"{self.directory(target)}"

    def report(self, fault, outcome, seconds):
        print(f"{fault}: {outcome}; {seconds:.1f} s")


def edit_manifest(directory, edit):
    """Changes the manifest and recomputes its hash: as from a faulty writer, not from a flipped bit."""
    path = f"{directory}/MANIFEST.json"
    manifest = json.load(open(path))
    edit(manifest)
    manifest.pop("xxh3")
    dump = lambda value: json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, separators=(",", ": "))
    manifest["xxh3"] = xxh3(dump(manifest).encode())
    open(path, "w").write(dump(manifest) + "\n")


def read_header(path):
    data = open(path, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    return data[8:8 + length].decode(), data[8 + length:]


def write_header(path, header, data):
    """Replaces the header; keeps the file's size if the new one is not longer."""
    old, _ = read_header(path)
    text = header.encode().ljust(len(old.encode()))
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def make_shim(work):
    """A library that makes the nth write below a checkpoint directory fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip("no C compiler for the shim that makes writes fail")
    source = os.path.join(os.path.dirname(__file__), "checkpoint_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", f"{work}/shim.so", source, "-ldl"], check=True)
    return f"{work}/shim.so"


@contextlib.contextmanager
def mounted(*arguments, target):
    os.makedirs(target, exist_ok=True)
    if os.geteuid() != 0:
        skip("only root can mount a small file system")
    done = subprocess.run(["mount", *arguments, target], capture_output=True, text=True)
    if done.returncode != 0:
        skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


__all__ = ["CheckpointSite", "Outcome", "STEPS", "SAMPLES", "edit_manifest", "flip", "make_shim", "mounted", "np", "read_header", "skip",
           "write_header"]
