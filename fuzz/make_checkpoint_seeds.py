#!/usr/bin/env python3
"""Writes small seed corpora for the fuzz targets of checkpoints: OUT/safetensors_fuzz, OUT/index_fuzz,
OUT/quantisation_fuzz. Python's standard library.

    python3 fuzz/make_checkpoint_seeds.py OUT
"""
import json, pathlib, struct, sys

LAYER = "model.language_model.layers.3."


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = [
    ({}, 0),
    ({"__metadata__": {"format": "pt"}, "t": tensor("U8", [4], 0, 4)}, 4),
    ({"a": tensor("F32", [], 0, 4), "b": tensor("BF16", [2, 3], 4, 16), "c": tensor("F8_E4M3", [0], 16, 16)}, 16),
    ({LAYER + "self_attn.conv1d.weight": tensor("BF16", [6, 1, 4], 0, 48)}, 48),
    ({LAYER + "mlp.experts.gate_up_proj": tensor("U8", [2, 4, 3], 0, 24),
      LAYER + "mlp.experts.down_proj": tensor("U8", [2, 3, 2], 24, 36)}, 36),
    ({"language_model.model.layers.3.attn_hc.fn": tensor("F64", [1], 0, 8), "vision_tower.x": tensor("I64", [1], 8, 16)}, 16),
]
INDEXES = [
    {"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}},
    {"weight_map": {"a": "../x", "b": "/y", "c": ""}},
    {"other": [1, [2, {"weight_map": {}}]], "weight_map": {}},
    {"lm_head.weight": ["BF16", [8, 4]], "x": ["F32", []], "y": ["F8_E4M3", [2, 3]]},
]


def main(out):
    def write(target, seeds):
        (out / target).mkdir(parents=True, exist_ok=True)
        for i, seed in enumerate(seeds): (out / target / f"seed-{i:02d}").write_bytes(seed)

    safetensors = []
    for header, data_bytes in HEADERS:
        text = json.dumps(header, separators=(",", ":")).encode()
        safetensors += [bytes([0, data_bytes]) + text,
                        b"\1" + struct.pack("<Q", len(text)) + text + bytes(data_bytes)]
    write("safetensors_fuzz", safetensors)
    write("index_fuzz", [json.dumps(index).encode() for index in INDEXES])

    configs = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "configs"
    quantisation = []
    for form in sorted(configs.iterdir()):
        config = json.loads((form / "config.json").read_text()).get("quantization_config")
        if config is None: continue
        for key in ("ignore", "modules_to_not_convert"):
            if key in config: config[key] = config[key][:4]
        if "quantized_layers" in config: config["quantized_layers"] = dict(list(config["quantized_layers"].items())[:2])
        beside = form / "hf_quant_config.json"
        quantisation.append(json.dumps({"quantization_config": config}).encode() +
                            (b"\0" + json.dumps(json.loads(beside.read_text())).encode()[:400] if beside.exists() else b""))
    four_bits = {"num_bits": 4, "type": "float", "group_size": 16}
    block = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    quantisation.append(json.dumps({"quantization_config": {
        "quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["re:.*mlp\\.gate$", "lm_head", "*x*y"],
        "config_groups": {"a": {"weights": four_bits, "input_activations": four_bits}, "b": {"weights": block}}}}).encode())
    quantisation.append(b'{}\0{"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","exclude_modules":["a*"]}}\0abc')
    write("quantisation_fuzz", quantisation)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
