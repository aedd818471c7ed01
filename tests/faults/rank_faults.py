#!/usr/bin/env python3
"""Dead, hung, slow and absent ranks of a complete run (faults F1, F4, F20, F21, F34, F35). Exit code 77 = skipped."""
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time

import fault_site

HOST = re.escape(socket.gethostname())


def dead(site, victims=((1, 7),)):
    """F1: kill -9 of one rank of four; started again, the run ends with the numbers of a run that was not killed."""
    site.train("output.dir=whole", "output.save_every_samples=24")
    for victim, step in victims:
        name = f"parts{victim}"
        run = site.start(f"output.dir={name}", "output.save_every_samples=24", TRIREME_FAULT=f"sigkill@rank{victim}:step{step}")
        run.wait_for("fault injected", 60)
        code = run.end(10)
        assert code != 0, code
        assert re.search(rf"rank {victim} on {HOST} \(process \d+\) died in step {step}", run.last_words()), run.text()[-2500:]
        print(f"rank {victim} killed in step {step}: all gone after {run.seconds:.2f} s, exit {code}: {run.last_words()}")
        assert site.checkpoints(name), "no checkpoint before the death"
        site.train(f"output.dir={name}", "output.save_every_samples=24")
        site.same_run("whole", name)


def dead_first(site):
    dead(site, ((0, 8),))


def start_driver(site, rank, size, port, **variables):
    """A rank that joins the others through the store of rank 0."""
    return subprocess.Popen([f"{site.args.bin}/../tests/rank_driver"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=site.environment(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port.getsockname()[1]), **variables))


def found_hung(site, fault, name):
    """The ranks' report; they must have ended with 71 in time."""
    run = site.start(f"output.dir={name}", TRIREME_FAULT=fault, TRIREME_HANG_SECONDS="4")
    run.wait_for("fault injected", 60)
    begin = time.time()
    code = run.end(14)
    text = run.text()
    assert code == 71, f"exit {code}: {text[-3000:]}"
    print(f"{fault}: exit 71 after {time.time() - begin:.1f} s: {run.last_words()}")
    return text


