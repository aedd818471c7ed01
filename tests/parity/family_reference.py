"""Reference values of tiny random models of every decoder family from transformers and peft, for tests/models/family_parity_test.cpp.
decoder_references.py runs it. Exit 77 when the packages are missing.
"""

import copy

from needed import needed

with needed():
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import save_file
    from torch.overrides import TorchFunctionMode
    from transformers import (AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, GraniteConfig, LlamaConfig, MistralConfig, Olmo2Config,
                              Phi3Config, Qwen2Config, Qwen3Config, SmolLM3Config)
    from transformers.pytorch_utils import Conv1D

LENGTH = 33
SHAPE = dict(hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, vocab_size=97,
             max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.1, bos_token_id=1, eos_token_id=2)
ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))
PACKED = dict(sequences=[9, 1, 23])
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PADLESS = dict(SHAPE, pad_token_id=None)


def scaled(kind, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=1e5, **more))


LONGROPE = dict(short_factor=[1.0, 1.25, 1.5, 2.0], long_factor=[1.0, 2.5, 4.0, 7.0], original_max_position_embeddings=16)
GEMMA = dict(PADLESS, head_dim=16, num_hidden_layers=3, query_pre_attn_scalar=24, sliding_window=7,
             layer_types=["sliding_attention", "full_attention", "sliding_attention"])
