"""A plain PyTorch pre-training loop: fp32 master weights, a model in the compute type, gradients of micro-batches summed in fp32."""
import copy

import torch


def pretrain(start, batches, rates, *, compute=torch.float32, micro, clip, decay, betas=(0.9, 0.95), eps=1e-8):
    """Trains a copy of `start`, a causal model of transformers in fp32, one step for each tensor [rows, length] of `batches` at the learning
    rate rates[step]. Returns [(loss, gradient norm before clipping)], the master weights, and the model in the compute type."""
    masters = copy.deepcopy(start)
    model = copy.deepcopy(start).to(compute)
    trained = list(masters.parameters())
    optimizer = torch.optim.AdamW([dict(params=[p for p in trained if p.dim() >= 2], weight_decay=decay),
                                   dict(params=[p for p in trained if p.dim() < 2], weight_decay=0.0)], lr=0.0, betas=betas, eps=eps)
    history = []
    for batch, rate in zip(batches, rates, strict=True):
        for master in trained:
            master.grad = torch.zeros_like(master)
        total = 0.0
        for rows in batch.split(micro):
            logits = model(input_ids=rows).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
            loss = loss / (batch.shape[0] * (batch.shape[1] - 1))
            model.zero_grad()
            loss.backward()
            total += loss.item()
            for master, parameter in zip(trained, model.parameters()):
                master.grad += parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(trained, clip).item()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(trained, model.parameters()):
                parameter.copy_(master)
        history.append((total, norm))
    return history, masters, model
