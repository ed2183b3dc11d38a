#!/usr/bin/env python3
"""Largest activations that enter gate, up and down projections, by expert, in Hugging Face transformers in float32.
Needs transformers >= 5.17 (glm5_next), torch.

    python3 oracle_calibration.py TINY_BF16 > tests/fixtures/quantize/calibration.json
"""
import json, re, sys
from collections import defaultdict
import torch, torch.nn.functional as F
import transformers
from transformers import Glm5NextForConditionalGeneration


def main(path):
    model = Glm5NextForConditionalGeneration.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(8, 490, (n,), generator=generator).tolist() for n in (60, 1, 17, 130)]
    largest, tokens = defaultdict(float), defaultdict(int)
    names = {module: name for name, module in model.named_modules()}

    def note(key, x): largest[key] = max(largest[key], x.abs().max().item())

    # The experts' forward in the open, one expert after the other.
    def experts_forward(self, hidden, index, weights):
        out = torch.zeros_like(hidden)
        for e in range(self.num_experts):
            token, slot = (index == e).nonzero(as_tuple=True)
            if token.numel() == 0: continue
            name = names[self]
            tokens[(name, e)] += token.numel()
            x = hidden[token]; note((name, "w13", e), x)
            gate, up = F.linear(x, self.gate_up_proj[e]).chunk(2, -1)
            h = F.silu(gate.clamp(max=self.swiglu_limit)) * up.clamp(-self.swiglu_limit, self.swiglu_limit)
            note((name, "w2", e), h)
            out.index_add_(0, token, F.linear(h, self.down_proj[e]) * weights[token, slot, None])
        return out

    for name, module in model.named_modules():
        if not re.search(r"language_model\.layers\.\d+\.mlp\.", name): continue
        if name.endswith(".experts"):
            plain, experts = type(module).forward, type(module)
        match = re.fullmatch(r"(.*\.mlp(?:\.shared_experts)?)\.(gate_proj|down_proj)", name)
        if match:
            key = (match[1], "w13" if match[2] == "gate_proj" else "w2", 0)
            module.register_forward_pre_hook(lambda _, args, key=key: note(key, args[0]))
    with torch.no_grad():
        ids = torch.tensor([prompts[0]])
        before = model(input_ids=ids).logits
        largest.clear()  # the hooks' share of that run
        experts.forward = experts_forward
        after = model(input_ids=ids).logits
        assert (before - after).abs().max() < 1e-3 * before.abs().max(), (before - after).abs().max()
        largest.clear(); tokens.clear()
        for prompt in prompts: model(input_ids=torch.tensor([prompt]))

    count = model.config.text_config.n_routed_experts
    sites = {}
    for name, site, _ in sorted(largest): sites.setdefault(f"{name} {site}", None)
    for key in sites:
        name, site = key.split(" ")
        sites[key] = [largest.get((name, site, e), 0.0) for e in range(count if name.endswith(".experts") else 1)]
    routed = {name: [tokens.get((name, e), 0) for e in range(count)] for name in sorted({n for n, _ in tokens})}
    lines = lambda items: ",\n".join("  " + item for item in items)
    pairs = lambda table: lines(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in table.items())
    print(f"""{{
 "transformers": "{transformers.__version__}",
 "torch": "{torch.__version__}",
 "prompts": [
{lines(json.dumps(prompt) for prompt in prompts)}
 ],
 "largest": {{
{pairs(sites)}
 }},
 "routed": {{
{pairs(routed)}
 }}
}}""")


if __name__ == "__main__":
    main(sys.argv[1])
