#!/usr/bin/env python3
"""Prints what HolisticTraceAnalysis 0.5 reads from the traces of a run: breakdown, overlap and communication.

  scripts/hta_tables.py output.dir/profile [--cycle 1]

HTA drops the last step of a trace, so record at least two (profile.active). Its tables need GPU kernels; of a trace
without any only the collectives are printed.
"""
import argparse
import gzip
import json
import logging
import re
import sys
from pathlib import Path


def trace_files(folder, cycle):
    """Rank -> file of the cycle. HTA itself takes one file a rank from a folder."""
    files = {}
    for path in sorted(Path(folder).iterdir()):
        match = re.fullmatch(r"rank(\d+)\.(\d+)\.pt\.trace\.json(\.gz)?", path.name)
        if match and int(match.group(2)) == cycle:
            files[int(match.group(1))] = str(path)
    return files


def collectives(files):
    """Rows of every record_param_comms operation, summed by rank, collective, dtype and group."""
    sums = {}
    for rank, path in files.items():
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt") as file:
            events = json.load(file)["traceEvents"]
        for event in events:
            args = event.get("args", {})
            if event.get("name") != "record_param_comms" or "Collective name" not in args:
                continue
            key = (rank, args["Collective name"], args["dtype"], args["Group size"], str(args.get("Process Group Ranks", "")))
            calls, elements, us = sums.get(key, (0, 0, 0.0))
            sums[key] = (calls + 1, elements + args["In msg nelems"], us + event["dur"])
    return [(*key, *value) for key, value in sorted(sums.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--cycle", type=int, default=1)
    args = parser.parse_args()
    files = trace_files(args.folder, args.cycle)
    if not files:
        sys.exit(f"{args.folder} has no rank<r>.{args.cycle}.pt.trace.json.gz")
    try:
        import pandas as pd
        from hta.common.trace_file import create_rank_to_trace_dict
        from hta.configs.parser_config import ParserConfig
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:
        sys.exit(f"{error}: pip install HolisticTraceAnalysis==0.5.0")
    logging.disable(logging.WARNING)
    pd.set_option("display.width", 200, "display.max_columns", 20, "display.max_rows", 200, "display.max_colwidth", 70)

    found, by_rank = create_rank_to_trace_dict(list(files.values()))
    if not found or by_rank != files:
        sys.exit(f"HTA finds the ranks {sorted(by_rank)} inside the files of the ranks {sorted(files)}")
    ParserConfig.enable_communication_args()
    analysis = TraceAnalysis(trace_files=files, trace_dir=args.folder)
    print(f"ranks {sorted(files)}, steps {[int(step) for step in analysis.get_profiler_steps()]}")
    kernels = sum(int((frame["stream"] >= 0).sum()) for frame in analysis.t.traces.values())
    print(f"GPU kernels and copies: {kernels}")
    if kernels:
        kinds, longest = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=6)
        print("\nbreakdown by kind of kernel", kinds.to_string(index=False), sep="\n")
        print("\nlongest kernels", longest.to_string(index=False), sep="\n")
        print("\ntime of each rank", analysis.get_temporal_breakdown(visualize=False).to_string(index=False), sep="\n")
        print("\noverlap of communication with computation", analysis.get_comm_comp_overlap(visualize=False).to_string(index=False), sep="\n")
    rows = collectives(files)
    names = ["rank", "collective", "dtype", "group size", "group ranks", "calls", "elements", "us on the host"]
    print("\ncollectives", pd.DataFrame(rows, columns=names).to_string(index=False), sep="\n")


if __name__ == "__main__":
    main()
