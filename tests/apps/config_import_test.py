#!/usr/bin/env python3
"""`trireme config import`: fms-fsdp's options in three dialects, torchtitan's TOML and the YAML of NeMo's launcher become a configuration that train_llama takes; every option has a line that says what it became; what is unknown, refused or missing here ends with exit code 2. And a run of an imported configuration: fms-fsdp's labels and learning rates, resumed and extended."""
import argparse
import json
import math
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

# Keys of the other trainers with a value of each, as their own code has them: "source" names the version.
TABLES = json.loads((Path(__file__).parent / "trainer_keys.json").read_text())


class Site:
    def __init__(self, binaries, work):
        self.bin, self.work, self.count = Path(binaries).absolute(), Path(work), 0

    def run(self, program, *arguments, code=0):
        done = subprocess.run([f"{self.bin}/{program}", *map(str, arguments)], capture_output=True, text=True, cwd=self.work)
        assert done.returncode == code, f"{program} {arguments}: exit {done.returncode}, not {code}\n{done.stdout[-1500:]}{done.stderr[-3000:]}"
        return done

    def imported(self, kind, *arguments):
        """The YAML as a tree, the report's lines, and config.json."""
        self.count += 1
        folder = self.work / f"import{self.count}"
        before = arguments[: arguments.index("--")] if "--" in arguments else arguments
        after = arguments[len(before):]
        done = self.run("trireme", "config", "import", kind, "--output", folder, *before, *after)
        text = (folder / "config.yaml").read_text()
        if len(after) > 6 or kind == "torchtitan":  # the import itself has read its result with the same reader
            self.run("train_llama", "--config", folder / "config.yaml", "--print-config")
        assert not re.search(r"^#  ", text, re.M), f"a value is a comment in\n{text}"
        shape = folder / "model/config.json"
        return yaml.safe_load(text), done.stderr, json.loads(shape.read_text()) if shape.exists() else None

    def refused(self, kind, *arguments, says):
        done = self.run("trireme", "config", "import", kind, *arguments, code=2)
        for text in says:
            assert text in done.stderr, f"no '{text}' in\n{done.stderr}"
        assert not done.stdout, "nothing is printed where a problem was found"


def value(config, key):
    section, name = key.split(".")
    return config[section][name]


def parameters(shape):
    width, rows = shape["hidden_size"], shape["vocab_size"]
    head = width // shape["num_attention_heads"]
    block = 2 * width * width + 2 * width * head * shape["num_key_value_heads"] + 3 * width * shape["intermediate_size"] + 2 * width
    return shape["num_hidden_layers"] * block + 2 * rows * width + width


def check_variants(site):
    counts = {"llama2_7b": 6738415616, "llama2_13b": 13015864320, "llama2_34b": 33743970304, "llama2_70b": 68976648192,
              "llama3_8b": 8030261248, "llama3_70b_4k": 70553706496}
    for name, count in counts.items():
        config, _, shape = site.imported("fms", "--", f"--model_variant={name}")
        assert parameters(shape) == count, f"{name}: {parameters(shape)}"
        assert config["model"] == {"path": "model", "init": "random"}
    _, _, shape = site.imported("fms", "--", "--model_variant=llama2_34b", "--seq_length=2048")
    assert (shape["max_position_embeddings"], shape.get("rope_theta") or shape["rope_parameters"]["rope_theta"]) == (16384, 1e6)
    _, _, small = site.imported("fms", "--", "--model_variant=llama3_194m_4k")
    assert small["intermediate_size"] % 256 == 0 and 0 <= small["intermediate_size"] - 8 / 3 * 1024 < 256
    for spelling in ("7b", "LLAMA2-7B", "llama2_7b"):
        assert parameters(site.imported("fms", "--", f"--model_variant={spelling}")[2]) == counts["llama2_7b"]
    site.refused("fms", "--", "--model_variant=llama2_7", says=["Did you mean 'llama2_7b'?"])
    site.refused("fms", "--", "--model_variant=mamba_9.8b", says=["no Mamba"])


HEAD = {
    "model_variant": "llama2_7b", "ckpt_load_path": "/fsx/output/ckpt", "ckpt_save_path": "/fsx/output/ckpt", "use_dummy_dataset": "False",
    "data_path": "/fsx/data", "file_type": "arrow", "col_name": "tokens", "tokenizer_path": "/fsx/tokenizer",
    "datasets": "lang=en/dataset=commoncrawl,lang=en/dataset=webhose", "weights": "7725,500", "seq_length": "4096", "vocab_size": "32000",
    "bos_token": "None", "eos_token": "0", "bol_token": "None", "eol_token": "None", "strip_tokens": "1,2", "logical_shards": "1024",
    "num_workers": "1", "sharding_strategy": "hsdp", "fsdp_activation_checkpointing": "True", "selective_checkpointing": "1/3",
    "mixed_precision": "True", "low_cpu_fsdp": "False", "batch_size": "2", "num_steps": "1000", "training_stage": "initial",
    "learning_rate": "3e-4", "grad_clip_thresh": "1.0", "seed": "2023", "resuming_dataset": "False", "use_profiler": "True",
    "profiler_rank0_only": "True", "report_interval": "100", "checkpoint_interval": "10000", "tracker": "None", "tracker_dir": "/fsx/aim",
    "tracker_project_name": "llama", "tracker_run_id": "None", "use_torch_compile": "True", "tp_size": "8", "model_arch": "embedllama",
    "model_path": "/path", "n_speculator_heads": "3", "speculator_width": "4096", "speculator_tie_weights": "True",
    "speculator_scale_input": "True", "stage2_start_step": "15000", "stage2_prompt_length": "64", "stage2_batch_size": "96",
    "stage2_seq_length": "256",
}


