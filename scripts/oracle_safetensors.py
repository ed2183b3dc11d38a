#!/usr/bin/env python3
"""What the reference implementation sees in a safetensors file, as JSON. Needs the package safetensors.

    python3 oracle_safetensors.py FILE > tests/fixtures/writer_sample.json
"""
import hashlib, json, struct, sys
import safetensors


def main(path):
    with open(path, "rb") as file: raw = file.read()
    tensors = {name: {"dtype": t["dtype"], "shape": list(t["shape"]), "sha256": hashlib.sha256(bytes(t["data"])).hexdigest()}
               for name, t in safetensors.deserialize(raw)}
    # deserialize() checks the whole file but does not hand out the metadata.
    size = struct.unpack("<Q", raw[:8])[0]
    metadata = json.loads(raw[8:8 + size]).get("__metadata__", {})
    print(json.dumps({"file_sha256": hashlib.sha256(raw).hexdigest(), "metadata": metadata, "tensors": tensors}, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
