#!/usr/bin/env python3
"""Writes the reference values of model_reference.py and family_reference.py into FOLDER, runs PROGRAM, which compares its models with them and
writes models of its own, and lets transformers load those. One process, because the import of transformers and peft takes most of the time.

usage: decoder_references.py FOLDER PROGRAM [ARGUMENTS]    exit 77 when the packages are missing
"""
import os
import subprocess
import sys
from pathlib import Path

import family_reference
import model_reference
import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    model_reference.write_all(folder / "llama")
    family_reference.write_all(folder / "families")
    done = subprocess.run(sys.argv[2:], env=dict(os.environ, TRIREME_DECODER_REFERENCES=str(folder)))
    if done.returncode != 0:
        sys.exit(f"{sys.argv[2]} ended with {done.returncode}")
    if len(sys.argv) == 3:  # a filter may have left out the test that writes them
        family_reference.check_all(folder / "families")
