"""Makes every reference fixture anew. See README.md beside this file.

    python tests/reference/make_fixtures.py [--models .cache/models] [tokenizers] [logits] [chat]
"""

import argparse
from pathlib import Path

import artifacts
import output

PARTS = ("tokenizers", "logits", "chat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=output.HERE.parents[1] / ".cache" / "models")
    parser.add_argument("parts", nargs="*", choices=(*PARTS, []), help="default: all")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    smollm2 = artifacts.smollm2(arguments.models)
    if "tokenizers" in parts:
        import tokenizer_fixtures

        tokenizer_fixtures.write_smollm2(smollm2)
        tokenizer_fixtures.write_gemma3(artifacts.gemma3(arguments.models))
    if "logits" in parts or "chat" in parts:
        import model_fixtures  # torch is imported only where it is needed

        model_fixtures.write(smollm2, parts)


if __name__ == "__main__":
    main()