def check_fms_head(site):
    config, report, _ = site.imported("fms", "--ranks", 16, "--", *[f"--{name}={text}" for name, text in HEAD.items()])
    for name in HEAD:
        said = f"--{name}=" in report or f"--{name}," in report or f", --{name}" in report
        assert said, f"--{name} has no line in\n{report}"
    get = lambda key: value(config, key)
    expected = {
        "batch.micro_batch_size": 2, "batch.global_batch_size": 32, "data.seq_length": 4096, "data.shuffle": True, "optimizer.lr": 3e-4,
        "optimizer.betas": [0.9, 0.95], "optimizer.weight_decay": 0.1, "optimizer.decay_norms": True, "optimizer.grad_clip": 1,
        "schedule.name": "fms_cosine", "schedule.warmup_steps": 50, "train.max_steps": 1000, "train.seed": 2023, "train.loss": "token_mean",
        "precision.compute": "bf16", "parallel.reduce_dtype": "compute", "parallel.shard_size": "auto", "parallel.policy": "full",
        "parallel.recompute": "1/3", "output.dir": "/fsx/output/ckpt", "output.save_every_samples": 320000, "logging.every_steps": 100,
        "logging.style": "fms", "data.eos_token": 0, "data.strip_tokens": [1, 2], "data.logical_shards": 1024, "profile.wait": 1,
        "profile.warmup": 2, "profile.active": 3, "profile.repeat": 1, "profile.ranks": [0],
    }
    for key, want in expected.items():
        assert get(key) == want, f"{key}: {get(key)!r}, not {want!r}"
    assert config["data"]["train"] == [{"path": "/fsx/data/lang=en/dataset=commoncrawl", "weight": 7725, "name": "lang=en/dataset=commoncrawl"},
                                       {"path": "/fsx/data/lang=en/dataset=webhose", "weight": 500, "name": "lang=en/dataset=webhose"}]
    # train.sh names neither streams nor weights: those of train_config.
    config, report, _ = site.imported("fms", "--", "--ckpt_load_path=/l/ckpt", "--ckpt_save_path=/l/ckpt", "--data_path=/l/tokens", "--sharding_strategy=hsdp",
                                      "--batch_size=2", "--use_profiler=False")
    facts = TABLES["fms"]["keys"]
    names, weights = facts["datasets"].split(","), [float(weight) for weight in facts["weights"].split(",")]
    assert [(part["path"], part["weight"]) for part in config["data"]["train"]] == [(f"/l/tokens/{name}", weight) for name, weight in zip(names, weights)]
    assert len(names) == 13 and "13 weighted streams" in report
    config, _, _ = site.imported("fms", "--", "--data_path=tokens", "--datasets=a", "--weights=1", "--ckpt_save_path=l/ckpt", "--ckpt_load_path=l/ckpt")
    assert config["data"]["train"][0]["path"] == f"{site.work}/tokens/a" and config["output"]["dir"] == f"{site.work}/l/ckpt"
    # Other spellings of the same.
    config, report, _ = site.imported("fms", "--", "--model-variant", "llama2_7b", "--train_config.num_steps=60", "--use_profiler", "--nolow_cpu_fsdp",
                                         "--training_stage=annealing", "--selective_checkpointing=0.5")
    assert config["train"]["max_steps"] == 60 and config["schedule"] == {"name": "annealing"} and config["parallel"]["recompute"] == "none"
    for strategy, size in (("fsdp", "world"), ("hsdp", "auto"), ("ddp", 1), ("HSDP", "auto")):
        config, _, _ = site.imported("fms", "--", f"--sharding_strategy={strategy}")
        assert config["parallel"]["shard_size"] == size and value(config, "parallel.policy") == ("none" if strategy == "ddp" else "full")
    for share, want in (("1", "full"), ("5/3", "full"), ("0", "none"), ("-1", "none"), ("2/3", "2/3"), ("0.25", 0.25)):
        config, _, _ = site.imported("fms", "--dialect", "head", "--", "--fsdp_activation_checkpointing=1", f"--selective_checkpointing={share}")
        assert config["parallel"]["recompute"] == want, f"{share}: {config['parallel']}"
    for no in ("False", "false", "0", "no", "None"):
        config, _, _ = site.imported("fms", "--", f"--mixed_precision={no}")
        assert config["precision"]["compute"] == "fp32", no


