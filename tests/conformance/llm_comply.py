"""`llm-comply`, an independent compliance tester of the chat completions API."""

import json
import subprocess
import sys

import checks

# All but chat-tool-calling: it bounds no length, and the smallest of chat models may write a call's argument for minutes.
# The other suites call tools.
TESTS = (
    "chat-basic-response", "chat-system-prompt", "chat-multi-turn", "chat-streaming-response", "chat-streaming-usage",
    "chat-image-input", "chat-reasoning-summary", "chat-error-handling",
)

# Its requests are greedy: drawn at the default temperature, an answer of so small a model now and then runs on to the
# context's end, which is no fault of the API.
GREEDY = """
import sys
from llm_comply.cli import main
from llm_comply.tests.openai_chat import OPENAI_CHAT_TESTS
for test in OPENAI_CHAT_TESTS:
    test.build_request = lambda config, build=test.build_request: {**build(config), "temperature": 0}
sys.exit(main())
"""

tester = [sys.executable, "-c", GREEDY]
arguments = ["run", "--format", "openai-chat", "--json", "--timeout", "240", "--filter", ",".join(TESTS)]
where = ["--base-url", checks.BASE_URL, "--api-key", checks.API_KEY, "--model", checks.MODEL]
finished = subprocess.run([*tester, *arguments, *where], capture_output=True, text=True, check=False)
results = json.loads(finished.stdout)
results = results["results"] if isinstance(results, dict) else results
for result in results:
    passed = result.get("status") in ("passed", "pass", "ok")
    detail = "" if passed else json.dumps(result.get("errors") or result.get("error") or result)[:600]
    checks.report("llm-comply", result.get("id") or result["test_id"], passed, detail)
