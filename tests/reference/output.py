"""Where fixtures go and what each records about its making."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import artifacts

HERE = Path(__file__).resolve().parent
SHARED = HERE / "fixtures"
ENGINE = HERE.parents[1] / "data-plane" / "engine" / "tests" / "fixtures"
_SHA256 = {artifacts.SMOLLM2_FILE: artifacts.SMOLLM2_SHA256, artifacts.GEMMA3_FILE: artifacts.GEMMA3_SHA256}
_PACKAGES = ["gguf", "numpy", "sentencepiece", "tokenizers", "torch", "transformers"]


def provenance(model: Path) -> dict:
    return {
        "made_by": "tests/reference/make_fixtures.py",
        "model": {"file": model.name, "sha256": _SHA256[model.name]},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def write_json(name: str, model: Path, body: dict, folder: Path = SHARED) -> None:
    """One line a case, so that a changed case is one changed line."""
    folder.mkdir(parents=True, exist_ok=True)
    document = provenance(model) | body
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f'{json.dumps(key)}: [\n  {rows}\n ]')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    path = folder / name
    path.write_text("{\n " + ",\n ".join(lines) + "\n}\n")
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