def hung(site):
    """F4: a stopped rank, then one that sleeps before a collective."""
    for fault, how in (("sigstop@rank2:step5", "stopped"), ("sleep@reduce:rank2:step5:600s", "step 5")):
        text = found_hung(site, fault, fault[:5])
        state = ".*stopped" if how == "stopped" else ""
        assert re.search(rf"rank 2 on {HOST} never reached #\d+ \w+\[\d+\] on world \(step 5{state}", text), text[-3000:]
        assert re.search(rf"  rank 2 on {HOST}: step 5.*last finished #\d+ \w+", text), text[-3000:]
        assert re.search(r"  ranks 0-1, 3 on \S+: step 5, .*waiting in #\d+", text), text[-3000:]
    # And one that stops when all files are written: before the last barrier; then inside MPI_Finalize, where it must
    # not be killed but continued.
    text = found_hung(site, "sigstop@leave:rank2", "leave")
    assert re.search(rf"rank 2 on {HOST} never reached #\d+ barrier\[0\] on world \(.*stopped", text), text[-3000:]
    run = site.train("output.dir=end", TRIREME_FAULT="sigstop@finalize:rank2", TRIREME_HANG_SECONDS="4", seconds=30)
    assert re.search(rf"rank 2 on {HOST} never reached #\d+ MPI_Finalize\[0\] .*stopped.* are continued", run.text()), run.text()[-3000:]
    site.same_run("leave", "end")
    # The same without MPI; rank 0 serves the store, and may have to answer others after its stop.
    for victim, words in ((0, rf"rank(s 0[,-]| 0 on {HOST}\b).* (barrier|part)\[0\] on world.*stopped"),
                          (2, rf"rank 2 on {HOST} never reached #\d+ part\[0\] on world \(.*stopped")):
        with fault_site.reserved_port() as port:
            ranks = [start_driver(site, rank, 3, port, TRIREME_FAULT=f"sigstop@part:rank{victim}", TRIREME_HANG_SECONDS="3") for rank in range(3)]
            texts = [process.communicate(timeout=100)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [71, 71, 71], (texts, [process.returncode for process in ranks])
        assert any(re.search(words, text) for text in texts), texts


def slow_storage(site):
    """A rank that saves or writes its lines is given more time than one inside a collective."""
    for section in ("save", "metrics"):
        run = site.train(f"output.dir={section}", "output.save_every_samples=48", TRIREME_FAULT=f"sleep@{section}:rank0:7s:x1", TRIREME_HANG_SECONDS="2")
        assert re.search(f"section {section} .*it is given more time", run.text()), run.text()[-2500:]


def straggler(site):
    """F21: 200 ms more in every step of rank 2; then in every save, a section that comes late in the alphabet."""
    for section, fault in (("data", "data:rank2:0.2s"), ("save", "save:rank2:0.4s")):
        run = site.train(f"output.dir={section}", "train.max_steps=11", "output.save_every_samples=8", TRIREME_FAULT=f"sleep@{fault}")
        assert re.search(rf"rank 2 on {HOST} is slow in section {section}: 0\.[2-9]\d* s a step", run.text()), run.text()[-3000:]
        print([line for line in run.text().splitlines() if "is slow" in line])


def absent(site):
    """F20: a rank that never starts is named; a world of the wrong size too; a port that is taken is explained."""
    port = fault_site.reserved_port()
    def rank(number, size):
        return start_driver(site, number, size, port, TRIREME_RENDEZVOUS_SECONDS="3")
    # The later rank gets the reason from the earlier one: the store ends with rank 0.
    ranks = [rank(0, 3)]
    time.sleep(1)
    ranks.append(rank(2, 3))
    for process in ranks:
        text = process.communicate(timeout=100)[0]
        assert process.returncode == 71 and "rank 1 of 3 did not arrive" in text, text
    # MPI itself waits without a limit for a rank that is stopped before MPI_Init.
    stopped = ["sh", "-c", '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || kill -STOP $$; exec "$0" "$@"', *site.command(ranks=0)]
    done = subprocess.run([*site.launch(2), *stopped], capture_output=True, text=True, timeout=60, env=site.environment(TRIREME_RENDEZVOUS_SECONDS="2"))
    assert done.returncode == 71 and re.search(rf"train_llama: rank 0 on {HOST}: the ranks have not met in MPI_Init within 2 s", done.stderr), done
    ranks = [rank(0, 2), rank(1, 3)]
    texts = [process.communicate(timeout=100)[0] for process in ranks]
    assert "make WORLD_SIZE the same everywhere" in texts[1], texts
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", port.getsockname()[1]))
        taken.listen()
        process = rank(0, 2)
        text = process.communicate(timeout=100)[0]
        assert process.returncode == 2 and f"cannot listen on 127.0.0.1:{port.getsockname()[1]}" in text and "MASTER_PORT" in text, text


def launchers(site):
    """Launchers that set variables: what each rank learns, and a rank that is lost before the ranks watch each other."""
    def job(common, own, fault="", seconds="20"):
        port = fault_site.reserved_port()
        common = dict(common, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port.getsockname()[1]))
        ranks = [subprocess.Popen([f"{site.args.bin}/../tests/rank_driver", "2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=site.environment(**common, **each, TRIREME_DEVICE="cpu", TRIREME_FAULT=fault, TRIREME_RENDEZVOUS_SECONDS=seconds))
                 for each in own]
        try:
            return [(rank.communicate(timeout=100)[0], rank.returncode) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
            port.close()

    def meet(name, common, own, expected):
        for rank, (text, code) in enumerate(job(dict(common, WORLD_SIZE=str(len(own))), own)):
            assert code == 0 and f"rank {rank} of {len(own)}, local rank {expected[rank]}" in text, (name, rank, code, text)

    meet("PyTorchJob", {"PET_NPROC_PER_NODE": "1", "PET_NNODES": "2"}, [{"RANK": "0"}, {"RANK": "1"}], ["0 of 2", "1 of 2"])
    meet("LOCAL_RANK alone", {}, [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "0"}], ["0 of 2", "0 of 2"])
    for text, code in job({"WORLD_SIZE": "4", "PET_NPROC_PER_NODE": "2"}, [{"RANK": "0"}]):
        assert code == 2 and "torchrun --no-python" in text, text
    # A rank says itself what keeps it from joining.
    done = subprocess.run(site.command("train.max_stepz=1", "optimizer.lr=x", ranks=0), capture_output=True, text=True,
                          env=site.environment(RANK="1", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29871"))
    assert done.returncode == 2 and re.search(rf"rank 1 on {HOST}: .*(max_stepz|optimizer.lr).*\(and \d more lines?\)$", done.stderr), done
    three = [{"RANK": str(rank)} for rank in range(3)]
    for lost in (0, 1):
        ends = job({"WORLD_SIZE": "3"}, three, f"sigkill@bootstrap:rank{lost}")
        for rank, (text, code) in enumerate(ends):
            assert code == (-9 if rank == lost else 71), (lost, ends)
            assert rank == lost or f"rank {lost}" in text.splitlines()[-1] and f"rank {rank} on {socket.gethostname()}" in text, (lost, ends)


def torchrun(site):
    """The agent of torchrun serves MASTER_PORT: the ranks meet through it, whatever their agents count as restarts."""
    try:
        import torch.distributed.run  # noqa: F401
    except ImportError:
        print("no torchrun: this Python has no torch")
        sys.exit(77)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--no-python",
                           "sh", "-c", 'TORCHELASTIC_RESTART_COUNT=$LOCAL_RANK exec "$0" 2', f"{site.args.bin}/../tests/rank_driver"],
                          capture_output=True, text=True, timeout=100, env=site.environment(TRIREME_DEVICE="cpu", TRIREME_RENDEZVOUS_SECONDS="30"))
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        assert f"rank {rank} of 3, local rank {rank} of 3" in done.stdout, done.stdout + done.stderr


def network(site):
    """F19: rank 0 on one host, 1 and 2 on another (network namespaces): a rank on the other host stopped, then the link cut."""
    def ip(*arguments, check=True):
        return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)
    a, b = f"trireme-a{os.getpid()}", f"trireme-b{os.getpid()}"
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare") or ip("netns", "add", a, check=False).returncode != 0:
        print("SKIPPED: network namespaces need root, ip and unshare")
        raise SystemExit(77)
    driver = f"{site.args.bin}/../tests/rank_driver"

    def start(fault=""):
        ranks = []
        for rank, space, host in ((0, a, "host-a"), (1, b, "host-b"), (2, b, "host-b")):
            command = f"hostname {host} && exec {driver} 2000"
            ranks.append(subprocess.Popen(["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", command], stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True, env=site.environment(
                                              RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="10.213.7.1", MASTER_PORT="29871",
                                              TRIREME_RENDEZVOUS_SECONDS="20", TRIREME_HANG_SECONDS="3", TRIREME_FAULT=fault)))
        for line in ranks[0].stdout:
            if line.startswith("step 5"):
                return ranks
        raise AssertionError("".join(process.communicate(timeout=100)[0] for process in ranks))

    try:
        ip("netns", "add", b)
        ip("link", "add", "veth-a", "netns", a, "type", "veth", "peer", "name", "veth-b", "netns", b)
        for space, link, address in ((a, "veth-a", "10.213.7.1/24"), (b, "veth-b", "10.213.7.2/24")):
            ip("-n", space, "addr", "add", address, "dev", link)
            ip("-n", space, "link", "set", link, "up")
            ip("-n", space, "link", "set", "lo", "up")
        # Rank 2 reports the position of rank 1, which is stopped, and ends it.
        begin = time.time()
        ranks = start("sigstop@rank1:step20")
        texts = [process.communicate(timeout=100)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [71, 71, 71], (texts, [process.returncode for process in ranks])
        assert re.search(r"rank 1 on host-b never reached #20 all_gather\[8\] on world \(step 20, stopped\)", texts[0]), texts
        print(f"stopped over there: {time.time() - begin:.1f} s: {texts[0].splitlines()[-1]}")
        # A rank dies on the other host: the broken connection shows it at once.
        ranks = start("sigkill@rank1:step20")
        texts = [process.communicate(timeout=100)[0] for process in ranks]
        assert ranks[0].returncode == 71 and ranks[2].returncode == 71 and "rank 1 on host-b" in texts[0], texts
        ranks = start()
        begin = time.time()
        ip("-n", a, "link", "set", "veth-a", "down")
        texts = [process.communicate(timeout=100)[0] for process in ranks]
        took = time.time() - begin
        assert [process.returncode for process in ranks] == [71, 71, 71], (texts, [process.returncode for process in ranks])
        assert "ranks 1-2 did not answer" in texts[0] and "rank 0 on host-a did not answer" in texts[1] + texts[2], texts
        assert took < 13, took
        print(f"link down: all gone after {took:.1f} s: {texts[0].splitlines()[-1]}")
        ip("-n", a, "link", "set", "veth-a", "up")
        # Only the rendezvous port, as a firewall would: packets from host-b to rank 0 are dropped without an answer.
        drop = ("-n", b, "rule", "add", "pref", "1", "to", "10.213.7.1", "ipproto", "tcp", "dport", "29871", "blackhole")
        ranks = start()
        begin = time.time()
        done = ip(*drop, check=False)
        if done.returncode != 0:
            for process in ranks:
                process.kill()
            print(f"the port alone cannot be cut here: {done.stderr.strip()}")
            return
        texts = [process.communicate(timeout=100)[0] for process in ranks]
        took = time.time() - begin
        assert [process.returncode for process in ranks] == [71, 71, 71], (texts, [process.returncode for process in ranks])
        assert "no progress for" in texts[0] + texts[1] + texts[2] and took < 13, (took, texts)
        print(f"bootstrap port cut: all gone after {took:.1f} s: {texts[0].splitlines()[-1]}")
    finally:
        for space in (a, b):
            ip("netns", "del", space, check=False)


def environment(site):
    """F35: contradictory launcher variables are refused with their names, quickly and before anything is written."""
    for variables, words in (({"RANK": "0"}, ["WORLD_SIZE is missing"]), ({"RANK": "5", "WORLD_SIZE": "4"}, ["RANK=5", "WORLD_SIZE=4"]),
                             ({"RANK": "one", "WORLD_SIZE": "2"}, ["RANK='one'"]), ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR is missing"]),
                             ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "2"}, ["SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=2"]),
                             ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, ["SLURM_PROCID is missing"]),
                             ({"RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
                              ["WORLD_SIZE=1 contradicts OMPI_COMM_WORLD_SIZE=2"]), ({"TRIREME_FAULT": "explode@rank1"}, ["TRIREME_FAULT", "explode"]),
                             ({"PMI_SIZE": "4"}, ["PMI_SIZE=4", "srun --mpi=pmix"])):
        begin = time.time()
        done = subprocess.run(site.command(ranks=0), capture_output=True, text=True, env=site.environment(**variables), timeout=100)
        expected = 2
        if variables.get("RANK") == "5":
            assert done.returncode == expected, done.stderr
        assert done.returncode == expected and all(word in done.stderr for word in words), (variables, done.returncode, done.stderr)
        assert time.time() - begin < 20 and not os.path.exists(f"{site.work}/run"), variables
    # A limit that is not a number ends the ranks before they train.
    run = site.train(ranks=2, expect=2, TRIREME_HANG_SECONDS="soon")
    assert "TRIREME_HANG_SECONDS='soon'" in run.text(), run.text()


