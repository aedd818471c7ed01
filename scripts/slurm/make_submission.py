#!/usr/bin/env python3
"""Copies the MLPerf logs of run.sub into a submission folder: result_0.txt, result_1.txt … of one benchmark and system.

    make_submission.py --output submission --system 8xH200 results/*_[0-9]*.log

Serves every benchmark of run.sub (llama2_70b_lora, bert, llama31_8b): the logs name the benchmark and the organisation.
Writes DIR/ORG/results/SYSTEM/BENCHMARK/result_i.txt in the order of the seeds, and DIR/ORG/systems/SYSTEM.json where it
is absent: the fields that MLCommons' package checker asks for, from the SYSJSON line of the logs (trireme doctor --system), with
"FILL IN" where nothing tells the value. Refused, with exit code 2 and nothing written: a log without exactly one run_stop, logs
that differ in benchmark, organisation, division, platform or a hyper-parameter, of the closed division a hyper-parameter or an
evaluation size that is not the benchmark's, a run that says success without an evaluation at the target, a seed that
occurs twice, a folder that has results. What makes a submission invalid
but not unreadable is a warning: fewer than ten runs, caches that were not dropped, more than one run that missed its
target, a description of the system with open fields, of another division or of other numbers of nodes and accelerators.
"""
import argparse
import json
import re
import shutil
import sys
from pathlib import Path

RUNS = 10  # that the rules ask for, of each of the three benchmarks
TOKEN = ":::MLLOG "
SYSTEM_TOKEN = ":::SYSJSON "
COMMON = ("submission_benchmark", "submission_org", "submission_division", "submission_platform", "global_batch_size")
# What the closed division fixes of the values in a log: training_rules.adoc and the compliance checker. An evaluation at
# the target has a value of at most `loss` or at least `accuracy`.
CLOSED = {
    "llama31_8b": {"loss": 3.3, "values": {
        "eval_samples": 1024, "max_sequence_length": 8192, "opt_name": "adamw", "opt_adamw_beta_1": 0.9, "opt_adamw_beta_2": 0.95,
        "opt_adamw_epsilon": 1e-5, "opt_adamw_weight_decay": 0.1, "opt_gradient_clip_norm": 1.0, "max_steps": 1200000,
        "init_checkpoint_step": 0, "opt_learning_rate_decay_schedule": "cosine with linear warmup"}},
    "llama2_70b_lora": {"loss": 0.925, "values": {
        "eval_samples": 173, "train_samples": 3901, "lora_rank": 16, "lora_alpha": 32, "opt_adamw_weight_decay": 1e-4,
        "opt_gradient_clip_norm": 0.3}},
    "bert": {"accuracy": 0.72, "values": {
        "eval_samples": 10000, "max_predictions_per_seq": 76, "opt_lamb_learning_rate_decay_poly_power": 1.0}},
}
# Events between init_start and init_stop that are no hyper-parameters.
NOT_COMPARED = ("seed", "cache_clear", "tracked_stats", "weights_initialization", "submission_status")
FILL_IN = "FILL IN"
# Of the description of a system, in the order of the package checker.
SYSTEM_FIELDS = """submitter division status system_name number_of_nodes
    host_processors_per_node host_processor_model_name host_processor_core_count host_processor_vcpu_count
    host_processor_frequency host_processor_caches host_processor_interconnect host_memory_capacity host_storage_type
    host_storage_capacity host_networking host_networking_topology host_memory_configuration
    accelerators_per_node accelerator_model_name accelerator_host_interconnect accelerator_frequency
    accelerator_on-chip_memories accelerator_memory_configuration accelerator_memory_capacity accelerator_interconnect
    accelerator_interconnect_topology
    cooling hw_notes framework other_software_stack operating_system sw_notes""".split()


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


def check_name(name, what):
    """Git and the checkers' paths: MLCommons' repo_checker refuses blanks and a leading dot."""
    if not re.fullmatch(r"(?!\.)[^/\s]+", name):
        refuse(f"{what} is {name!r}, which is no name of a folder: no '/', no blanks and no leading dot")


