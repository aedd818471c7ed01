#!/usr/bin/env python3
"""cmake --install: programs start from the installation, presets, Slurm scripts; the Slurm scripts with stubs in the place of Slurm's commands;
which folders quickstart.sh replaces; versions of packages."""
import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path


def run(*command, code=0, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == code, f"{command}: exit {done.returncode}, not {code}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def check_install(args, prefix):
    run(args.cmake, "--install", args.build, "--prefix", prefix)
    clean = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    assert "train_llama " in run(prefix / "bin" / "train_llama", "--version", env=clean, cwd="/")  # check_interface starts all programs
    assert "calibrate" in run(prefix / "bin" / "trireme-calibrate", "--help", env=clean, cwd="/")
    # The name of the file counts where argv[0] is none of ours.
    assert "train_gpt " in run("bash", "-c", f"exec -a other {prefix}/bin/train_gpt --version", env=clean, cwd="/")
    names = {path.name: path.is_symlink() for path in (prefix / "bin").iterdir()}
    assert names == {"trireme": False} | dict.fromkeys(("train_llama", "train_bert", "train_gpt", "trireme-calibrate"), True), names
    # libtorch_cuda is loaded at run time, where there is a driver.
    needed = run("ldd", prefix / "bin/trireme", env=clean)
    assert "libtorch_cpu" in needed and "libtorch_cuda" not in needed, needed
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
    # trireme launch, of the installation: not of PATH.
    launched = run("bash", prefix / "share/trireme/slurm/gpt3/1.bmk-pretrain-gpt3-126m.sh", cwd=prefix.parent,
                   env={**clean, "PATH": "/usr/bin:/bin", "NEMO_LAUNCHER_DEBUG": "1"})
    (job,) = prefix.parent.glob("results/*/*.sh")
    assert f"{prefix}/bin/train_gpt" in job.read_text(), launched + job.read_text()
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
    stub(tools / "trainer", 'if [[ $1 == --version ]]; then echo "train_llama 0.1.0 (0123456789ab)"; else echo "$@"; fi\n')
    # Another repository around the copy: its commit is not the program's.
    run("git", "init", "-q", work)
    run("git", "-C", work, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "another")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RUNSUB_DIR": str(copy), "TRIREME_PROGRAM": str(tools / "trainer"),
                   "DGXSYSTEM": "test", "WALLTIME_RUNANDTIME": "5", "DATADIR": "/d", "MODEL": "/m", "LOGDIR": str(logs), "DATESTAMP": "now",
                   "DGXNGPU": "1", "CLEAR_CACHES": "0", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    text = run("bash", copy / "run.sub", env=environment)
    assert ":::GITCOMMITID 0123456789ab\n" in (logs / "now_1.log").read_text(), (logs / "now_1.log").read_text()
    assert "is not checked: mlperf_logging is not installed" in text, text
    # NEXP=2 after a config_*.sh has computed WALLTIME for one run.
    left = {**environment, "NEXP": "2", "WALLTIME_RUNANDTIME": "60", "SLURM_JOB_END_TIME": str(int(time.time()) + 70 * 60)}
    text = run("bash", copy / "run.sub", env=left)
    assert "the job ends in" in text and "NEXP=2 runs of up to 60 minutes need 135: set NEXP before" in text and "sbatch -t 135" in text, text
    assert "the job ends in" not in run("bash", copy / "run.sub", env={**left, "NEXP": "1"})
    assert "unchecked" not in run("bash", copy / "run.sub", env={**environment, "CHECK_COMPLIANCE": "0"})
    # In a container: a build's tree, an installation, nothing of an image with its own program.
    stub(tools / "srun", f'echo "$@" >>{work}/asked\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    project, rest = work / "project", f"/d:/d:ro,/m:/m:ro,{logs}:{logs}:rw,{copy}:{copy}:ro"
    (project / "build/release").mkdir(parents=True)
    for build, more, mounts in ((project / "build/release", {}, f"{project}:{project}:ro,{rest}"), (scripts.parents[2], {}, f"{scripts.parents[2]}:{scripts.parents[2]}:ro,{rest}"),
                                (project, {"TRIREME_IN_IMAGE": "1"}, rest)):
        run("bash", copy / "run.sub", env=environment | more | {"TRIREME_BUILD": str(build), "CONT_FILE": "image.sqsh"})
        assert f" --container-mounts={mounts} {copy}/run_and_time.sh\n" in (work / "asked").read_text(), (mounts, (work / "asked").read_text())
    # By hand under mpirun.
    text = run("bash", copy / "run_and_time_bert.sh", env={**environment, "TRIREME_BUILD": "/b", "BATCHSIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert "batch.global_batch_size=6" in text and "RESULT" not in text, text


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


def check_sbatch(scripts, work):
    """train_llama.sbatch without a container: where programs are found and the exit file lies, and what follows a stop."""
    tools, prefix = work / "sbatch_tools", work / "pre fix"
    tools.mkdir()
    (prefix / "bin").mkdir(parents=True)
    shutil.copytree(scripts, prefix / "share/trireme/slurm")
    # What sbatch does: a copy runs, and Slurm knows the path of the original and its arguments.
    for name in ("train_llama.sbatch", "train_bert.sbatch", "pretrain/01.pretrain.sbatch"):
        shutil.copy(scripts / name, work / "spooled")
        stub(tools / "scontrol", f'[[ $1 == requeue ]] && echo requeued >>{work}/requeued\necho "   Command={prefix}/share/trireme/slurm/{name} lora.yaml"\n')
        stub(tools / "srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
        stub(tools / "squeue", "echo 9:30\n")
        for trainer in ("train_llama", "train_bert"):
            stub(prefix / "bin" / trainer, 'if [[ " $* " != *print-config* ]]; then echo "ran $0"; echo ${CODE:-0} >"${TRIREME_EXIT_FILE:-/dev/null}"; fi; exit ${CODE:-0}\n')
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TRIREME_", "SLURM_"))}
        environment |= {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "1",
                        "SLURM_SUBMIT_DIR": str(work), "HOME": str(work)}
        said = run("bash", work / "spooled", "lora.yaml", env=environment)
        assert f"ran {prefix}/bin/{'train_bert' if 'bert' in name else 'train_llama'}\n" in said, said
    # No file can be made in /proc, not even by root.
    for home in (work, "/proc"):
        said = run("bash", work / "spooled", "lora.yaml", env=environment | {"SLURM_SUBMIT_DIR": "/proc", "HOME": str(home)})
        assert said.count("ran ") == 1 and "with exit code 0" in said, said
        assert ("srun alone tells" in said) == (home == "/proc"), said
    # 75: --signal warned of the time limit, however much time is left, and warns once.
    stopped = environment | {"CODE": "75"}
    assert run("bash", work / "spooled", "lora.yaml", env=stopped, code=75).count("ran ") == 1
    assert not (work / "requeued").exists()
    assert run("bash", work / "spooled", "lora.yaml", env=stopped | {"TRIREME_REQUEUE": "1"}, code=75).count("ran ") == 1
    assert (work / "requeued").read_text() == "requeued\n"
    # 71 is tried again.
    assert run("bash", work / "spooled", "lora.yaml", env=environment | {"CODE": "71"}, code=71).count("ran ") == 3
    # Told to stop as the script is, srun kills a step whose ranks have saved.
    stub(tools / "scancel", "true\n")
    stub(tools / "srun", 'while [[ $1 == --* ]]; do shift; done\n"$@"\nkill -TERM $PPID\nexit 137\n')
    assert run("bash", work / "spooled", "lora.yaml", env=stopped, code=75).count("ran ") == 1


def check_stop_of_run_sub(scripts, work):
    """SIGTERM to run.sub's shell reaches the trainer through run_and_time.sh; no further experiment starts."""
    tools = work / "stop_tools"
    tools.mkdir()
    stub(tools / "srun", f'while [[ $1 == --* ]]; do shift; done\n[[ $1 == */run_and_time* ]] && echo $$ >{work}/step\nexec "$@"\n')
    stub(tools / "scontrol", "echo localhost\n")
    stub(tools / "scancel", f'[[ "$*" == "--signal=TERM 1" ]] && kill -TERM $(cat {work}/step)\n')
    stub(tools / "trainer", f'trap "echo saved; exit 75" TERM\n[[ $1 == --version ]] && exit\ntouch {work}/training; for ((i = 0; i < 300; i++)); do sleep 0.1; done\n')
    for script in ("run_and_time.sh", "run_and_time_bert.sh"):
        logs = work / script
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RUNSUB_DIR": str(scripts), "TRIREME_PROGRAM": str(tools / "trainer"),
                       "DGXSYSTEM": "test", "WALLTIME_RUNANDTIME": "5", "DATADIR": "/d", "MODEL": "/m", "LOGDIR": str(logs), "DATESTAMP": "now", "NEXP": "2",
                       "DGXNGPU": "1", "CLEAR_CACHES": "0", "CHECK_COMPLIANCE": "0", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1",
                       "SLURM_JOB_NODELIST": "localhost", "RUN_AND_TIME": script}
        (work / "training").unlink(missing_ok=True)
        job = subprocess.Popen(["bash", scripts / "run.sub"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        end = time.monotonic() + 60
        while not (work / "training").exists() and job.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        job.terminate()
        said = job.communicate(timeout=60)[0]
        assert job.returncode == 75 and "saved" in said and "EXPERIMENT_STOP" in said, (job.returncode, said)
        assert (logs / "now_1.log").exists() and not (logs / "now_2.log").exists(), said


def check_quickstart(source, work):
    """quickstart.sh replaces only folders that it made; relative ones are the caller's. Set-up, build and programs are stubs."""
    tree, caller, home = work / "tree", work / "caller", work / "home"
    for folder in (tree / "scripts", tree / "build/release/bin", tree / "data", caller, home, work / "empty"):
        folder.mkdir(parents=True)
    shutil.copy(Path(source, "scripts/quickstart.sh"), tree / "scripts")
    (tree / "scripts/lib.sh").write_text("setup_all() { :; }\nbuild_release() { echo built; }\n")
    for name in ("trireme", "train_llama", "mpirun", "nvidia-smi"):
        stub(tree / "build/release/bin" / name, "exit 0\n")
    for kept in (tree / "data/rows.cpp", home / "letter"):
        kept.write_text("mine")
    environment = {**os.environ, "PATH": f"{tree}/build/release/bin:{os.environ['PATH']}", "HOME": str(home)}
    (work / "link").symlink_to(work / "empty")

    def start(*words, code=0):
        return run("bash", tree / "scripts/quickstart.sh", *words, code=code, env=environment, cwd=caller)

    for words in (["../tree/data"], [tree / "data"], [home], ["~"], [tree], ["/"], [tree / "data/rows.cpp"], [""], ["--clean"], ["a", "b"]):
        assert "quickstart: " in start(*words, code=2), words
    assert (tree / "data/rows.cpp").exists() and (home / "letter").exists() and not list(caller.iterdir())
    said = start("/proc/none/new", code=73)
    assert "cannot be written" in said and "built" not in said, said
    for words, made in (([], tree / "runs/quickstart"), (["data"], caller / "data"), ([work / "new"], work / "new"), (["~/new"], home / "new"),
                        ([work / "link"], work / "empty")):
        start(*words)
        assert (made / "lora.yaml").exists(), made
        (made / "old").write_text("")
        start(*words)
        assert (made / "lora.yaml").exists() and not (made / "old").exists(), made
    assert (work / "link").is_symlink() and (tree / "data/rows.cpp").exists()
    # Moved below a folder that has the mark, the project is not removed with it.
    tree.rename(work / "new/tree")
    said = run("bash", work / "new/tree/scripts/quickstart.sh", work / "new", code=2, env=environment, cwd=caller)
    assert "would be removed" in said and (work / "new/tree/data/rows.cpp").exists(), said


def check_versions(args, work):
    """A package's version is greater than those of all commits before, whatever their clocks said."""
    tree = work / "history"
    git = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    run("git", "init", "-q", tree)
    versions = ["0.1.0", "0.1.0+gffffffffffff", "0.1.0+g000000000000"]  # a tree without git; the form until 2026
    for second in (100, 200, 200, 150, 150, 300):
        date = f"{1800000000 + second} +0000"
        run(*git, "commit", "-q", "--allow-empty", "-m", "one", env={**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date})
        said = run(args.cmake, f"-DPROJECT_SOURCE_DIR={tree}", "-DPROJECT_VERSION=0.1.0", "-P", Path(args.source, "cmake/TriremeCommit.cmake"))
        versions.append(re.search(r"package version: (\S+)", said).group(1))
        assert re.fullmatch(r"0\.1\.0\+git\d{8}\.\d{6}\.\d+\.g[0-9a-f]{12}", versions[-1]), versions
    if not shutil.which("dpkg"):
        return
    for older, newer in [("0.1.0", versions[3]), *((old, versions[3]) for old in versions[1:3]), *zip(versions[3:], versions[4:])]:
        run("dpkg", "--compare-versions", older, "lt", newer)


def main():
    parser = argparse.ArgumentParser()
    for name in ("cmake", "build", "source"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        check_install(args, work / "prefix")
        check_run_sub(work / "prefix/share/trireme/slurm", work)
        scripts = work / "prefix/share/trireme/slurm"
        check_container(scripts, work)
        check_sbatch(scripts, work)
        check_stop_of_run_sub(scripts, work)
        check_quickstart(args.source, work)
        check_versions(args, work)
    print("ok")


if __name__ == "__main__":
    main()
