#!/usr/bin/env python3
"""Copies the MLPerf logs of run.sub into a submission folder: result_0.txt, result_1.txt … of one benchmark and system.

    make_submission.py --output submission --system 8xH200 results/*_[0-9]*.log

Serves every benchmark of run.sub (llama2_70b_lora, bert, llama31_8b): the logs name the benchmark and the organisation.
Writes DIR/ORG/results/SYSTEM/BENCHMARK/result_i.txt in the order of the seeds. Refused, with exit code 2 and nothing
written: a log without exactly one run_stop, logs of different benchmarks or organisations, a seed that occurs twice, a
folder that has results. What makes a submission invalid but not unreadable is a warning: fewer than ten runs, caches
that were not dropped, more than one run that missed its target.
"""
import argparse
import json
import shutil
import sys
from pathlib import Path

RUNS = 10  # that the rules ask for, of each of the three benchmarks
TOKEN = ":::MLLOG "


def refuse(sentence):
    print(f"make_submission.py: {sentence}", file=sys.stderr)
    sys.exit(2)


def events(log):
    """(key, value, metadata) of each line of the log; what stands before the token is srun's label."""
    found = []
    for number, line in enumerate(log.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if TOKEN not in line:
            continue
        try:
            event = json.loads(line[line.index(TOKEN) + len(TOKEN):])
            found.append((event["key"], event["value"], event.get("metadata", {})))
        except (ValueError, KeyError, TypeError) as error:
            refuse(f"{log}:{number}: not an event of MLPerf's log ({error!r}); is the line cut?")
    return found


def read_run(log):
    """What the folder's path and the checks need of one log."""
    run, lines = {"log": log}, events(log)
    for key in ("submission_benchmark", "submission_org", "seed"):
        values = {str(value) for name, value, _ in lines if name == key}
        if len(values) != 1 or not values - {""}:
            refuse(f"{log}: {len(values)} values of {key}, expected one: is it one whole log of run.sub?")
        run[key] = values.pop()
        if key != "seed" and ("/" in run[key] or run[key].startswith(".")):
            refuse(f"{log}: {key} is {run[key]!r}, which is no name of a folder")
    stops = [metadata.get("status") for name, _, metadata in lines if name == "run_stop"]
    if len(stops) != 1:
        refuse(f"{log}: {len(stops)} run_stop lines, expected one: the run did not end, or the file has several runs")
    run["reached"] = stops[0] == "success"
    run["caches"] = [value for name, value, _ in lines if name == "cache_clear"] == [True]
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the submission folder")
    parser.add_argument("--system", required=True, help="name of the system: that of systems/SYSTEM.json")
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="DATESTAMP_i.log of run.sub")
    arguments = parser.parse_args()
    missing = [log for log in arguments.logs if not log.is_file()]
    if missing:
        refuse(f"{missing[0]}: no such file")
    runs = [read_run(log) for log in arguments.logs]
    for key in ("submission_benchmark", "submission_org"):
        values = sorted({run[key] for run in runs})
        if len(values) > 1:
            refuse(f"the logs have several values of {key}: {', '.join(values)}. Give those of one benchmark")
    by_seed = {}
    for run in runs:
        other = by_seed.setdefault(run["seed"], run)
        if other is not run:
            refuse(f"{run['log']} and {other['log']} have the same seed {run['seed']}: the rules ask for distinct ones")
    folder = arguments.output / runs[0]["submission_org"] / "results" / arguments.system / runs[0]["submission_benchmark"]
    if list(folder.glob("result_*.txt")):
        refuse(f"{folder} has results: remove them first, or name another --output")

    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(sorted(runs, key=lambda run: (len(run["seed"]), run["seed"]))):
        shutil.copyfile(run["log"], folder / f"result_{number}.txt")
        notes = "" if run["reached"] else ", the target was not reached"
        notes += "" if run["caches"] else ", cache_clear is not true"
        print(f"result_{number}.txt  seed {run['seed']}  {run['log']}{notes}")
    print(f"{len(runs)} result{'s' if len(runs) > 1 else ''} in {folder}")
    missed, warm = sum(not run["reached"] for run in runs), sum(not run["caches"] for run in runs)
    warnings = [(len(runs) != RUNS, f"the rules ask for {RUNS} runs, here are {len(runs)}"),
                (missed > 1, f"{missed} runs missed the target; the rules allow one"),
                (warm > 0, f"{warm} of the logs do not say that the caches were dropped; the rules ask for it")]
    for applies, sentence in warnings:
        if applies:
            print(f"make_submission.py: warning: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    main()