def closed_problems(run, values):
    """What the closed division of the run's benchmark does not have, a sentence each."""
    rules = CLOSED.get(run["submission_benchmark"])
    if rules is None:
        return [f"{run['submission_benchmark']} is none of the benchmarks {', '.join(CLOSED)}"]
    wanted = dict(rules["values"])
    if run["submission_benchmark"] == "llama31_8b":
        for name, needs, value in (("opt_learning_rate_decay_steps", "opt_learning_rate_warmup_steps", lambda warmup: 1200000 - warmup),
                                   ("opt_end_learning_rate", "opt_base_learning_rate", lambda rate: rate / 10)):
            if isinstance(values.get(needs), (int, float)):
                wanted[name] = value(values[needs])
    problems = []
    for name, value in wanted.items():
        found = values.get(name)
        same = abs(found - value) <= 1e-9 * abs(value) if isinstance(value, (int, float)) and isinstance(found, (int, float)) else found == value
        if not same:
            problems.append(f"{name} is {found}, the closed division has {value}")
    if run["reached"] and not any(value <= rules["loss"] if "loss" in rules else value >= rules["accuracy"] for value in run["evaluations"]):
        target = f"at most {rules['loss']}" if "loss" in rules else f"at least {rules['accuracy']}"
        problems.append(f"run_stop says success, and no eval_accuracy is {target}")
    return problems


def read_run(log):
    """What the folder's path and the checks need of one log."""
    run, lines = {"log": log}, events(log)
    for key in (*COMMON, "seed"):
        values = {str(value) for name, value, _ in lines if name == key}
        if len(values) != 1 or not values - {""}:
            refuse(f"{log}: {len(values)} values of {key}, expected one: is it one whole log of run.sub?")
        run[key] = values.pop()
    for key in ("submission_benchmark", "submission_org"):
        check_name(run[key], f"{log}: {key}")
    stops = [metadata.get("status") for name, _, metadata in lines if name == "run_stop"]
    if len(stops) != 1:
        refuse(f"{log}: {len(stops)} run_stop lines, expected one: the run did not end, or the file has several runs")
    run["reached"] = stops[0] == "success"
    run["evaluations"] = [value for name, value, _ in lines if name == "eval_accuracy" and isinstance(value, (int, float))]
    names = [name for name, _, _ in lines]
    setup = lines[names.index("init_start") + 1:names.index("init_stop")] if {"init_start", "init_stop"} <= set(names) else []
    run["hyper-parameters"] = {name: value for name, value, _ in setup if name not in (*NOT_COMPARED, *COMMON)}
    if run["submission_division"] not in ("closed", "open"):
        refuse(f"{log}: submission_division is {run['submission_division']!r}, expected closed or open")
    if run["submission_division"] == "closed":
        problems = closed_problems(run, {name: value for name, value, _ in lines})
        if problems:
            refuse(f"{log}: {'; '.join(problems)}")
    systems = [line.split(SYSTEM_TOKEN, 1)[1] for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if SYSTEM_TOKEN in line]
    try:
        run["system"] = json.loads(systems[0]) if systems else {}
    except ValueError as error:
        refuse(f"{log}: what follows {SYSTEM_TOKEN.strip()} is no JSON ({error})")
    if not isinstance(run["system"], dict):
        refuse(f"{log}: what follows {SYSTEM_TOKEN.strip()} is no description of a system: {systems[0][:60]}")
    run["caches"] = [value for name, value, _ in lines if name == "cache_clear"] == [True]
    return run


def platform_fields(run):
    """The platform of a log is <nodes>x<accelerators per node>x<accelerator>."""
    platform = re.fullmatch(r"(\d+)x(\d+)x(.+)", run["submission_platform"])
    return zip(("number_of_nodes", "accelerators_per_node", "accelerator_model_name"), platform.groups() if platform else ())


def system_description(run, system):
    """The fields of systems/SYSTEM.json."""
    known = {field: value for field, value in run["system"].items() if value}
    known |= {"submitter": run["submission_org"], "division": run["submission_division"], "system_name": system, "framework": known.get("framework", "Trireme")}
    for field, value in platform_fields(run):
        known.setdefault(field, value)
    return {field: known.get(field, FILL_IN) for field in SYSTEM_FIELDS}