def memory(site):
    """F34: an address space too small for the run."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (limit.bytes, limit.bytes))
    # LibTorch itself maps some GiB; trial and error finds a limit with which the program starts but the run fails.
    overrides = ["data.seq_length=128", "batch.micro_batch_size=64", "batch.global_batch_size=64", "model.init=random"]
    np = fault_site.np
    np.save(f"{site.work}/long.npy", np.zeros((64, 128), np.int32))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
              "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu"}
    import json
    with open(f"{site.work}/config.json", "w") as out:
        json.dump(config, out)
    overrides += ["train.max_steps=1", "model.path=config.json", "data.train=long.npy", "data.valid=null"]
    seen = []
    for gib in (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0):
        limit.bytes = int(gib * 2**30)
        subprocess.run(["rm", "-rf", f"{site.work}/run"], check=True)
        done = subprocess.run(site.command(*overrides, ranks=0), capture_output=True, text=True, env=site.environment(), preexec_fn=limit, timeout=100)
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        seen.append((gib, done.returncode, last[:300]))
        if "out of memory" in last:
            assert done.returncode == 2, seen
            for word in ("weights", "moments", "activations", "ulimit -v", "parallel.recompute: full"):
                assert word in last, (word, last)
            print(f"limit {gib} GiB: {last}")
            return
        assert done.returncode != 0, f"the run fits into {gib} GiB: {seen}"
    raise AssertionError(seen)


if __name__ == "__main__":
    fault_site.main({"dead": dead, "dead-first": dead_first, "hung": hung, "slow-storage": slow_storage, "straggler": straggler, "absent": absent, "network": network, "launchers": launchers, "torchrun": torchrun,
                     "environment": environment, "memory": memory})