def check_fms_refusals(site):
    site.refused("fms", "--", "--sharding_strategi=hsdp", "--num_steps=ten", "--batch_size", "--seed=1", "--seed=2", "stray", "--sharding_strategy=zero",
                 says=["Did you mean '--sharding_strategy'?", "'--num_steps=ten' must be an integer from 1 to 2147483647", "'--batch_size' has no value",
                       "'--seed=1' and '--seed=2' set the same option", "'stray' is no option", "problems in fms-fsdp's options",
                       "strategies are fsdp, hsdp and ddp"])
    site.refused("fms", "--", "--model_name=llama2_7b", "--model_variant=llama2_7b", says=["set the same option"])
    config, _, _ = site.imported("fms", "--", "--data_path=/tokens/", "--datasets=a,/other/b", "--weights=1,2")
    assert [stream["path"] for stream in config["data"]["train"]] == ["/tokens/a", "/other/b"], config["data"]["train"]
    site.refused("fms", "--", "--datasets=a,b", "--weights=1", says=["--datasets has 2 names and --weights 1 numbers"])
    site.refused("fms", "--", "--datasets=a,b", "--weights=1,0", says=["--weights: '0' of b is no weight above 0"])
    site.refused("fms", "--", "--datasets=a,b", says=["--datasets has 2 names and --weights 13 numbers"])
    site.refused("fms", "--", "--eos_token=99999999999999", says=["--eos_token=99999999999999' must be an integer from 0"])
    site.refused("fms", "--", "--ckpt_load_path=/l/other", "--ckpt_save_path=/l/ckpt", says=["--ckpt_load_path=/l/other", "export it to Hugging Face's format"])
    site.refused("fms", "--", "--use_dummy_dataset=True", says=["data.train: mock has random ones"])
    site.refused("fms", "--", "--low_cpu_fsdp=perhaps", says=["must be true or false"])
    folder = site.work / "twice"
    site.run("trireme", "config", "import", "fms", "--output", folder, "--", "--model_variant=7b")
    assert "is there already" in site.run("trireme", "config", "import", "fms", "--output", folder, "--", "--model_variant=7b", code=73).stderr
    site.run("trireme", "config", "import", "fms", "--output", folder, "--force", "--", "--model_variant=7b")
    (site.work / "taken/config.yaml").mkdir(parents=True)
    done = site.run("trireme", "config", "import", "fms", "--output", site.work / "taken", "--force", "--", "--model_variant=7b", code=73)
    assert "config.yaml is a directory" in done.stderr, done.stderr
    assert not (site.work / "taken/model").exists()


def check_aws(site):
    _, report, _ = site.imported("fms", "--dialect", "aws", "--", "--bos_token=5", "--strip_tokens=1")
    assert "--bos_token=5 -> nothing" in report and "--strip_tokens=1 -> nothing" in report, report
    config, report, shape = site.imported(
        "fms", "--", "--model_name=llama2_70b", "--sharding_strategy=hsdp", "--selective_checkpointing=3", "--fsdp_activation_checkpointing=True",
        "--data_path=/fsx/rows", "--ckpt_save_path=/fsx/ckpt", "--use_nsys=True", "--low_cpu_fsdp=False")
    assert "the AWS test case" in report and shape["intermediate_size"] == 28672 and "28762" in report
    assert config["parallel"]["recompute"] == "1/3" and config["optimizer"]["grad_clip"] == 4 and config["data"]["shuffle"] is False
    assert config["data"]["train"] == "/fsx/rows" and config["output"]["dir"] == "/fsx/ckpt" and config["logging"]["style"] == "fms_2024"
    assert config["train"]["max_steps"] == 2000, "the parser's default"
    for trap in ("the AWS script knows --dataset_path only", "--save_ckpt_path and --load_ckpt_path only", "--use_nsight only"):
        assert trap in report, f"no '{trap}' in\n{report}"
    # A boolean that is not given is off, whatever the dataclass says; "False" is false.
    config, report, _ = site.imported("fms", "--dialect=aws", "--", "--model_name=llama2_7b")
    assert config["parallel"]["recompute"] == "none" and "the AWS parser overwrites the documented default True" in report
    config, report, _ = site.imported("fms", "--", "--model_name=llama2_7b", "--fsdp_activation_checkpointing=False", "--use_profiler=False")
    assert config["parallel"]["recompute"] == "none" and "the AWS script reads every text as true" in report and "profile" not in config
    for every, want in ((0, "full"), (1, "full"), (2, "1/2"), (4, "1/4")):
        config, _, _ = site.imported("fms", "--", "--model_name=llama2_7b", "--fsdp_activation_checkpointing=1", f"--selective_checkpointing={every}")
        assert config["parallel"]["recompute"] == want, every
    site.refused("fms", "--", "--model_name=llama2_7b", "--fsdp_activation_checkpointing=1", "--selective_checkpointing=1/3", says=["takes an integer k"])
    config, report, _ = site.imported("fms", "--", "--model_variant=7b", "--sep_token=1", "--num_steps=15")
    assert "March 2024" in report and value(config, "data.eos_token") == 1 and config["schedule"]["warmup_steps"] == 0 and "divides by zero" in report


TITAN = """
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"
[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 100
[metrics]
log_freq = 10
enable_tensorboard = true
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
converters = ["quantize.linear.float8"]
[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 200
decay_ratio = 0.8
decay_type = "cosine"
min_lr_factor = 0.1
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
deterministic = true
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[checkpoint]
enable = true
folder = "checkpoint"
interval = 500
keep_latest_k = 2
async_mode = "disabled"
[compile]
enable = true
components = ["model", "loss"]
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
recipe_name = "rowwise"
filter_fqns = ["output"]
[validation]
enable = true
dataset = "c4_validation"
freq = 50
steps = 10
[comm]
train_timeout_seconds = 100
"""


