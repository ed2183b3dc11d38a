#!/usr/bin/env python3
"""Writes the released NVFP4 checkpoint as sparse files: all names, dtypes, shapes and the index, no data on disk.

    python3 scripts/make_sparse_release.py OUT [--form nvfp4] [--shards 33]

OUT then opens like the real one (every tensor reads as zeros); it takes some 40 MB of disk and claims 204 GB.
"""
import argparse, gzip, json, math, pathlib, shutil, struct

SIZE = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--form", default="nvfp4")
    parser.add_argument("--shards", type=int, default=33)
    args = parser.parse_args()
    fixtures = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
    tensors = json.loads(gzip.decompress((fixtures / "headers" / f"{args.form}.json.gz").read_bytes()))
    sizes = {name: SIZE[dtype] * math.prod(shape) for name, (dtype, shape) in tensors.items()}
    total = sum(sizes.values())

    args.out.mkdir(parents=True, exist_ok=True)
    for file in (fixtures / "configs" / args.form).iterdir(): shutil.copyfile(file, args.out / file.name)
    shards, done = [{} for _ in range(args.shards)], 0
    for name in tensors:                                   # shards of equal bytes, in the order of the inventory
        shards[min(done * args.shards // total, args.shards - 1)][name] = tensors[name]
        done += sizes[name]
    weight_map = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{args.shards:05d}.safetensors"
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for tensor, (dtype, shape) in shard.items():
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + sizes[tensor]]}
            offset += sizes[tensor]
            weight_map[tensor] = name
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(args.out / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (args.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    print(f"{len(tensors)} tensors, {total} bytes in {args.shards} shards")


if __name__ == "__main__":
    main()
