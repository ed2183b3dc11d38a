#!/usr/bin/env python3
"""What nvidia-modelopt makes of weight matrices, as test vectors. Needs nvidia-modelopt (0.46 or 0.47), torch, safetensors.

    python3 oracle_quantize.py vectors TINY_BF16 OUT       # tests/fixtures/quantize/{modelopt.safetensors,modelopt_tiny.json}
    python3 oracle_quantize.py time [ROWS COLUMNS COUNT]   # its CPU quantise, in weights a second
"""
import hashlib, json, pathlib, re, sys, time
import torch
from modelopt.torch.quantization.qtensor import NVFP4QTensor
import modelopt
from safetensors.torch import load_file, save_file

MODEL_MD = [6, -6, .25, .75, 1.25, 1.75, 2.5, 3.5, 5, -5, -.25, -0., .265625, -.7421875, 4.90625, 5.09375]


def quantise(weight):
    """codes, block scales and weight_scale_2 as ModelOpt stores them."""
    quantised, scale, scale_2 = NVFP4QTensor.quantize(weight.clone(), 16)
    return quantised._quantized_data, scale, scale_2.float()


def cases():
    g = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(shape, generator=g)
    yield "model_md", torch.cat([torch.tensor(MODEL_MD), torch.zeros(16), (torch.arange(16) - 8) / 512, torch.full((16,), 1e-7)])[None].bfloat16()
    yield "normal", (normal(32, 256) / 16).bfloat16()
    zeros = normal(32, 256); zeros[::3] = 0; zeros[:, 32:64] = 0; zeros[5, ::2] = -0.0
    yield "zeros", zeros.bfloat16()
    # 30 octaves between blocks: the smallest scales clamp, and quotients fall below every code.
    yield "spread", (normal(32, 256) * torch.exp2(-30 * torch.rand(32, 16, generator=g)).repeat_interleave(16, 1)).bfloat16()
    yield "tiny", (normal(16, 256) * 1e-30).bfloat16()
    yield "huge", (normal(16, 256) * 5e37).bfloat16()
    subnormal = (normal(16, 256) * 1e-3).bfloat16(); subnormal[:, ::7] = 1e-40; subnormal[3] = -3e-39
    yield "subnormal", subnormal
    # Products of the codec's own steps and block scales: quotients that sit on thresholds.
    steps = torch.tensor([0, .25, .5, .75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6])
    ties = steps[torch.randint(0, 15, (32, 256), generator=g)] * torch.where(torch.rand(32, 256, generator=g) < .5, -1., 1.)
    ties[:, ::16] = 6
    ties *= torch.exp2(torch.randint(-6, 1, (32, 16), generator=g).float()).repeat_interleave(16, 1)
    ties[0, 0] = 2688 / 448
    yield "ties", ties.bfloat16()
    near = ties * (1 + torch.randint(-1, 2, ties.shape, generator=g) * 2.0 ** -8)
    yield "near_ties", near.bfloat16()
    yield "heavy", (normal(32, 256) / normal(32, 256)).bfloat16()
    yield "float32", normal(16, 256)
    yield "float32_ties", ties[:16].clone()


def vectors(tiny, out):
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in cases():
        codes, scale, scale_2 = quantise(weight)
        tensors |= {f"{name}.input": weight.contiguous(), f"{name}.weight": codes.contiguous(),
                    f"{name}.weight_scale": scale.contiguous(), f"{name}.weight_scale_2": scale_2.reshape(()).contiguous()}
    save_file(tensors, out / "modelopt.safetensors", metadata={"producer": "nvidia-modelopt " + modelopt.__version__})
    hashes = {}
    for name, weight in sorted(load_file(tiny / "model.safetensors").items()):
        if not re.search(r"layers\.\d+\.mlp\.(experts\.\d+\.)?(gate|up|down)_proj\.weight$", name): continue
        digest = hashlib.sha256()
        codes, scale, scale_2 = quantise(weight)
        for part in (codes, scale.view(torch.uint8), scale_2.reshape(1)): digest.update(part.contiguous().numpy().tobytes())
        hashes[name.removesuffix(".weight")] = digest.hexdigest()
    (out / "modelopt_tiny.json").write_text(json.dumps({"producer": "nvidia-modelopt " + modelopt.__version__, "sha256": hashes}, indent=0) + "\n")
    print(len(tensors) // 4, "cases,", len(hashes), "matrices of", tiny.name)


def measure(rows=2048, columns=4096, count=4):
    weights = [torch.randn(rows, columns).bfloat16() for _ in range(count)]
    quantise(weights[0])
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        for weight in weights: quantise(weight)
        seconds.append(time.perf_counter() - start)
    best = rows * columns * count / min(seconds)
    print(json.dumps({"producer": "nvidia-modelopt " + modelopt.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
                      "rows": rows, "columns": columns, "weights_per_s": best}))


if __name__ == "__main__":
    if sys.argv[1] == "vectors": vectors(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else: measure(*map(int, sys.argv[2:]))