def check_torchtitan(site):
    def toml(text):
        path = site.work / "titan.toml"
        path.write_text(text)
        return path

    config, report, shape = site.imported("torchtitan", "--ranks", 16, toml(TITAN))
    for line in TITAN.strip().splitlines():
        if "=" in line:
            name = line.split("=")[0].strip()
            assert re.search(rf"^[\w.]*\b{name} = ", report, re.M), f"{name} has no line in\n{report}"
    expected = {
        "batch.micro_batch_size": 1, "batch.global_batch_size": 16, "data.seq_length": 8192, "data.train": "data/c4", "data.valid": "data/c4_validation",
        "optimizer.lr": 3e-4, "optimizer.betas": [0.9, 0.95], "optimizer.weight_decay": 0.1, "schedule.name": "wsd", "schedule.warmup_steps": 200,
        "schedule.decay_ratio": 0.8, "schedule.decay_type": "cosine", "schedule.min_lr_factor": 0.1, "train.max_steps": 1000, "precision.compute": "bf16",
        "train.deterministic": True, "parallel.reduce_dtype": "fp32", "parallel.shard_size": 8, "parallel.policy": "full", "parallel.recompute": "1/2", "output.dir": f"{site.work}/outputs",
        "output.save_every_samples": 8000, "output.keep_last": 2, "eval.every_samples": 800, "logging.every_steps": 10, "logging.tensorboard": True, "precision.linear": "fp8",
        "precision.fp8_recipe": "rowwise", "profile.wait": 96, "profile.warmup": 3, "profile.active": 1, "profile.ranks": "all",
    }
    for key, want in expected.items():
        assert value(config, key) == want, f"{key}: {value(config, key)!r}, not {want!r}"
    assert parameters(shape) == 8030261248
    assert "optimizer.lr = 0.0003 " in report and "min_lr_factor = 0.1 " in report, report
    assert config["eval"]["samples"] == 10 * 8 * 16 and (config["data"]["bos_token"], config["data"]["eos_token"], config["data"]["min_length"]) == (128000, 128001, 1)
    rope = shape.get("rope_scaling") or shape["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]) == ("llama3", 8, 1, 4, 8192), shape
    # The tokenizer's own BOS and EOS, in the model too, and its files beside the model.
    config, _, shape = site.imported("torchtitan", toml(""))
    assert (config["data"]["bos_token"], config["data"]["eos_token"]) == (shape["bos_token_id"], shape["eos_token_id"]) == (2002, 2003)
    (site.work / "titan_assets").mkdir()
    (site.work / "titan.txt").write_text("\n\n".join(f"The trireme crossed the strait with {170 + i} rowers." for i in range(60)))
    site.run("trireme", "tokenizer", "train", "--input", "titan.txt", "--vocab-size", 320, "--output", "titan_assets/tokenizer.model")
    config, report, _ = site.imported("torchtitan", toml('[model]\nhf_assets_path = "titan_assets"\n'))
    assert (config["data"]["bos_token"], config["data"]["eos_token"]) == (1, 2), config["data"]
    assert (site.work / f"import{site.count}/model/tokenizer.model").exists()
    # A file in the way: it stays, and nothing else is written. The model's own tokenizer is not in the way.
    for name in ("config.json", "tokenizer.model"):
        lay = site.work / f"lay {name}"
        (lay / "model").mkdir(parents=True)
        (lay / "model" / name).write_text("mine")
        done = site.run("trireme", "config", "import", "torchtitan", "--output", lay, site.work / "titan.toml", code=73)
        assert f"{lay}/model/{name} is there already" in done.stderr, done.stderr
        assert [(path, path.read_text()) for path in lay.rglob("*") if path.is_file()] == [(lay / "model" / name, "mine")], list(lay.rglob("*"))
    lay = site.work / "other"
    (lay / "model").mkdir(parents=True)
    (lay / "model/tokenizer.json").write_text("{}")
    done = site.run("trireme", "config", "import", "torchtitan", "--force", "--output", lay, site.work / "titan.toml", code=73)
    assert "tokenizer.json is another tokenizer" in done.stderr and not (lay / "config.yaml").exists(), done.stderr
    shutil.copytree(site.work / "titan_assets", site.work / "own/model")
    site.run("trireme", "config", "import", "torchtitan", "--output", "own", toml('[model]\nhf_assets_path = "own/model"\n'))

    config, report, _ = site.imported("torchtitan", toml(TITAN.replace("warmup_steps = 200", "warmup_steps = 300")))
    assert "decay_ratio" not in config["schedule"] and "torchtitan shortens the decay to the 700 steps" in report
    config, _, _ = site.imported("torchtitan", toml("# e.g. 1.5\n" * 9000))
    assert config["schedule"]["decay_type"] == "linear" and config["batch"]["global_batch_size"] == 64 and config["train"]["max_steps"] == 10000
    for section in ("parallelism", "experimental"):
        config, _, _ = site.imported("torchtitan", "--ranks", 16, toml(f"[{section}]\ncontext_parallel_degree = 4\n"))
        assert (config["parallel"]["context_size"], config["parallel"]["shard_size"], config["batch"]["global_batch_size"]) == (4, "world", 8 * 4), config
    config, _, _ = site.imported("torchtitan", "--ranks", 16, toml("[parallelism]\ncontext_parallel_degree = 4\ndata_parallel_shard_degree = 2\ndata_parallel_replicate_degree = 2\n"))
    assert config["parallel"]["shard_size"] == 8, config
    config, _, shape = site.imported("torchtitan", toml('[checkpoint]\ninitial_load_in_hf = true\n[model]\nhf_assets_path = "hf"\n'))
    assert config["model"] == {"path": f"{site.work}/hf", "init": "checkpoint"} and shape is None
    # A path is relative to where torchtitan starts, in the file to config.yaml; a name of the Hub stays.
    for given, want in (("./rows", f"{site.work}/rows"), ("titan_assets", f"{site.work}/titan_assets"), ("allenai/c4", "allenai/c4"), ("/l/rows", "/l/rows")):
        config, _, _ = site.imported("torchtitan", toml(f'[training]\ndataset_path = "{given}"\n[validation]\nenable = true\ndataset_path = "{given}"\n'))
        assert (config["data"]["train"], config["data"]["valid"]) == (want, want), config["data"]
    # torchtitan validates after the first step, never saves with load_only, and makes snapshots without traces.
    config, report, _ = site.imported("torchtitan", toml("[validation]\nenable = true\n"))
    assert "validation.freq (default) -> eval.every_samples: 640; 10 steps; torchtitan also validates after the first step" in report, report
    config, report, _ = site.imported("torchtitan", toml("[checkpoint]\nenable = true\nload_only = true\ninterval = 100\n"))
    assert "save_every_samples" not in config["output"] and config["output"]["save_on_stop"] is False, config
    assert "interval = 100 -> no regular checkpoints: checkpoint.load_only is on" in report, report
    config, report, _ = site.imported("torchtitan", toml("[profiling]\nenable_memory_snapshot = true\n"))
    assert config["profile"]["memory"] is True and config["profile"]["wait"] == 6, config
    assert "enable_memory_snapshot = true -> profile: warmup 3, active 1" in report, report
    for text, says in (
        ("[checkpoint]\nenable = true\ncreate_seed_checkpoint = true\n", ["titan.toml:3:", "it ends without training"]),
        ("[experimental]\ncustom_import = \"mine.models\"\n", ["titan.toml:2:", "a module of Python is not run"]),
        ("[comm]\nmode = \"fake_backend\"\n", ["titan.toml:2:", "write default"]),
        ("[checkpoint]\ninitial_load_in_hf_quantized = true\n", ["titan.toml:2:", "not quantised"]),
        ("[training]\nlocal_batchsize = 1\n", ["titan.toml:2:", "Did you mean 'training.local_batch_size'?"]),
        ("[training]\ndtype = \"bfloat16\"\n", ["titan.toml:2:", "master weights are fp32 here: set float32"]),
        ("[training]\nbatch_size = 1\nlocal_batch_size = 2\nseed = 1\n[debug]\nseed = 2\n", ["training.batch_size = 1: sets what training.local_batch_size sets", "leave one of them out", "2 problems"]),
        ("[trainng]\nsteps = 1\n", ["unknown section [trainng]. Did you mean 'training'?"]),
        ("[parallelism]\ntensor_parallel_degree = 8\ncontext_parallel_degree = 3\n", ["tensor_parallel_degree = 8", "context_parallel_degree = 3", "2 problems"]),
        ("[parallelism]\ncontext_parallel_degree = 2\n[experimental]\ncontext_parallel_degree = 4\n", ["sets what parallelism.context_parallel_degree sets"]),
        ("[parallelism]\ndata_parallel_shard_degree = 4\n", ["are 4 ranks, --ranks says 8"]),
        ("[model]\nname = \"deepseek_v3\"\n", ["only llama3 can be imported"]),
        ("[model]\nflavor = \"7B\"\n", ["no such llama3"]),
        ("[optimizer]\nname = \"Adam\"\n", ["AdamW can be imported"]),
        ("[training]\nsteps = \"ten\"\n", ["must be an integer"]),
        ("[lr_scheduler]\ndecay_type = \"cosin\"\n", ["Did you mean 'cosine'?"]),
        ("[training\n", ["titan.toml:1:"]),
        (".".join("a" * 100000) + " = 1\n", ["titan.toml: keys of more than 1000 parts"]),
        ("x = [\"\"\"\\\"#\"\"\"\", '#', {" + ".".join("a" * 100000) + " = 1}]\n", ["titan.toml: keys of more than 1000 parts"]),
        ("[validation]\nenable = true\nsteps = 0\n", ["titan.toml:3:", "validation.steps = 0: must be a number from 1 on"]),
        ("[validation]\nenable = true\nseq_len = 512\n", ["titan.toml:3:", "rows have training.seq_len 2048 tokens in both"]),
        ("[optimizer]\nlr = -1.0\n", ["titan.toml:2:", "optimizer.lr = -1: becomes optimizer.lr"]),
        ("[parallelism]\ntensor_parallel_degree = 0\nfsdp_reshard_after_forward = \"alway\"\n", ["titan.toml:2:", "Did you mean 'always'?", "2 problems"]),
        ("[training]\nglobal_batch_size = 0\ndtype = \"float16\"\n", ["titan.toml:2:", "titan.toml:3:", "one of float32, bfloat16"]),
        ("[checkpoint]\nenable = true\nkeep_latest_k = 1\ninterval = 9000000000000000000\n", ["titan.toml:3:", "from 2 on", "titan.toml:4:", "too large"]),
        ("[profiling]\nenable_profiling = true\nprofile_freq = 3\n", ["titan.toml:3:", "do not fit into 3 steps"]),
        ("[model]\nconverters = [\"float8\"]\n[float8]\nrecipe_name = \"rowwise_with_gw_hp\"\n", ["titan.toml:4:", "wgrad products are in FP8 too"]),
        ("[optimizer]\nearly_step_in_backward = true\n", ["titan.toml:2:", "set it to false"]),
        ("[model]\nconverters = [\"float8\"]\n[quantize.linear.float8]\nfilter_fqns = [\"attention.wk\"]\n", ["'attention.wk' is not left out"]),
    ):
        site.refused("torchtitan", toml(text), says=says)
    site.refused("torchtitan", site.work / "absent.toml", says=["absent.toml"])


def check_keys(site):
    """Every key of the tables is imported, refused by name, or has a line that says why it means nothing."""
    def check(kind, keys, run):
        done, left = None, dict(keys)
        for _ in range(6):  # a refused key hides what depends on it
            done = run(left)
            if done.returncode == 0:
                break
            assert done.returncode == 2 and "unknown" not in done.stderr, f"{kind}: {done.returncode}\n{done.stderr}"
            refused = [name for name in left if re.search(rf"(^|[ :'-]){re.escape(name)}[ =,]", done.stderr)]
            assert refused, f"{kind}: refused without a name\n{done.stderr}"
            for name in refused:
                del left[name]
        assert done.returncode == 0, done.stderr
        assert len(left) > 0.9 * len(keys), f"{kind}: {sorted(set(keys) - set(left))} are refused"
        for name in left:
            assert re.search(rf"(^|[ -]){re.escape(name)}\b", done.stderr, re.M), f"{kind}: {name} has no line in\n{done.stderr}"

    def run(*arguments):
        return subprocess.run([f"{site.bin}/trireme", "config", "import", *map(str, arguments)], capture_output=True, text=True, cwd=site.work)

    def titan(keys):
        lines = []
        for name, given in sorted(keys.items()):
            section, key = name.rsplit(".", 1)
            lines.append(f"[{section}]" if not lines or section != lines[-1][0] else "")
            lines[-1] = (section, lines[-1], f"{key} = {json.dumps(given)}")
        (site.work / "keys.toml").write_text("\n".join(f"{head}\n{line}" for _, head, line in lines))
        return run("torchtitan", "keys.toml")

    check("torchtitan", {name: given for name, given in TABLES["torchtitan"]["keys"].items() if given is not None and given != [] or name == "model.converters"}, titan)

    def nemo(keys):
        tree = {}
        for name, given in keys.items():
            node = tree
            for part in name.split(".")[:-1]:
                node = node.setdefault(part, {})
            node[name.split(".")[-1]] = given
        (site.work / "keys.yaml").write_text(yaml.safe_dump(tree))
        return run("nemo", "keys.yaml")

    check("nemo", TABLES["nemo"]["keys"], nemo)
    check("fms", TABLES["fms"]["keys"], lambda keys: run("fms", "--", *[f"--{name}={given}" for name, given in keys.items()]))


def check_against_torchtitan(site):
    """The models and keys of the torchtitan that is installed."""
    try:
        import dataclasses
        import torch
        from torchtitan.config import JobConfig
        from torchtitan.models.llama3 import llama3_args
        from torchtitan.models.llama3.model.model import precompute_freqs_cis
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    except ImportError as missing:
        print(f"SKIPPED: torchtitan or transformers is not there ({missing})")
        raise SystemExit(77)

    def names(section, prefix):
        for field in dataclasses.fields(section):
            inner = getattr(section, field.name)
            if dataclasses.is_dataclass(inner):
                yield from names(inner, f"{prefix}{field.name}.")
            else:
                yield prefix + field.name

    unknown = set(names(JobConfig(), "")) - set(TABLES["torchtitan"]["keys"])
    assert not unknown, f"not in trainer_keys.json: {sorted(unknown)}"
    for flavor in ("debugmodel", "8B", "70B", "405B"):
        path = site.work / "flavor.toml"
        path.write_text(f'[model]\nflavor = "{flavor}"\n')
        _, _, shape = site.imported("torchtitan", path)
        theirs = llama3_args[flavor]
        hidden = int((theirs.ffn_dim_multiplier or 1) * int(2 * 4 * theirs.dim / 3))
        hidden = (hidden + theirs.multiple_of - 1) // theirs.multiple_of * theirs.multiple_of
        sizes = (theirs.dim, theirs.n_layers, theirs.n_heads, theirs.n_kv_heads or theirs.n_heads, hidden, theirs.vocab_size, theirs.norm_eps)
        mine = tuple(shape[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "rms_norm_eps"))
        assert mine == sizes, (flavor, mine, sizes)
        scaling = (theirs.rope_scaling_args,) if hasattr(theirs, "rope_scaling_args") else ()
        angles = precompute_freqs_cis(theirs.dim // theirs.n_heads, 2, theirs.rope_theta, *scaling)[1].angle()
        frequencies = LlamaRotaryEmbedding(LlamaConfig(**{key: given for key, given in shape.items() if key != "model_type"})).inv_freq
        assert torch.allclose(angles, frequencies, rtol=1e-5, atol=0), flavor


def check_nemo(site):
    conf = Path(__file__).resolve().parents[2] / "scripts/launch/conf"
    config, report, shape = site.imported("nemo", conf / "training/gpt3/126m.yaml", "--", "model.data.data_impl=mock", "training.trainer.max_steps=700")
    assert config["model"] == {"path": "model", "init": "random", "pad_vocab_to": 128} and config["data"]["train"] == "mock" and config["train"]["max_steps"] == 700
    expected = {"model_type": "gpt2", "n_embd": 768, "n_inner": 3072, "n_layer": 12, "n_head": 12, "n_positions": 2048, "vocab_size": 50257, "embd_pdrop": 0.1,
                "resid_pdrop": 0.1, "attn_pdrop": 0.1, "initializer_range": 0.023, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
                "eos_token_id": 50256, "tie_word_embeddings": True}
    for key, want in expected.items():
        assert shape[key] == want, f"{key}: {shape[key]!r}, not {want!r}"
    assert "model.tensor_model_parallel_size = 1 -> one: as here" in report
    config, _, _ = site.imported("nemo", conf / "training/gpt3/126m.yaml", "--", "model.data.data_prefix=[c4/text]", "exp_manager.explicit_log_dir=l/run")
    assert config["data"]["train"] == f"{site.work}/c4/text" and config["output"]["dir"] == f"{site.work}/l/run", config
    # A vocabulary of the user's, under a name of the user's.
    (site.work / "words.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 99, "<|endoftext|>": 3}))
    (site.work / "pairs.txt").write_text("#version: 0.2\na b\n")
    _, _, shape = site.imported("nemo", conf / "training/gpt3/126m.yaml", "--", "model.data.data_impl=mock", "model.tokenizer.vocab_file=words.json",
                                "model.tokenizer.merge_file=pairs.txt", "model.data.eod_mask_loss=True")
    assert shape["vocab_size"] == 100 and (shape["bos_token_id"], shape["eos_token_id"]) == (3, 3) and {path.name for path in (site.work / f"import{site.count}/model").iterdir()} == {"config.json", "vocab.json", "merges.txt"}
    site.refused("nemo", conf / "training/gpt3/126m.yaml", "trainer.max_time=soon", "model.rampup_batch_size=[64,100,1000]", "trainer.val_check_interval=null",
                 says=["trainer.max_time = soon: becomes train.max_time", "model.rampup_batch_size = [64, 100, 1000]: becomes batch.rampup", "2 problems"])
    wrong = {"model.micro_batch_size": 0, "model.tensor_model_parallel_size": 0, "model.optim.sched.constant_steps": -5, "trainer.log_every_n_steps": 0,
             "trainer.val_check_interval": 9000000000000000000, "trainer.precision": "bf16-mixt", "model.optim.grad_sync_dtype": "int8",
             "model.activations_checkpoint_method": "blok"}
    site.refused("nemo", conf / "training/gpt3/126m.yaml", *(f"++{key}={number}" for key, number in wrong.items()), says=[f"{key} = {number}: " for key, number in wrong.items()])
    kept = site.run("trireme", "config", "import", "nemo", conf / "training/gpt3/126m.yaml", "exp_manager.checkpoint_callback_params.save_top_k=5", "++s3_checkpointing.chunk_size_MB=7")
    assert "keep_last: 5" in kept.stdout and "s3_checkpointing.chunk_size_MB = 7" in kept.stderr
    for beside in ("++modle.micro_batch_size=2", "+env_vars.NCCL_DEBUG=INFO", "++restore_from_path=x.nemo"):
        site.refused("nemo", conf / "training/gpt3/126m.yaml", beside, says=[f"'{beside}' adds a key beside the training file"])
    # The whole configuration, and a training file without the files around it.
    whole = site.run("trireme", "config", "import", "nemo", conf / "config.yaml", "training=gpt3/5b")
    assert "lr: 0.00016" in whole.stdout and "model.num_layers = 24" in whole.stderr
    (site.work / "alone.yaml").write_text("run: {name: a, results_dir: '${base_results_dir}/a'}\ntrainer: {num_nodes: 1, devices: 1, max_steps: 9}\n"
                                          "model: {micro_batch_size: 1, global_batch_size: 2, encoder_seq_length: 64, max_position_embeddings: '${model.encoder_seq_length}', "
                                          "data: {data_impl: mock, seq_length: '${model.encoder_seq_length}'}, tokenizer: {type: GPT2BPETokenizer}}\n")
    alone = site.run("trireme", "config", "import", "nemo", "alone.yaml", "model.global_batch_size=4", "model.encoder_seq_length=32")
    assert "global_batch_size: 4" in alone.stdout and "seq_length: 32" in alone.stdout
    (site.work / "torn.yaml").write_text("defaults: [_self_, optional tp: null, gpt3/common@_here_]\nmodel: {}\n")
    site.refused("nemo", "torn.yaml", says=["torn.yaml:1:39: a file of the defaults list"])
    (site.work / "bert.yaml").write_text("model: {bert_binary_head: true}\n")
    site.refused("nemo", "bert.yaml", says=["bert.yaml: this is a BERT configuration", "train-bert.md"])
    cluster = site.run("trireme", "config", "import", "nemo", conf / "cluster/bcm.yaml")
    assert "mem = 0 -> #SBATCH --mem=0" in cluster.stderr and "partition = None -> not written" in cluster.stderr and not cluster.stdout
    site.refused("nemo", conf / "training/gpt3/126m.yaml", "+model.hiden_size=3", "model.tensor_model_parallel_size=2", "trainer.max_stepz=1",
                 says=["there is no 'training.trainer.max_stepz'. Did you mean 'max_steps'?"])
    site.refused("nemo", conf / "training/gpt3/126m.yaml", "+model.hiden_size=3", "model.tensor_model_parallel_size=2",
                 says=["Did you mean 'model.hidden_size'?", "tensor parallelism is not there", "2 problems"])
    site.run("trireme", "config", "import", "nemo", "--ignore-unknown", conf / "training/gpt3/126m.yaml", "+model.hiden_size=3")
    site.refused("nemo", "absent.yaml", says=["absent.yaml"])


def fms_rate(step, steps, warmup):
    return min(1 - (1 - min(step, warmup) / warmup) ** 2, 0.1 + 0.45 * (1 + math.cos(min(step, steps) / steps * math.pi)))


def check_run(site):
    (site.work / "text.txt").write_text("\n\n".join(f"The trireme crossed the strait with {170 + i} rowers." for i in range(60)))
    site.run("trireme", "tokenizer", "train", "--input", "text.txt", "--vocab-size", 320, "--output", "t.model")
    site.run("trireme", "data", "pack", "--tokenizer", "t.model", "--seq-length", 16, "--input", "text.txt", "--output", "rows.npy")
    site.run("trireme", "init-model", "--preset", "llama-tiny", "--vocab-size", 320, "--hidden-size", 32, "--heads", 2, "--kv-heads", 2, "--intermediate-size", 64,
             "--output", "tiny")
    site.run("trireme", "config", "import", "fms", "--ranks", 1, "--output", "job", "--", "--model_variant=7b", "--seq_length=16", "--num_steps=40",
             "--report_interval=4", "--checkpoint_interval=10", "--fsdp_activation_checkpointing=1", "--selective_checkpointing=1/2")

    def train(*settings):
        sets = [argument for setting in ("model.path=../tiny", "data.train=../rows.npy", "precision.compute=fp32", "parallel.shard_size=1", "parallel.policy=auto", "data.eos_token=null", *settings)
                for argument in ("--set", setting)]
        return site.run("train_llama", "--config", "job/config.yaml", *sets)

    def rows(folder):
        return [row for row in map(json.loads, (site.work / folder / "metrics.jsonl").read_text().splitlines()) if row["event"] == "train"]

    done = train("output.dir=fms")
    for row in rows("job/fms"):
        want = 3e-4 * fms_rate(row["step"] - 1, 40, 2)
        assert math.isclose(row["lr"], want, rel_tol=1e-12, abs_tol=1e-18), (row, want)
    lines = [line for line in done.stdout.splitlines() if re.match(r"[a-zA-Z ]+: ", line)]
    labels = ["step", "loss", "LR", "tokens seen", "gradient norm", "reserved memory", "allocated memory", "current step time", "overall step time",
              "current token per gpu per sec", "overall token per gpu per sec", "overall token per day"]
    start = next(i for i, line in enumerate(lines) if line.startswith("step: "))
    assert [line.split(":")[0] for line in lines[start:start + 12]] == labels, lines[start:start + 12]
    steps = [int(line.split()[1]) for line in lines if line.startswith("step: ")]
    assert steps == list(range(4, 41, 4)), steps
    losses = [row["loss"] for row in rows("job/fms")]
    reported = [float(line.split()[1]) for line in lines if line.startswith("loss: ")]
    assert all(math.isclose(mean, sum(losses[4 * i:4 * i + 4]) / 4, rel_tol=1e-9) for i, mean in enumerate(reported)), "the mean of the interval"
    # Recomputing every second block changes nothing.
    train("output.dir=none", "parallel.recompute=none", "logging.style=plain")
    assert [row["loss"] for row in rows("job/none")] == losses

    # A run whose decay has not begun can be made longer as if it had been so from the start; torchtitan's rates.
    wsd = ("schedule.name=wsd", "schedule.decay_ratio=0.25", "schedule.warmup_steps=4", "output.save_every_samples=20", "output.dir=wsd", "logging.style=plain")
    train(*wsd, "train.max_steps=10", "schedule.decay_ratio=0")
    longer = train(*wsd, "train.max_steps=20", "schedule.decay_ratio=0")
    assert "the wsd schedule is that of a run which had this many steps from the start" in longer.stdout + longer.stderr
    assert [row["lr"] for row in rows("job/wsd")] == [3e-4 * min(1, (step + 1) / 4) for step in range(20)]
    again = ("schedule.name=wsd", "schedule.decay_ratio=0.5", "schedule.warmup_steps=4", "output.save_every_samples=20", "output.dir=decay", "logging.style=plain")
    train(*again, "train.max_steps=20")
    later = train(*again, "train.max_steps=40")
    assert re.search(r"the wsd schedule now ends at step 40: the learning rate was .* in step 20 and is .* in step 21", later.stdout + later.stderr)
    assert [row["lr"] for row in rows("job/decay")][20:30] == [3e-4] * 1 + [3e-4 * (1 - (step - 20) / 20) for step in range(21, 30)] or \
        all(math.isclose(row["lr"], 3e-4 * (1 - max(0, row["step"] - 21) / 20), rel_tol=1e-12) for row in rows("job/decay")[20:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--case", required=True, choices=["options", "run", "torchtitan"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        site = Site(args.bin, work)
        checks = {"options": (check_keys, check_variants, check_fms_head, check_fms_refusals, check_aws, check_torchtitan, check_nemo), "run": (check_run,),
                  "torchtitan": (check_against_torchtitan,)}
        for check in checks[args.case]:
            check(site)
    print("ok")


if __name__ == "__main__":
    main()
