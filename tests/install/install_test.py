#!/usr/bin/env python3
"""cmake --install: programs start from the installation, presets, Slurm scripts; and run.sub as a copy outside of any repository."""
import argparse
import os
import re
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
    assert "train_llama " in run(prefix / "bin" / "train_llama", "--version", env=clean, cwd="/")  # check_interface starts all programs
    needed = run("ldd", prefix / "bin/trireme", env=clean)
    assert "libtorch_cpu" in needed and not re.search("libmpi|libnccl|libtorch_cuda", needed), needed  # the trainers alone need these
    presets = sorted(str(p.relative_to(prefix)) for p in prefix.glob("share/trireme/presets/*/*.yaml"))
    assert presets == sorted(f"share/trireme/presets/{p.parent.parent.name}/{p.name}" for p in Path(args.source).glob("models/*/presets/*.yaml")), presets
    tried = set()
    for preset in presets:
        source = Path(args.source, "models", *Path(preset).parts[3:4], "presets", Path(preset).name)
        assert (prefix / preset).read_bytes() == source.read_bytes(), preset
        program = "train_bert" if "/bert/" in preset else "train_gpt" if "/gpt3-" in preset else "train_llama"
        if program in tried:  # config_presets loads all
            continue
        tried.add(program)
        settings = ["--set", "model.path=/m", "--set", "data.train=/t", "--set", "data.valid=/v", "--set", "output.dir=/o"]
        run(prefix / "bin" / program, "--config", prefix / preset, *settings, "--print-config", env=clean)
    for name in ("run.sub", "run_and_time.sh", "train_llama.sbatch", "train_bert.sbatch"):
        assert (prefix / "share/trireme/slurm" / name).exists(), name
    assert os.access(prefix / "share/trireme/slurm/run_and_time.sh", os.X_OK)
    assert (prefix / "share/trireme/launch/conf/training/gpt3/126m.yaml").exists() and (prefix / "share/trireme/slurm/gpt3/common.sh").exists()
    docs = prefix / "share/trireme/docs"
    assert (docs / "howto/train-bert.md").exists() and (docs / "errors.md").exists() and (prefix / "share/trireme/README.md").exists()
    assert not (prefix / "lib/trireme").exists(), "libraries are copied only with TRIREME_BUNDLE"
    check_interface(prefix, clean)


def complete_in_bash(prefix, line):
    """What bash offers at the end of `line`."""
    words = line.split(" ")
    script = prefix / "share/bash-completion/completions" / words[0]
    quoted = " ".join(f"'{word}'" for word in words)
    text = run("bash", "-c", f'source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _{words[0]} 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"')
    return text.split()


def check_interface(prefix, clean):
    """Completions and man pages name every subcommand and option that --help names."""
    for program in ("trireme", "train_llama", "train_bert", "train_gpt"):
        page = (prefix / f"share/man/man1/{program}.1").read_text().replace("\\-", "-")
        helped = run(prefix / "bin" / program, "--help", env=clean, cwd="/")
        options = [line.split()[0].split(",")[-1] for line in helped.split("Configuration keys:")[0].splitlines() if line.startswith("  -")]
        assert len(options) >= 2, helped
        for option in options:
            assert option in page, f"{program}.1 lacks {option}"
            assert option in complete_in_bash(prefix, f"{program} {option}"), option
        assert "write-interface" not in page + helped
    assert {"init-model", "generate", "data"} <= set(complete_in_bash(prefix, "trireme "))
    assert "--seq-length" in complete_in_bash(prefix, "trireme data pack --seq")
    assert complete_in_bash(prefix, "trireme plot --event ") == ["train", "eval"]
    assert complete_in_bash(prefix, "train_llama --set optimizer.l") == ["optimizer.lr="]
    assert not complete_in_bash(prefix, "train_bert --set lora.") and complete_in_bash(prefix, "train_llama --set lora.")
    for shell, script in (("zsh", "share/zsh/vendor-completions/_trireme"), ("fish", "share/fish/vendor_completions.d/trireme.fish")):
        if shutil.which(shell):
            run(shell, "-n", prefix / script)
    if shutil.which("fish"):
        offered = run("fish", "-c", f"source {prefix / 'share/fish/vendor_completions.d/trireme.fish'}; complete -C 'trireme data pack --seq'")
        assert offered.startswith("--seq-length"), offered
    if shutil.which("groff"):
        warned = run("groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z", prefix / "share/man/man1/trireme.1")
        assert not warned, warned


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


def check_container(scripts, work):
    """CONT_FILE: train_llama.sbatch starts the program of an image, with the image and the mounted folders on srun's command line."""
    tools, submit = work / "container_tools", work / "submit"
    tools.mkdir()
    submit.mkdir()
    stub(tools / "srun", f'echo "$@" >>{work}/srun.log\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    stub(tools / "scontrol", "echo localhost\n")
    stub(tools / "train_llama", 'if [[ " $* " == *print-config* ]]; then echo "output:"; else echo 0 >"$TRIREME_EXIT_FILE"; fi\n')
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TRIREME_", "SLURM_"))}
    environment |= {"PATH": f"{tools}:/usr/bin:/bin", "CONT_FILE": "image.sqsh", "TRIREME_IN_IMAGE": "1", "TRIREME_MOUNTS": str(work),
                    "TRIREME_SBATCH_DIR": str(scripts), "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "2",
                    "SLURM_SUBMIT_DIR": str(submit)}
    run("bash", scripts / "train_llama.sbatch", "lora.yaml", env=environment)
    asked, started = (work / "srun.log").read_text().splitlines()
    for line in (asked, started):
        assert "--container-image=image.sqsh" in line and f"--container-mounts={submit}:{submit},{work}:{work}" in line, line
    assert asked.endswith("train_llama --config lora.yaml --print-config") and started.endswith("train_llama --config lora.yaml"), started
    refused = run("bash", scripts / "train_llama.sbatch", "lora.yaml", env={**environment, "TRIREME_MOUNTS": "/absent"}, code=2)
    assert "TRIREME_MOUNTS names /absent" in refused, refused


def main():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "build", "source"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        check_install(args, work / "prefix")
        check_run_sub(work / "prefix/share/trireme/slurm", work)
        check_container(work / "prefix/share/trireme/slurm", work)
    print("ok")


if __name__ == "__main__":
    main()
