#!/usr/bin/env python3
"""Damaged and hostile input for the programs. Checks the exit code, one sentence with the file as the last line, bounds of time and memory, that nothing is executed and nothing is created. Needs only the standard library."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from tiny_llama import write_llama  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
CONFIGS = HERE.parent / "config" / "fixtures"


# The fixtures of the default run: one of each kind. fixtures_test.cpp gives all of them to the readers; --all gives all
# of them to the programs.
SAMPLE = {
    "shape_2_to_60.npy", "pickle_bomb_protocol_2.npy", "pickle_nested_tuples.npy", "valid_big_endian.npy", "truncated.h5", "external_link.h5",
    "flipped_without_checksum.h5", "rows_2_to_40.h5", "header_over_100_mb.safetensors", "offsets_overlap.safetensors", "pickle.safetensors",
    "index_link.json", "index_long.json", "valid.model", "truncated.model", "tokenizer_merge_unknown.json",
}
# Those of them that the default run also tries with --dry-run; --all tries all.
DRY_SAMPLE = {"pickle_nested_tuples.npy", "flipped_without_checksum.h5", "model-offsets_overlap", "model-pytorch_model.bin", "adapter-rank", "adapter-wider", "adapter-negative", "output-below-a-file"}


class Outcome:
    """One process: exit code, stderr, processor seconds and peak memory."""

    def __init__(self, command, environment=None, cwd=None):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ, **(environment or {})),
                                   cwd=cwd)
        killer = threading.Timer(60, process.kill)
        killer.start()
        self.stderr = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = self.code = os.waitstatus_to_exitcode(status)
        self.seconds = usage.ru_utime + usage.ru_stime
        self.kilobytes = usage.ru_maxrss

    def last_line(self):
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else ""


class Site:
    def __init__(self, args, work):
        self.train = f"{args.bin}/train_llama"
        self.tool = f"{args.bin}/trireme"
        self.work = pathlib.Path(work)
        self.all = args.all
        self.dry_runs = 0
        write_llama(self.work / "base", 100, layers=1, positions=64, hidden=16, heads=2, kv_heads=1, intermediate=16)
        (self.work / "lora.yaml").write_text(f"""model: {{path: base}}
lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
data: {{train: {FIXTURES}/valid_version_2.npy, seq_length: 8, shuffle: false}}
batch: {{global_batch_size: 1}}
train: {{max_steps: 3}}
output: {{dir: out}}
""")

    def fixtures(self, pattern):
        return [path for path in sorted(FIXTURES.glob(pattern)) if self.all or path.name in SAMPLE]

    def run(self, name, *overrides):
        """The outcome of a run. A dry run before it must end in the same way and create nothing."""
        command = [self.train, "--config", str(self.work / "lora.yaml"), "--set", f"output.dir=out-{name}"]
        for override in overrides:
            command += ["--set", override]
        dry = Outcome([*command, "--dry-run"], cwd=self.work) if self.all or name in DRY_SAMPLE else None
        assert dry is None or not (self.work / f"out-{name}").exists(), "the dry run has created output.dir"
        outcome = Outcome(command, cwd=self.work)
        if dry is not None:
            self.dry_runs += 1
            assert dry.code == outcome.code, f"a dry run ends with {dry.code}, the run with {outcome.code}: {dry.stderr[-500:]} {outcome.stderr[-500:]}"
            assert dry.code == 0 or dry.last_line() == outcome.last_line(), f"the dry run says {dry.last_line()}\nthe run {outcome.last_line()}"
        return outcome

    def model(self, name, with_config=True):
        folder = self.work / name
        folder.mkdir()
        if with_config:
            shutil.copy(self.work / "base" / "config.json", folder)
        return folder


def expect(outcome, code, *parts):
    assert outcome.code == code, f"exit {outcome.code}, expected {code}: {outcome.stderr[-1500:]}"
    line = outcome.last_line()
    for part in parts:
        assert part in line, f"'{part}' is not in the last line: {line}"
    assert len(line) < 700 and "terminate called" not in outcome.stderr, outcome.stderr


def all_of(tasks):
    """Runs every task, two at a time, and reports all that fail."""
    failed = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, future in [(name, pool.submit(task)) for name, task in tasks]:
            try:
                future.result()
            except AssertionError as error:
                failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)
    print(len(tasks), "runs")


def data(site):
    names = [path.name for pattern in ("*.npy", "*.h5") for path in site.fixtures(pattern)]
    names += [str(path) for path in sorted((HERE.parent / "data" / "fixtures").glob("*" if site.all else "token_too_large.*")) if path.suffix != ".py"]

    def check(name):
        outcome = site.run(name.replace("/", "_")[-60:], f"data.train={FIXTURES / name}")
        if name.startswith("valid") or os.path.basename(name) in ("records.npy", "rows.h5", "rows.npy"):
            expect(outcome, 0)
        else:
            expect(outcome, 3, os.path.basename(name))
        if "token_" in name:  # F24: file, offset, value, vocabulary
            expect(outcome, 3, "token id ", "outside the model's vocabulary of 100")

    os.mkfifo(site.work / "fifo")
    tasks = [(name, lambda name=name: check(name)) for name in names]
    all_of([*tasks, ("fifo", lambda: expect(site.run("fifo", f"data.train={site.work}/fifo"), 3, "fifo: it is not a regular file"))])
    assert not (site.work / "executed").exists()


def model(site):
    tasks = []
    for path in site.fixtures("*.safetensors"):
        if path.stem == "valid":
            continue
        folder = site.model("model-" + path.stem)
        shutil.copy(path, folder / "model.safetensors")
        tasks.append((path.name, lambda folder=folder: expect(site.run(folder.name, f"model.path={folder}"), 4, "model.safetensors")))
        adapter = site.work / ("adapter-" + path.stem)
        adapter.mkdir()
        shutil.copy(path, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}))
        if "pickle" in path.stem or "torch" in path.stem:
            tasks.append(("adapter " + path.name, lambda folder=adapter: expect(
                site.run(folder.name, f"lora.adapter={folder}"), 4, "adapter_model.safetensors", "never opened")))
        elif site.all:
            tasks.append(("adapter " + path.name, lambda folder=adapter: expect(
                site.run(folder.name, f"lora.adapter={folder}"), 4, "adapter_model.safetensors")))
    (site.work / "outside.safetensors").write_bytes((FIXTURES / "valid.safetensors").read_bytes())
    for path in site.fixtures("index_*.json"):
        folder = site.model("model-" + path.stem)
        shutil.copy(path, folder / "model.safetensors.index.json")
        shutil.copy(FIXTURES / "valid.safetensors", folder)
        (folder / "link.safetensors").symlink_to("../outside.safetensors")
        tasks.append((path.name, lambda folder=folder: expect(site.run(folder.name, f"model.path={folder}"), 4, folder.name)))
    for name in ("pytorch_model.bin", "consolidated.00.pth", "model.pt") if site.all else ("pytorch_model.bin",):
        folder = site.model("model-" + name)
        shutil.copy(FIXTURES / "torch_zip.safetensors", folder / name)
        tasks.append((name, lambda folder=folder, name=name: expect(
            site.run(folder.name, f"model.path={folder}"), 4, name, "never opened", "safe_serialization=True")))
    folder = site.model("model-megatron")
    (folder / "mp_rank_00").mkdir()
    tasks.append(("Megatron", lambda folder=folder: expect(site.run(folder.name, f"model.path={folder}"), 4, "has mp_rank_00", "checkpoint of Megatron", "Megatron-Bridge")))
    for name, says in (("model_optim_rng.pt", "checkpoint of Megatron"), ("last.ckpt", "the class that wrote it")):
        shutil.copy(FIXTURES / "torch_zip.safetensors", site.work / name)
        tasks.append((name, lambda name=name, says=says: expect(site.run("file-" + name, f"model.path={site.work / name}"), 4, name, "never opened", says)))
    folder = site.model("model-integers")
    weights = (site.work / "base" / "model.safetensors").read_bytes()
    assert b'"F32"' in weights
    (folder / "model.safetensors").write_bytes(weights.replace(b'"F32"', b'"I32"'))
    tasks.append(("integers", lambda folder=folder: expect(site.run(folder.name, f"model.path={folder}"), 4, f"/{folder.name} ", " in model.safetensors is stored as I32")))
    file = site.work / "llama.pt"
    shutil.copy(FIXTURES / "torch_zip.safetensors", file)
    tasks.append(("a file", lambda: expect(site.run("file", f"model.path={file}"), 4, "llama.pt", "never opened")))
    bad_config = site.model("bad-config", with_config=False)
    (bad_config / "config.json").write_text('{"model_type": "llama", "hidden_size": 1e999}')
    tasks.append(("config.json", lambda: expect(site.run("bad-config", f"model.path={bad_config}"), 4, "config.json")))
    before = {path for path in site.work.iterdir()}
    all_of(tasks)
    created = {path.name for path in site.work.iterdir()} - {path.name for path in before}
    assert all(name.startswith("out-") for name in created), created
    assert not (site.work / "executed").exists()


def adapter(site):
    """Invalid values of lora.adapter: the message contains the directory."""
    def write(name, config=None, file="adapter_model.safetensors", r=2, layers=1, hidden=16, modules=("q_proj",), out=16):
        folder = site.work / ("adapter-" + name)
        folder.mkdir()
        if config is not None:
            (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": r, "lora_alpha": 4, "target_modules": list(modules), **config}))
        tensors, data = {}, b""
        for layer in range(layers):
            for module in modules:
                for matrix, shape in (("A", [r, hidden]), ("B", [out, r])):
                    size = 4 * shape[0] * shape[1]
                    tensors[f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{matrix}.weight"] = {
                        "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
                    data += bytes(size)
        header = json.dumps(tensors).encode()
        if file:
            (folder / file).write_bytes(len(header).to_bytes(8, "little") + header + data)
        return folder.name

    names = [write("whole", {}), write("no-config"), write("no-weights", {}, file=None), write("pickle", {}, file="adapter_model.bin"),
             write("rank", {}, r=4), write("alpha", {"lora_alpha": 8}), write("negative", {"lora_alpha": -4}), write("wider", {}, hidden=32), write("higher", {}, out=32),
             write("deeper", {}, layers=2), write("lacking", {}, modules=("k_proj",)), write("more-modules", {}, modules=("q_proj", "o_proj")),
             write("dora", {"use_dora": True}), "adapter-nowhere"]

    def check(name):
        outcome = site.run(name, f"lora.adapter={site.work / name}")
        expect(outcome, 0) if name == "adapter-whole" else expect(outcome, 4, name)
        if name == "adapter-negative":
            expect(outcome, 4, "lora_alpha of its adapter_config.json is -4")

    all_of([(name, lambda name=name: check(name)) for name in names if site.all or name in DRY_SAMPLE])


def output(site):
    """output.dir that is not a directory, or belongs to another user."""
    (site.work / "file").write_text("")
    (site.work / "dangling").symlink_to(site.work / "nowhere")
    (site.work / "loop").symlink_to("loop")
    (site.work / "full").mkdir()
    (site.work / "full" / "notes.txt").write_text("mine")
    (site.work / "damaged").mkdir()
    (site.work / "damaged" / "run.json").write_text("{}")
    assert site.run("finished").code == 0
    places = {"below-a-file": "file/run", "a-file": "file", "dangling": "dangling", "loop": "loop/run", "long": "x" * 300, "full": "full",
              "damaged": "damaged", "finished": "out-finished", "proc": "/proc/none/run"}

    def check(name, place):
        expect(site.run("output-" + name, f"output.dir={place}"), 73, "file" if name == "below-a-file" else os.path.basename(place)[:100])

    all_of([(name, lambda name=name, place=place: check(name, place)) for name, place in places.items()
            if site.all or "output-" + name in DRY_SAMPLE])


def tokenizer(site):
    def check(path):
        outcome = Outcome([site.tool, "tokenizer", "encode", "--model", str(path), "abc"])
        expect(outcome, 0 if path.stem.startswith("valid") else 3, *([] if path.stem.startswith("valid") else [path.name]))

    all_of([(path.name, lambda path=path: check(path)) for pattern in ("*.model", "*tokenizer*.json") for path in site.fixtures(pattern)])


def config(site):
    """F25, F26: refused before any MPI call (the environment names two MPI ranks that do not exist), within the limits of time and memory."""
    base = Outcome([site.train, "--version"])
    pretend = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_UNIVERSE_SIZE": "2", "PMIX_NAMESPACE": "nowhere", "PMIX_RANK": "0"}
    minimal = "model: {path: base}\ndata: {train: rows.npy, seq_length: 8}\noutput: {dir: out-config}\n"
    made = {
        "ten_megabytes": minimal + "# comment\n" * (1 << 20),
        "nesting_of_100000": minimal + "lora: " + "[" * 100_000 + "]" * 100_000 + "\n",
        "mappings_of_100000": minimal + "lora: " + "{a: " * 100_000 + "\n",
        "alias_bomb_of_20_levels": "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 21)),
        "merge_keys": "base: &base {lr: 1}\noptimizer: {<<: *base}\n",
    }
    if not site.all:  # limits_test.cpp has mappings too
        made = {name: made[name] for name in ("ten_megabytes", "nesting_of_100000", "alias_bomb_of_20_levels")}
    for name, text in made.items():
        (site.work / f"{name}.yaml").write_text(text)
    kept = ["tab", "duplicate_key", "wrong_shapes", "nan_lr", "two_documents", "invalid_utf8", "many"]
    files = [site.work / f"{name}.yaml" for name in made] + [CONFIGS / f"{name}.yaml" for name in kept]
    if site.all:
        files = [site.work / f"{name}.yaml" for name in made] + [path for path in sorted(CONFIGS.glob("*.yaml")) if not path.stem.startswith("valid")]

    def check(path):
        outcome = Outcome([site.train, "--config", str(path)], pretend)
        expect(outcome, 2, path.name)
        if site.all:
            dry = Outcome([site.train, "--config", str(path), "--dry-run"], pretend)
            assert dry.code == 2 and dry.stderr == outcome.stderr, dry.stderr
        first = outcome.stderr.splitlines()[0]
        place = first[len(str(path)) + 1:].split(":")
        assert first.startswith(f"{path}:") and place[0].isdigit() and place[1].isdigit(), first
        assert outcome.seconds < base.seconds + 1, f"{outcome.seconds} s of processor time"
        assert outcome.kilobytes < base.kilobytes + 200 * 1024, f"{outcome.kilobytes} kB"

    all_of([(path.name, lambda path=path: check(path)) for path in files])

    # All problems at once, with the nearest valid value, again before MPI.
    outcome = Outcome([site.train, "--config", str(site.work / "lora.yaml"), "--set", "batch.global_batch_size=9"], pretend)
    assert outcome.code == 2 and "nearest are 8 and 10" in outcome.stderr, outcome.stderr
    outcome = Outcome([site.train, "--config", str(CONFIGS / "combinations.yaml")])
    assert outcome.code == 2 and len(outcome.stderr.splitlines()) == 7 and "nearest are 8 and 12" in outcome.stderr, outcome.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", required=True)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        site = Site(args, work)
        {"data": data, "model": model, "adapter": adapter, "output": output, "tokenizer": tokenizer, "config": config}[args.case](site)
        if site.dry_runs:
            print(site.dry_runs, "dry runs with the same exit codes and last lines")
    print(f"{args.case}: {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
