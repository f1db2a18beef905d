"""What every suite of this folder shares: where Weir is, and how a check reports.

Each suite prints one JSON object a line: suite, check, whether it passed, and what it said if not.
"""

import json
import os
import traceback

BASE_URL = os.environ["WEIR_BASE_URL"]
API_KEY = os.environ["WEIR_API_KEY"]
MODEL = os.environ["WEIR_MODEL"]


def report(suite: str, check: str, passed: bool, detail: str = "") -> None:
    print(json.dumps({"suite": suite, "check": check, "passed": passed, "detail": detail}), flush=True)


def run(suite: str, checks: dict) -> None:
    """Runs named functions; what one raises is its failure."""
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # noqa: BLE001  (a client's failure is what is looked for)
            place = traceback.extract_tb(error.__traceback__)[-1]
            report(suite, name, False, f"{type(error).__name__}: {error} ({place.name}:{place.lineno})"[:600])
        else:
            report(suite, name, True)
