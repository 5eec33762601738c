"""NEFFs of the stand-ins: the documented head, then a tar with what the stand-in libnrt needs, and a label in both."""

import io
import json
import struct
import tarfile

LABEL = "STAND-IN nki_sim, no compiler"
CODES = {"float32": 10, "float16": 7, "bfloat16": 6, "int32": 8, "uint32": 9, "int8": 2, "uint8": 3}
HEAD = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468s")


def pack(function, inputs, outputs, constants, target, lnc, major=2):
    """Bytes of a NEFF; ``inputs`` and ``outputs`` are (name, shape, dtype)."""
    lines = [f"target {target}"]
    for usage, tensors in (("in", inputs), ("out", outputs)):
        for name, shape, dtype in tensors:
            lines.append(" ".join(map(str, (usage, name, CODES[dtype], len(shape), *shape))))
    kernel = {
        "function": function, "constants": constants, "target": target, "lnc": lnc,
        "inputs": [[n, list(s), d] for n, s, d in inputs], "outputs": [[n, list(s), d] for n, s, d in outputs],
    }  # fmt: skip
    files = {
        "standin/tensors.txt": "\n".join(lines) + "\n",
        "standin/kernel.json": json.dumps(kernel),
        "sg00/def.json": json.dumps({"stand_in": LABEL}),
    }
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    data = body.getvalue()
    head = HEAD.pack(2, 1024, len(data), major, 0, LABEL.encode(), 1, b"", b"", b"STAND-IN", 1, b"", 0, lnc, b"")
    return head + data
