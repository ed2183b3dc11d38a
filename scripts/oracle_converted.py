#!/usr/bin/env python3
"""Whether a converted checkpoint is what Python readers expect: safetensors opens every shard, the index is exact, and every
module that the metadata calls quantised has its tensors under ModelOpt's names, which ModelOpt's own class dequantises.
Needs safetensors, torch, nvidia-modelopt; exit code 77 without them.

    python3 oracle_converted.py read DIR SOURCE          # prints what it found
    python3 oracle_converted.py check --program VERBATIM --tiny TINY_BF16 --prompts CALIBRATION.json --vectors FILE --work DIR [--write]
"""
import argparse, fnmatch, hashlib, json, pathlib, subprocess, sys
try:
    import torch
    from safetensors import safe_open
    import safetensors
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

RECIPES = ("nvfp4-experts-w4a4", "nvfp4-experts-and-dense-mlp")
NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3"}


def is_quantised(module, quantisation):
    """As ModelOpt's readers decide it: a map of layers by container, or all linear modules but the excluded."""
    if quantisation["quant_algo"] == "MIXED_PRECISION":
        return any(module == name or module.startswith(name + ".") for name in quantisation["quantized_layers"])
    return not any(fnmatch.fnmatchcase(module, pattern) for pattern in quantisation["exclude_modules"])


def read(directory, source):
    directory, source = pathlib.Path(directory), pathlib.Path(source)
    weight_map = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {}
    for shard in sorted(set(weight_map.values())):
        with safe_open(directory / shard, framework="pt") as file:
            for name in file.keys():
                assert weight_map[name] == shard, name
                tensors[name] = file.get_tensor(name)
    assert tensors.keys() == weight_map.keys()
    quantisation = json.loads((directory / "hf_quant_config.json").read_text())["quantization"]
    assert json.loads((directory / "config.json").read_text())["quantization_config"]["quant_algo"] == quantisation["quant_algo"]

    before = {}
    for shard in source.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as file: before |= {name: file.get_tensor(name) for name in file.keys()}
    quantised, worst = 0, 0.0
    for name, weight in before.items():
        module = name.removesuffix(".weight")
        linear = name.endswith("_proj.weight") and weight.dim() == 2
        if not (linear and is_quantised(module, quantisation)):
            assert torch.equal(tensors[name], weight) and tensors[name].dtype == weight.dtype, name
            continue
        parts = [tensors[f"{module}.{part}"] for part in ("weight", "weight_scale", "weight_scale_2", "input_scale")]
        rows, columns = weight.shape
        assert [(p.dtype, tuple(p.shape)) for p in parts] == [(torch.uint8, (rows, columns // 2)), (torch.float8_e4m3fn, (rows, columns // 16)),
                                                              (torch.float32, ()), (torch.float32, ())], name
        values = NVFP4QTensor(weight.shape, torch.float32, parts[0]).dequantize(dtype=torch.float32, scale=parts[1], double_scale=parts[2], block_sizes={-1: 16})
        worst = max(worst, ((values - weight.float()).norm() / weight.float().norm()).item())
        quantised += 1
    assert len(tensors) == len(before) + 3 * quantised and worst < 0.12, (len(tensors), quantised, worst)
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        digest.update(f"{name} {NAMES[tensor.dtype]} [{', '.join(map(str, tensor.shape))}] {hashlib.sha256(data).hexdigest()}\n".encode())
    return {"tensors": len(tensors), "quantised": quantised, "sha256": digest.hexdigest()}


def check(args):
    work = pathlib.Path(args.work); work.mkdir(parents=True, exist_ok=True)
    prompts = work / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in json.loads(pathlib.Path(args.prompts).read_text())["prompts"]))
    found = {"safetensors": safetensors.__version__}
    for recipe in RECIPES:
        out = work / recipe
        if out.exists(): subprocess.run(["rm", "-r", out], check=True)
        subprocess.run([args.program, "convert", args.tiny, out, "--recipe", recipe, "--calibrate", prompts], check=True)
        found[recipe] = read(out, args.tiny)
    print(json.dumps(found, indent=1))
    vectors = pathlib.Path(args.vectors)
    if args.write: vectors.write_text(json.dumps(found, indent=1) + "\n")
    expected = json.loads(vectors.read_text())
    return 0 if all(found[recipe] == expected[recipe] for recipe in RECIPES) else 1


if __name__ == "__main__":
    if sys.argv[1] == "read":
        print(json.dumps(read(sys.argv[2], sys.argv[3]), indent=1))
    else:
        parser = argparse.ArgumentParser(); parser.add_argument("mode")
        for option in ("program", "tiny", "prompts", "vectors", "work"): parser.add_argument("--" + option, required=True)
        parser.add_argument("--write", action="store_true")
        sys.exit(check(parser.parse_args()))
