"""`with needed(): import torch`: a test without its packages ends with exit code 77, skipped."""
import contextlib
import sys


@contextlib.contextmanager
def needed():
    try:
        yield
    except ImportError as error:
        print(f"SKIPPED: {error}; scripts/setup.sh installs what this test needs")
        sys.exit(77)
