#!/usr/bin/env python3
"""Several parity tests in forks of one process that has imported transformers and peft: the import takes longer than a test.

usage: run_cases.py "SCRIPT ARGUMENTS"...    SCRIPT is a file of this folder with a function main(). Exit 77 when a script asks for packages that
are missing, 1 when a case fails.
"""
import importlib
import os
import shlex
import sys
import time
import traceback

import bert_parity
import gpt_parity
import train_parity

# Their classes are imported at the first use: here, so that no fork repeats it.
USED = [train_parity.AutoModelForCausalLM, train_parity.PeftModel, gpt_parity.GPT2Config, bert_parity.transformers.BertForPreTraining]
for family in ("gpt2", "llama", "bert"):
    importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def run(words):
    """The exit code of main() with these arguments in a fork."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.argv = words
            importlib.import_module(words[0].removesuffix(".py")).main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                print(end.code)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    failed = []
    for case in sys.argv[1:]:
        began = time.monotonic()
        code = run(shlex.split(case))
        print(f"{'ok    ' if code == 0 else 'FAILED'} {time.monotonic() - began:4.1f} s  {case}")
        if code != 0:
            failed.append(case)
    sys.exit(1 if failed else 0)