def description_warnings(path, run):
    """(whether it applies, sentence) of the description of the system."""
    division = run["submission_division"]
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        absent = [field for field in SYSTEM_FIELDS if field not in fields]
        filled = [field for field in SYSTEM_FIELDS if fields.get(field) == FILL_IN]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return [(True, f"{path} is not a JSON object: {error}")]
    return [(absent, f"{path} lacks {', '.join(absent)}"),
            (filled, f"{path}: {len(filled)} fields say {FILL_IN}; status is one of 'Available on-premise', 'Available cloud', "
                     "'Preview', 'Research, Development, or Internal (RDI)'"),
            (fields.get("division") != division, f"{path}: division is {fields.get('division')!r}, the logs say {division!r}"),
            *((str(fields.get(field, FILL_IN)) not in (value, FILL_IN), f"{path}: {field} is {fields.get(field)}, submission_platform of the logs has {value}")
              for field, value in platform_fields(run) if field != "accelerator_model_name")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the submission folder")
    parser.add_argument("--system", required=True, help="name of the system: that of systems/SYSTEM.json")
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="DATESTAMP_i.log of run.sub")
    arguments = parser.parse_args()
    missing = [log for log in arguments.logs if not log.is_file()]
    if missing:
        refuse(f"{missing[0]}: no such file")
    check_name(arguments.system, "--system")
    runs = [read_run(log) for log in arguments.logs]
    for key in COMMON:
        values = sorted({run[key] for run in runs})
        if len(values) > 1:
            refuse(f"the logs have several values of {key}: {', '.join(values)}. Give those of one benchmark and system")
    first = runs[0]["hyper-parameters"]
    for run in runs[1:]:
        other = run["hyper-parameters"]
        for name in sorted(first.keys() | other.keys()):
            if first.get(name) != other.get(name):
                refuse(f"{run['log']}: {name} is {other.get(name)}, in {runs[0]['log']} it is {first.get(name)}: the runs of a submission "
                       "have the same hyper-parameters")
    by_seed = {}
    for run in runs:
        other = by_seed.setdefault(run["seed"], run)
        if other is not run:
            refuse(f"{run['log']} and {other['log']} have the same seed {run['seed']}: the rules ask for distinct ones")
    organisation = arguments.output / runs[0]["submission_org"]
    folder = organisation / "results" / arguments.system / runs[0]["submission_benchmark"]
    if list(folder.glob("result_*.txt")):
        refuse(f"{folder} has results: remove them first, or name another --output")

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"{folder} cannot be made: {error.strerror}")
    for number, run in enumerate(sorted(runs, key=lambda run: (len(run["seed"]), run["seed"]))):
        shutil.copyfile(run["log"], folder / f"result_{number}.txt")
        notes = "" if run["reached"] else ", the target was not reached"
        notes += "" if run["caches"] else ", cache_clear is not true"
        print(f"result_{number}.txt  seed {run['seed']}  {run['log']}{notes}")
    print(f"{len(runs)} result{'s' if len(runs) > 1 else ''} in {folder}")
    description = organisation / "systems" / f"{arguments.system}.json"
    if not description.exists():
        description.parent.mkdir(parents=True, exist_ok=True)
        description.write_text(json.dumps(system_description(runs[0], arguments.system), indent=2) + "\n", encoding="utf-8")
    missed, warm = sum(not run["reached"] for run in runs), sum(not run["caches"] for run in runs)
    warnings = [(len(runs) != RUNS, f"the rules ask for {RUNS} runs, here are {len(runs)}"),
                (missed > 1, f"{missed} runs missed the target; the rules allow one"),
                (warm > 0, f"{warm} of the logs do not say that the caches were dropped; the rules ask for it"),
                *description_warnings(description, runs[0])]
    for applies, sentence in warnings:
        if applies:
            print(f"make_submission.py: warning: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    main()
