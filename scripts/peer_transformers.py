#!/usr/bin/env python3
"""A slice of the released model's layers through transformers (eager PyTorch, BF16), as the naive peer, and the same slice
through `verbatim bench` in the same run. Needs transformers >= 5.17 (models/glm5_next), torch and a CUDA device.

    python3 scripts/peer_transformers.py VERBATIM [--layers 8] [--experts 64] [--prompt 2048] [--tokens 16] [--repeats 5]

Prints a decode step (head and choice included) behind a prompt, the prompt itself (head aside), both programs' medians and
slowest, their ratios, and cuBLAS's bf16 8192^3 as PyTorch calls it. Weights are random, routing is near uniform in both."""
import argparse, json, statistics, subprocess, time
import torch


def text_config(layers, experts, **others):
    """The released text model's config with fewer layers and experts; three dense layers lead, every fourth is sparse."""
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
    return Glm5NextTextConfig(**{
        "num_hidden_layers": layers, "n_routed_experts": experts, "index_kpool": 4, "pad_token_id": 0,
        "mlp_layer_types": ["dense"] * min(3, layers) + ["sparse"] * max(0, layers - 3), **others})


def times(work, repeats, device):
    def finish():
        if device == "cuda":
            torch.cuda.synchronize()
    work()
    finish()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        finish()
        seconds.append(time.perf_counter() - start)
    return seconds


def product_flops_per_s(side, device):
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side ** 3 / statistics.median(times(lambda: a @ b, 10, device))


@torch.no_grad()
def measure_transformers(config, prompt, tokens, repeats, device):
    """Seconds of prompts and of decode steps, one of each a repeat (the mean of `tokens` steps)."""
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Glm5NextTextModel(config).eval()
        head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        ids = torch.randint(1, config.vocab_size, (1, prompt))
    torch.set_default_dtype(torch.float32)
    state = {}

    def run_prompt():
        state["out"] = model(ids, use_cache=True)

    def run_steps():
        cache, hidden = state["out"].past_key_values, state["out"].last_hidden_state[:, -1:]
        for _ in range(tokens):
            out = model(head(hidden)[:, -1].argmax(-1, keepdim=True), past_key_values=cache, use_cache=True)
            hidden = out.last_hidden_state

    prompts = times(run_prompt, repeats, device)
    steps = [each / tokens for each in times(run_steps, repeats, device)]
    return prompts, steps


def measure_verbatim(program, layers, experts, prompt, tokens, repeats):
    context = -(-prompt // 64) * 64
    command = [program, "bench", "--synthetic", "released", "--layers", layers, "--experts", experts, "--form", "bf16",
               "--backend", "cuda", "--sequences", 1, "--context", context, "--tokens", tokens, "--repeats", repeats,
               "--prompt-rows", prompt, "--json"]
    return json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verbatim")
    for name, value in (("layers", 8), ("experts", 64), ("prompt", 2048), ("tokens", 16), ("repeats", 5)):
        parser.add_argument("--" + name, type=int, default=value)
    options = parser.parse_args()
    import transformers
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}; "
          f"bf16 8192^3 {product_flops_per_s(8192, 'cuda') * 1e-12:.1f} TFLOP/s")
    prompts, steps = measure_transformers(text_config(options.layers, options.experts), options.prompt, options.tokens,
                                          options.repeats, "cuda")
    torch.cuda.empty_cache()
    own = measure_verbatim(options.verbatim, options.layers, options.experts, options.prompt, options.tokens,
                           options.repeats)
    row, prompt = own["rows"][0], own["prompts"][0]
    print(f"{options.layers} layers at the released widths, {options.experts} experts, BF16, one sequence")
    print(f"{'ms, median (slowest)':<34} {'transformers':>20} {'verbatim':>20} {'ratio':>7}")
    for name, theirs, ours, slowest in (
            (f"decode step behind {options.prompt} tokens", steps, row["step_us"] * 1e-6, row["slowest_step_us"] * 1e-6),
            (f"prompt of {options.prompt} tokens", prompts, options.prompt / prompt["tokens_per_s"],
             options.prompt / prompt["slowest_tokens_per_s"])):
        middle = statistics.median(theirs)
        print(f"{name:<34} {f'{middle * 1e3:.2f} ({max(theirs) * 1e3:.2f})':>20} "
              f"{f'{ours * 1e3:.2f} ({slowest * 1e3:.2f})':>20} {middle / ours:>6.1f}x")


if __name__ == "__main__":
    main()
