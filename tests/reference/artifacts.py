"""Finds the pinned model files and verifies them; fixtures made from anything else would prove nothing."""

import hashlib
from pathlib import Path

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def smollm2(model_dir: Path) -> Path:
    return _verified(model_dir / SMOLLM2_FILE, SMOLLM2_SHA256)


def gemma3(model_dir: Path) -> Path:
    return _verified(model_dir / GEMMA3_FILE, GEMMA3_SHA256)


def _verified(path: Path, sha256: str) -> Path:
    if not path.exists():
        raise SystemExit(f"{path} is not there: run `make models`")
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise SystemExit(f"{path}: sha256 {digest.hexdigest()}, expected {sha256}")
    return path
