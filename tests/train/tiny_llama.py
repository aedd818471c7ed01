"""A Llama of some thousand weights as `trireme init-model` writes it, without a start of the program. Standard library only."""
import array
import json
import os
import random
import struct


def shapes(layers, vocabulary, hidden, heads, kv_heads, intermediate):
    width = hidden // heads
    yield "model.embed_tokens.weight", [vocabulary, hidden]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [hidden]
        yield prefix + "self_attn.q_proj.weight", [hidden, hidden]
        yield prefix + "self_attn.k_proj.weight", [kv_heads * width, hidden]
        yield prefix + "self_attn.v_proj.weight", [kv_heads * width, hidden]
        yield prefix + "self_attn.o_proj.weight", [hidden, hidden]
        yield prefix + "post_attention_layernorm.weight", [hidden]
        yield prefix + "mlp.gate_proj.weight", [intermediate, hidden]
        yield prefix + "mlp.up_proj.weight", [intermediate, hidden]
        yield prefix + "mlp.down_proj.weight", [hidden, intermediate]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [vocabulary, hidden]


def write_llama(directory, vocabulary, layers=2, positions=128, hidden=32, heads=4, kv_heads=2, intermediate=64):
    """config.json and model.safetensors in `directory`: fp32, normal(0, 0.02), norms of one."""
    os.makedirs(directory)
    with open(f"{directory}/config.json", "w") as out:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
                   "eos_token_id": 2, "head_dim": hidden // heads, "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02,
                   "intermediate_size": intermediate, "max_position_embeddings": positions, "mlp_bias": False, "num_attention_heads": heads,
                   "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "pad_token_id": None, "rms_norm_eps": 1e-5,
                   "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_scaling": None, "rope_theta": 10000.0,
                   "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True, "vocab_size": vocabulary}, out)
    rng, header, values = random.Random(5), {"__metadata__": {"format": "pt"}}, array.array("f")
    for name, shape in shapes(layers, vocabulary, hidden, heads, kv_heads, intermediate):
        begin = 4 * len(values)
        values.extend([1.0] * shape[0] if len(shape) == 1 else [rng.gauss(0, 0.02) for _ in range(shape[0] * shape[1])])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(values)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{directory}/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + values.tobytes())
