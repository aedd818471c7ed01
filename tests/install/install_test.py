#!/usr/bin/env python3
"""cmake --install: programs start from the installation, presets, Slurm scripts; and run.sub as a copy outside of any repository."""
import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def run(*command, code=0, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == code, f"{command}: exit {done.returncode}, not {code}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def check_install(args, prefix):
    run(args.cmake, "--install", args.build, "--prefix", prefix)
    clean = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    for program in ("train_llama", "train_bert", "train_gpt", "trireme"):
        assert f"{program} " in run(prefix / "bin" / program, "--version", env=clean, cwd="/")
    presets = sorted(str(p.relative_to(prefix)) for p in prefix.glob("share/trireme/presets/*/*.yaml"))
    assert presets == sorted(f"share/trireme/presets/{p.parent.parent.name}/{p.name}" for p in Path(args.source).glob("models/*/presets/*.yaml")), presets
    for preset in presets:
        program = "train_bert" if "/bert/" in preset else "train_gpt" if "/gpt3-" in preset else "train_llama"
        settings = ["--set", "model.path=/m", "--set", "data.train=/t", "--set", "data.valid=/v", "--set", "output.dir=/o"]
        run(prefix / "bin" / program, "--config", prefix / preset, *settings, "--print-config", env=clean)
    for name in ("run.sub", "run_and_time.sh", "train_llama.sbatch", "train_bert.sbatch"):
        assert (prefix / "share/trireme/slurm" / name).exists(), name
    assert os.access(prefix / "share/trireme/slurm/run_and_time.sh", os.X_OK)
    assert (prefix / "share/trireme/launch/conf/training/gpt3/126m.yaml").exists() and (prefix / "share/trireme/slurm/gpt3/common.sh").exists()
    assert (prefix / "share/doc/trireme/howto/train-bert.md").exists() and (prefix / "share/doc/trireme/errors.md").exists()


def stub(path, text):
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def check_run_sub(scripts, work):
    """Slurm's commands are replaced by stubs: srun runs its command once, on this machine."""
    copy, tools, logs = work / "copied", work / "tools", work / "logs"
    shutil.copytree(scripts, copy)
    tools.mkdir()
    stub(tools / "srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    stub(tools / "scontrol", "echo localhost\n")
    stub(tools / "python3", "exit 1\n")  # a Python without mlperf_logging
    stub(tools / "trainer", 'if [[ $1 == --version ]]; then echo "train_llama 0.1.0 (0123456789ab)"; fi\n')
    # Another repository around the copy: its commit is not the program's.
    run("git", "init", "-q", work)
    run("git", "-C", work, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "another")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RUNSUB_DIR": str(copy), "TRIREME_PROGRAM": str(tools / "trainer"),
                   "DGXSYSTEM": "test", "WALLTIME_RUNANDTIME": "5", "DATADIR": "/d", "MODEL": "/m", "LOGDIR": str(logs), "DATESTAMP": "now",
                   "DGXNGPU": "1", "CLEAR_CACHES": "0", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    text = run("bash", copy / "run.sub", env=environment)
    assert ":::GITCOMMITID 0123456789ab\n" in (logs / "now_1.log").read_text(), (logs / "now_1.log").read_text()
    assert "is not checked: mlperf_logging is not installed" in text, text
    assert "unchecked" not in run("bash", copy / "run.sub", env={**environment, "CHECK_COMPLIANCE": "0"})


def main():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "build", "source"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        check_install(args, work / "prefix")
        check_run_sub(work / "prefix/share/trireme/slurm", work)
    print("ok")


if __name__ == "__main__":
    main()
