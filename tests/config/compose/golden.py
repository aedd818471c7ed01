#!/usr/bin/env python3
"""Writes expected/*.yaml for cases.tsv with Hydra and OmegaConf: golden.py [--check]. Needs hydra-core 1.3, which is no
requirement of the project. A case is: name, primary file, what to print (- : before interpolation, * : after), overrides."""
import math
import os
import sys
import warnings
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

warnings.filterwarnings("ignore")
HERE = Path(__file__).resolve().parent
os.environ["TRIREME_COMPOSE_TEST"] = "from the environment"
OmegaConf.register_new_resolver("multiply", lambda x, y: x * y)
OmegaConf.register_new_resolver("divide_ceil", lambda x, y: int(math.ceil(x / y)))
OmegaConf.register_new_resolver("divide_floor", lambda x, y: int(math.floor(x / y)))


def composed(primary, what, overrides):
    with initialize_config_dir(str(HERE / "conf"), version_base="1.2"):
        config = compose(primary, overrides=overrides, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        OmegaConf.set_readonly(config, False)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        if what == "*":
            OmegaConf.resolve(config)
        return OmegaConf.to_yaml(config)


def main():
    wrong = []
    for line in (HERE / "cases.tsv").read_text().splitlines():
        name, primary, what, *overrides = line.split("\t")
        text, path = composed(primary, what, overrides), HERE / "expected" / f"{name}.yaml"
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif path.read_text() != text:
            wrong.append(name)
    sys.exit(f"differ: {wrong}" if wrong else 0)


main()
