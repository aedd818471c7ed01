"""Names and shapes of Google's BERT in TensorFlow checkpoints, for several tests."""
import numpy as np


def bert_arrays(config, rng):
    """Names and shapes of Google's BERT."""
    d, f = config["hidden_size"], config["intermediate_size"]
    shapes = {"bert/embeddings/word_embeddings": (config["vocab_size"], d), "bert/embeddings/position_embeddings": (config["max_position_embeddings"], d),
              "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], d)}

    def dense(name, rows, columns):
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = (rows, columns), (columns,)

    def norm(name):
        shapes[f"{name}/gamma"] = shapes[f"{name}/beta"] = (d,)

    norm("bert/embeddings/LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        prefix = f"bert/encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            dense(f"{prefix}/attention/self/{part}", d, d)
        dense(f"{prefix}/attention/output/dense", d, d)
        norm(f"{prefix}/attention/output/LayerNorm")
        dense(f"{prefix}/intermediate/dense", d, f)
        dense(f"{prefix}/output/dense", f, d)
        norm(f"{prefix}/output/LayerNorm")
    dense("bert/pooler/dense", d, d)
    dense("cls/predictions/transform/dense", d, d)
    norm("cls/predictions/transform/LayerNorm")
    shapes["cls/predictions/output_bias"] = (config["vocab_size"],)
    shapes["cls/seq_relationship/output_weights"], shapes["cls/seq_relationship/output_bias"] = (2, d), (2,)
    arrays = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in list(arrays):
        for slot in ("adam_m", "adam_v"):
            arrays[f"{name}/{slot}"] = rng.normal(0, 1, arrays[name].shape).astype(np.float32)
    arrays["global_step"] = np.int64(28252)
    return arrays


def hugging_face_name(name):
    text = name.replace("/layer_", "/layer/").replace("gamma", "weight").replace("beta", "bias").replace("kernel", "weight")
    text = {"cls/predictions/output_bias": "cls/predictions/bias", "cls/seq_relationship/output_weights": "cls/seq_relationship/weight",
            "cls/seq_relationship/output_bias": "cls/seq_relationship/bias"}.get(name, text)
    if text.endswith("_embeddings"):
        text += "/weight"
    return text.replace("/", ".")
