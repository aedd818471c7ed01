"""Reference values of tiny random Llamas from transformers and peft, for tests/models/parity_test.cpp.
decoder_references.py runs it.

One directory per case: config.txt (key value lines), index.txt (name dtype rank extents... offset, one tensor a line) and data.bin
(row-major values). Exit 77 when the packages are missing.
"""


from needed import needed

with needed():
    import numpy
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

BASE = dict(hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
            head_dim=16, vocab_size=97, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, tie=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GQA = dict(num_attention_heads=8, num_key_value_heads=2, head_dim=32)

CASES = {
    "mha": {},
    "gqa": GQA,
    "tied": dict(GQA, tie=True),
    "llama3_rope": dict(GQA, rope=LLAMA3, rope_theta=500000.0),
    "linear_rope": dict(rope=dict(rope_type="linear", factor=4.0)),
    "packed": dict(GQA, sequences=[7, 1, 25], rows=1),
    "lora_seven": dict(GQA, lora=SEVEN),
    "lora_q_v": dict(GQA, lora=["q_proj", "v_proj"]),
    "lora_o_up_down": dict(lora=["o_proj", "up_proj", "down_proj"]),
    "lora_tied_gate": dict(tie=True, lora=["gate_proj"]),
    "lora_fused": dict(GQA, lora=["q_proj", "k_proj", "v_proj", "o_proj"], fused=True),
    "lora_packed": dict(GQA, lora=SEVEN, sequences=[9, 24], rows=1),
}


def build(case):
    rope = dict(case["rope"]) if "rope" in case else dict(rope_type="default")
    rope["rope_theta"] = case["rope_theta"]
    names = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
             "vocab_size", "max_position_embeddings", "rms_norm_eps"]
    config = LlamaConfig(**{name: case[name] for name in names}, rope_parameters=rope, tie_word_embeddings=case["tie"],
                         attn_implementation="eager", initializer_range=0.1)
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


def add_adapters(model, case):
    config = LoraConfig(r=3, lora_alpha=7, lora_dropout=0.0, target_modules=case["lora"], bias="none")
    model = get_peft_model(model, config)
    with torch.no_grad():
        shared = {}
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            if case.get("fused") and "lora_A" in name and "self_attn" in name and "o_proj" not in name:
                layer = name.split("self_attn")[0]
                parameter.copy_(shared.setdefault(layer, parameter.clone()))
    return model


def write(directory, case, tensors):
    directory.mkdir(parents=True, exist_ok=True)
    offset, lines = 0, []
    with open(directory / "data.bin", "wb") as data:
        for name, tensor in tensors.items():
            array = numpy.ascontiguousarray(tensor.detach().numpy())
            kind = {"float32": "f32", "int64": "i64"}[str(array.dtype)]
            lines.append(" ".join([name, kind, str(array.ndim)] + [str(n) for n in array.shape] + [str(offset)]))
            data.write(array.tobytes())
            offset += array.nbytes
    (directory / "index.txt").write_text("\n".join(lines) + "\n")
    rope = case.get("rope", {})
    settings = {key: value for key, value in case.items() if not isinstance(value, (dict, list))}
    settings["tie"] = int(case["tie"])
    settings["fused"] = int(case.get("fused", False))
    settings["rope_type"] = rope.get("rope_type", "default")
    for key in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]:
        if key in rope:
            settings[key] = rope[key]
    settings["lora"] = ",".join(case.get("lora", [])) or "-"
    (directory / "config.txt").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))


def run(name, case, directory):
    torch.manual_seed(sum(map(ord, name)))
    model = build(case)
    tensors = {"weight/" + key: value.clone() for key, value in model.state_dict().items()}
    if case["tie"]:
        tensors.pop("weight/lm_head.weight", None)
    if "lora" in case:
        model = add_adapters(model, case)
        for key, value in model.named_parameters():
            if "lora_" in key:
                tensors["lora/" + key.replace("base_model.model.", "").replace(".default", "")] = value.clone()
    rows = case.get("rows", 2)
    lengths = case.get("sequences", [33])
    width = sum(lengths)
    tokens = torch.randint(0, case["vocab_size"], (rows, width))
    counted = torch.rand(rows, width) > 0.3
    bounds, positions, logits = [0], [], []
    total = torch.zeros(())
    begin = 0
    for length in lengths:
        ids, labels = tokens[:, begin:begin + length], tokens[:, begin:begin + length].clone()
        # counted[t] marks the target t; the first token of a sequence is not a target.
        counted[:, begin] = False
        labels[~counted[:, begin:begin + length]] = -100
        output = model(input_ids=ids, labels=labels)
        valid = (labels[:, 1:] != -100).sum()
        logits.append(output.logits)
        if valid > 0:
            total = total + output.loss * valid
        positions.append(torch.arange(length).expand(rows, length))
        begin += length
    for row in range(rows):
        end = row * width
        for length in lengths:
            end += length
            bounds.append(end)
    total.backward()
    # Weight of the prediction at position t, of token t + 1.
    weight = torch.zeros(rows, width)
    weight[:, :-1] = counted[:, 1:].float()
    tensors |= {"tokens": tokens, "loss_weight": weight, "positions": torch.cat(positions, 1).contiguous(),
                "bounds": torch.tensor(bounds), "logits": torch.cat(logits, 1), "loss_sum": total.reshape(1)}
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            tensors["grad/" + key.replace("base_model.model.", "").replace(".default", "")] = parameter.grad
    write(directory / name, case, tensors)


def write_all(root):
    for case_name, overrides in CASES.items():
        run(case_name, BASE | overrides, root)