GRANITE = dict(SHAPE, embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.125, logits_scaling=3.0)
GPT2 = dict(n_embd=64, n_layer=2, n_head=4, n_positions=48, vocab_size=97, initializer_range=0.1, bos_token_id=96, eos_token_id=96)
CASES = {
    "llama": (LlamaConfig, dict(SHAPE), {}),
    "llama_padding": (LlamaConfig, dict(SHAPE, pad_token_id=5), {}),
    "llama_padding_tied": (LlamaConfig, dict(SHAPE, pad_token_id=-1, tie_word_embeddings=True), PACKED),
    "mistral": (MistralConfig, dict(SHAPE, head_dim=16, sliding_window=None, **ROPE), {}),
    "mistral_window": (MistralConfig, dict(SHAPE, sliding_window=LENGTH), {}),
    "mistral_short_window": (MistralConfig, dict(SHAPE, sliding_window=5), {}),
    "mistral_window_packed": (MistralConfig, dict(SHAPE, sliding_window=11), PACKED),
    "mistral_lora": (MistralConfig, dict(SHAPE, sliding_window=None), dict(lora=["q_proj", "o_proj", "down_proj"])),
    "qwen2": (Qwen2Config, dict(SHAPE, **ROPE), {}),
    "qwen2_tied": (Qwen2Config, dict(SHAPE, tie_word_embeddings=True), PACKED),
    "qwen2_window": (Qwen2Config, dict(SHAPE, use_sliding_window=True, sliding_window=LENGTH, max_window_layers=1), {}),
    "qwen2_short_window": (Qwen2Config, dict(SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1), {}),
    "qwen2_layer_types": (Qwen2Config, dict(SHAPE, use_sliding_window=True, sliding_window=4,
                                            layer_types=["sliding_attention", "full_attention"]), PACKED),
    "qwen2_lora": (Qwen2Config, dict(SHAPE), dict(lora=["q_proj", "k_proj", "v_proj", "gate_proj"])),
    "qwen3": (Qwen3Config, dict(SHAPE, head_dim=16, **ROPE), {}),
    "qwen3_packed": (Qwen3Config, dict(SHAPE, head_dim=16, tie_word_embeddings=True), PACKED),
    "qwen3_lora": (Qwen3Config, dict(SHAPE, head_dim=16), dict(lora=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"])),
    "llama_yarn": (LlamaConfig, dict(SHAPE, **scaled("yarn", factor=4.0, original_max_position_embeddings=16)), {}),
    "qwen3_yarn": (Qwen3Config, dict(SHAPE, head_dim=16, **scaled("yarn", factor=8.0, original_max_position_embeddings=12, beta_fast=16.0,
                                                                  beta_slow=2.0, mscale=0.8, mscale_all_dim=0.5, truncate=False)), {}),
    "llama_yarn_factor": (LlamaConfig, dict(SHAPE, **scaled("yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.3)), {}),
    "llama_dynamic": (LlamaConfig, dict(SHAPE, max_position_embeddings=20, **scaled("dynamic", factor=3.0)), {}),
    "llama_dynamic_packed": (LlamaConfig, dict(SHAPE, max_position_embeddings=12, **scaled("dynamic", factor=3.0)), PACKED),
    "llama_longrope": (LlamaConfig, dict(SHAPE, **scaled("longrope", factor=4.0, **LONGROPE)), PACKED),
    "phi3": (Phi3Config, dict(PADLESS, **ROPE), {}),
    "phi3_window": (Phi3Config, dict(PADLESS, sliding_window=6), {}),
    "phi3_longrope": (Phi3Config, dict(PADLESS, original_max_position_embeddings=16, tie_word_embeddings=True,
                                       **scaled("longrope", short_factor=LONGROPE["short_factor"], long_factor=LONGROPE["long_factor"])),
                      PACKED),
    "phi3_partial": (Phi3Config, dict(PADLESS, **scaled("default", partial_rotary_factor=0.75)), {}),
    "phi3_lora": (Phi3Config, dict(PADLESS), dict(lora=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "olmo2": (Olmo2Config, dict(PADLESS, num_hidden_layers=3, **ROPE), {}),
    "olmo2_packed": (Olmo2Config, dict(PADLESS, tie_word_embeddings=True), PACKED),
    "olmo2_lora": (Olmo2Config, dict(PADLESS), dict(lora=SEVEN)),
    "olmo2_lora_o": (Olmo2Config, dict(PADLESS), dict(lora=["o_proj"])),
    "smollm3": (SmolLM3Config, dict(PADLESS, num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0]), {}),
    "smollm3_window": (SmolLM3Config, dict(PADLESS, num_hidden_layers=3, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=5,
                                           tie_word_embeddings=True), PACKED),
    "smollm3_lora": (SmolLM3Config, dict(PADLESS, no_rope_layers=[0, 1]), dict(lora=SEVEN)),
    "granite": (GraniteConfig, dict(GRANITE), {}),
    "granite_tied": (GraniteConfig, dict(GRANITE, tie_word_embeddings=True, **ROPE), PACKED),
    "granite_lora": (GraniteConfig, dict(GRANITE), dict(lora=SEVEN)),
    "gemma3": (Gemma3TextConfig, dict(GEMMA), {}),
    "gemma3_scaled": (Gemma3TextConfig, dict(GEMMA, rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e3))),
                      PACKED),
    "gemma3_untied": (Gemma3TextConfig, dict(GEMMA, tie_word_embeddings=False), {}),
    "gemma3_lora": (Gemma3TextConfig, dict(GEMMA), dict(lora=SEVEN)),
    "gpt2": (GPT2Config, dict(GPT2), {}),
    "gpt2_packed": (GPT2Config, dict(GPT2), PACKED),
    "gpt2_untied_erf": (GPT2Config, dict(GPT2, n_inner=96, activation_function="gelu", tie_word_embeddings=False, resid_pdrop=0.0), {}),
    # Filled up to 128 rows, as train_gpt trains it: ids stay below 97.
    "gpt3": (GPT2Config, dict(GPT2, vocab_size=128, n_head=2, n_inner=256, n_positions=LENGTH), {}),
    "gpt2_lora": (GPT2Config, dict(GPT2), dict(lora=["c_attn", "c_proj", "c_fc"])),
}
TIED = dict(tie_word_embeddings=True)
QWEN3 = (Qwen3Config, dict(SHAPE, head_dim=16))
# What peft's adapters can have: family, settings, LoraConfig's arguments.
ADAPTERS = {
    "all_linear": (LlamaConfig, dict(SHAPE), dict(target_modules="all-linear", use_rslora=True)),
    "pattern": (LlamaConfig, dict(SHAPE), dict(target_modules=r".*\.(q|v|down)_proj", rank_pattern={"v_proj": 5, r"layers\.1\.mlp\..*": 2},
                                               alpha_pattern={"q_proj": 11}, use_rslora=True)),
    "layers": (*QWEN3, dict(target_modules=["q_proj", "mlp.up_proj", "model.layers.0.self_attn.o_proj"], layers_to_transform=[1],
                            exclude_modules=["layers.1.self_attn.q_proj"])),
    "saved": (LlamaConfig, dict(SHAPE), dict(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])),
    "saved_embedding_of_tied": (*QWEN3, dict(target_modules=["v_proj"], modules_to_save=["embed_tokens"]), TIED),
    "saved_output_of_tied": (*QWEN3, dict(target_modules=["v_proj"], modules_to_save=["lm_head"]), TIED),
    "saved_tied": (*QWEN3, dict(target_modules=["v_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True), TIED),
    "saved_gpt2": (GPT2Config, dict(GPT2), dict(target_modules=["c_attn"], modules_to_save=["wte"])),
    "saved_tied_gpt2": (GPT2Config, dict(GPT2), dict(target_modules=["c_attn"], modules_to_save=["lm_head"], ensure_weight_tying=True)),
    "saved_untied_gpt2": (GPT2Config, dict(GPT2), dict(target_modules=["c_attn"], modules_to_save=["wte"], ensure_weight_tying=True)),  # peft ties no wte
    "tokens": (LlamaConfig, dict(SHAPE), dict(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [50, 3, 4], "lm_head": [1]})),
    "tokens_padding": (LlamaConfig, dict(SHAPE, pad_token_id=3), dict(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [50, 3, 4], "lm_head": [3]})),
    "tokens_of_tied": (*QWEN3, dict(target_modules=["q_proj"], trainable_token_indices=[50, 3, 70]), TIED),
    "embedding": (LlamaConfig, dict(SHAPE), dict(target_modules=["embed_tokens", "o_proj"], rank_pattern={"embed_tokens": 4})),
    "embedding_padding": (LlamaConfig, dict(SHAPE, pad_token_id=7), dict(target_modules=["embed_tokens", "o_proj"])),
    "embedding_of_tied": (GPT2Config, dict(GPT2), dict(target_modules=["wte", "c_fc"])),
    "dora": (LlamaConfig, dict(SHAPE), dict(target_modules="all-linear", use_dora=True)),
    "dora_pattern": (*QWEN3, dict(target_modules=r".*\.(q|v|down)_proj", rank_pattern={"v_proj": 5}, use_dora=True, use_rslora=True)),
    "dora_gpt2": (GPT2Config, dict(GPT2), dict(target_modules=["c_attn", "c_proj", "c_fc"], use_dora=True)),
    "dora_biases": (Qwen2Config, dict(SHAPE), dict(target_modules=["q_proj", "k_proj", "up_proj"], use_dora=True, bias="lora_only")),
    "bias_all": (GPT2Config, dict(GPT2), dict(target_modules=["c_fc"], bias="all")),
}
CASES |= {"adapter_" + name: (kind, dict(settings, **dict(*more)), dict(lora=lora)) for name, (kind, settings, lora, *more) in ADAPTERS.items()}


class StayDouble(TorchFunctionMode):
    """Activations and weights in fp64 stay so where a model casts them to fp32, as RMS norms do. Frequencies of rotary positions do not."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        narrows = function is torch.Tensor.float or (function is torch.Tensor.to and torch.float32 in (*args[1:], *kwargs.values()))
        if narrows and args[0].dtype == torch.float64 and (args[0].dim() > 2 or isinstance(args[0], torch.nn.Parameter)):
            return args[0]
        return function(*args, **kwargs)


def build(config):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            elif parameter.dim() == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


def with_adapter(model, arguments, directory):
    if isinstance(arguments, list):
        arguments = dict(target_modules=arguments)
    model = get_peft_model(model, LoraConfig(**dict(dict(r=3, lora_alpha=7, lora_dropout=0.0, task_type="CAUSAL_LM"), **arguments)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            elif parameter.requires_grad and "lora_A" not in name and "lora_embedding_B" not in name:
                parameter.mul_(torch.rand_like(parameter) * 0.4 + 0.8)  # magnitudes, rows, whole modules, biases
    model.save_pretrained(directory)
    return model


def gradients(model):
    stored = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)}
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            value = parameter.grad.t() if name in stored or "lora_embedding_A" in name else parameter.grad
            if "trainable_tokens_delta" in name:  # in the order of ids
                indices = model.get_submodule(name[:name.index(".trainable_tokens_delta")]).token_indices["default"]
                value = value[torch.tensor(indices).argsort()]
            for part in ("base_model.model.", ".default", ".modules_to_save", ".base_layer"):
                name = name.replace(part, "")
            found["grad/" + name.replace("magnitude_vector.weight", "magnitude_vector")] = value.contiguous()
    return found


def run(directory, kind, settings, options):
    torch.manual_seed(sum(map(ord, directory.name)))
    model = build(kind(**copy.deepcopy(settings)))  # a configuration changes its rope_parameters
    model.save_pretrained(directory)
    if "lora" in options:
        model = with_adapter(model, options["lora"], directory / "adapter")
    model = model.double().eval()
    lengths = options.get("sequences", [LENGTH])
    rows, width = 2, sum(lengths)
    tokens = torch.randint(0, 97, (rows, width))
    if settings.get("pad_token_id") is not None:  # its row gets no gradient
        tokens[:, 2] = settings["pad_token_id"] % 97
    weight = (torch.rand(rows, width) > 0.3).double()  # of the prediction made at a position
    bounds, positions, logits, begin = [0], [], [], 0
    for length in lengths:
        weight[:, begin + length - 1] = 0
        with StayDouble():
            logits.append(model(input_ids=tokens[:, begin:begin + length]).logits)
        positions.append(torch.arange(length).expand(rows, length))
        begin += length
    for row in range(rows):
        for length in lengths:
            bounds.append(bounds[-1] + length)
    logits = torch.cat(logits, 1)
    targets = tokens.roll(-1, 1)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.reshape(-1), reduction="none")
    loss = (losses * weight.reshape(-1)).sum()
    loss.backward()
    tensors = {"tokens": tokens, "loss_weight": weight.float(), "positions": torch.cat(positions, 1).contiguous(),
               "bounds": torch.tensor(bounds), "logits": logits.detach(), "loss_sum": loss.detach().reshape(1)}
    save_file(tensors | gradients(model), directory / "reference.safetensors")


def load(directory):
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    problems = {key: value for key, value in info.items() if value}
    assert not problems, f"{directory}: {problems}"
    return model.eval()


def plain(value):
    """Without transformers 4's name of rope_type."""
    return {key: plain(entry) for key, entry in value.items() if key != "type"} if isinstance(value, dict) else value


def check(directory, options):
    exported = directory / "exported"
    want, got = load(directory), load(exported)
    for key in ("tie_word_embeddings", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        assert getattr(want.config, key) == getattr(got.config, key), (directory.name, key)
    for key in ("rope_parameters", "no_rope_layers", "query_pre_attn_scalar", "hidden_activation", "embedding_multiplier",
                "residual_multiplier", "attention_multiplier", "logits_scaling", "sliding_window", "layer_types", "rms_norm_eps", "attention_dropout", "resid_pdrop", "attn_pdrop",
                "embd_pdrop", "activation_function", "layer_norm_epsilon", "eos_token_id", "bos_token_id", "pad_token_id"):
        assert plain(getattr(want.config, key, None)) == plain(getattr(got.config, key, None)), (directory.name, key)
    if "lora" in options:
        want = PeftModel.from_pretrained(want, directory / "adapter").eval()
        got = PeftModel.from_pretrained(got, exported / "adapter").eval()
    tokens = torch.arange(LENGTH).remainder(97).reshape(1, -1)
    with torch.no_grad():
        assert torch.equal(want(input_ids=tokens).logits, got(input_ids=tokens).logits), f"{directory.name}: other logits"
    print(directory.name, "loads with equal logits")


def write_all(root):
    """A folder for each case: config.json and model.safetensors as transformers saves them, adapter/ as peft does, reference.safetensors with
    batch, logits, loss and gradients (fp64)."""
    for case, (kind, settings, options) in CASES.items():
        run(root / case, kind, settings, options)


def check_all(root):
    """CASE/exported, which the test wrote, must load and give the logits of CASE to the bit."""
    for case, (_, _, options) in CASES.items():
        check(root / case, options)
