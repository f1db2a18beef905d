"""An independent consumer of Weir's topics: reads all of them, checks every record against the published JSON Schema,
and adds up what each tenant used.

    python kafka_consumer.py --brokers 127.0.0.1:9092 --schemas schemas/json [--setting security.protocol=ssl …]

It reads from the start of every partition to where the partition ended when it began, and prints one JSON object:

    tenants     for each tenant: requests charged and their prompt, cached prompt and generated tokens
    executions  for each tenant: attempts that workers ran, and the tokens that they generated
    rejections  for each tenant and reason: requests refused
    control     the highest position of the event log, and whether its positions are gapless
    topics      messages read, and those that were repeats of others
    invalid     what does not satisfy its schema or has no place in its sender's sequence: empty in a sound installation

It exits with 1 when `invalid` is not empty. It knows nothing of Weir but docs/kafka.md and the schemas.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from jsonschema import Draft202012Validator, FormatChecker

RECORD_TOPICS = ["weir.usage.v1", "weir.executions.v1", "weir.rejections.v1"]
CONTROL_TOPIC = "weir.control.v1"
# Copies of what the ledger could not use, and sequence numbers whose record is gone: never CloudEvents of ours.
OTHER_TOPICS = ["weir.damaged.v1", "weir.dead-letters.v1"]
# Requests that end so are charged what was generated; an error is charged once a token was delivered.
CHARGEABLE = {"stop", "length", "tool_calls", "cancelled", "deadline", "replica_lost"}
KEY_LIFETIME = timedelta(hours=24)
TIMEOUT_S = 30


class Schemas:
    """One validator for each event type: the file's name is the CloudEvents `type`."""

    def __init__(self, folder: Path):
        self.validators = {}
        for path in folder.glob("*.json"):
            schema = json.loads(path.read_text())
            self.validators[path.stem] = Draft202012Validator(schema, format_checker=FormatChecker())

    def problem(self, event: object) -> str | None:
        validator = self.validators.get(event.get("type")) if isinstance(event, dict) else None
        if validator is None:
            return "no schema for this type"
        error = next(validator.iter_errors(event), None)
        return None if error is None else f"{error.json_path}: {error.message}"[:300]


class Totals:
    """What a consumer makes of the records: each is counted once, however often it was delivered."""

    def __init__(self):
        self.seen = set()
        self.charged_keys = defaultdict(list)
        self.tenants = defaultdict(Counter)
        self.executions = defaultdict(Counter)
        self.rejections = defaultdict(Counter)
        self.positions = set()

    def add(self, topic: str, event: dict) -> bool:
        """False for a repeat: delivery is at least once, and `source` and `id` name an event for good."""
        identity = (topic, event["source"], event["id"])
        if identity in self.seen:
            return False
        self.seen.add(identity)
        data = event["data"]
        if topic == "weir.usage.v1":
            self.charge(data)
        elif topic == "weir.executions.v1":
            self.executions[data["tenant"]].update(attempts=1, generated_tokens=data["generated_tokens"])
        elif topic == "weir.rejections.v1":
            self.rejections[data["tenant"]][data["reason"]] += data["count"]
        elif topic == CONTROL_TOPIC:
            self.positions.add(data["position"])
        return True

    def charge(self, data: dict):
        reason, generated = data["finish_reason"], data["generated_tokens"]
        if reason not in CHARGEABLE and not (reason == "error" and generated > 0):
            return
        # A repeated Idempotency-Key is one request to its tenant for a day, however often it came.
        if data.get("idempotency_key_hash") is not None:
            key = (data["tenant"], data["idempotency_key_hash"])
            received = datetime.fromisoformat(data["received_at"])
            if any(abs(received - earlier) < KEY_LIFETIME for earlier in self.charged_keys[key]):
                return
            self.charged_keys[key].append(received)
        self.tenants[data["tenant"]].update(
            requests=1,
            prompt_tokens=data["prompt_tokens"],
            cached_prompt_tokens=data["cached_prompt_tokens"],
            generated_tokens=generated,
        )

    def control(self) -> dict:
        last = max(self.positions, default=0)
        return {"last_position": last, "gapless": len(self.positions) == last}


def place(message) -> tuple[str, int]:
    """A record's place: its sender, and its number in that sender's gapless sequence."""
    headers = dict(message.headers() or [])
    if headers.get("weir-sender") is None or headers.get("weir-sequence") is None:
        raise ValueError("no weir-sender or no weir-sequence")
    sender, sequence = headers["weir-sender"].decode(), int(headers["weir-sequence"])
    if sequence < 1:
        raise ValueError("sequence numbers begin with 1")
    return sender, sequence


def problem_of(message, event: object, schemas: Schemas) -> str | None:
    problem = schemas.problem(event)
    if problem is None and message.topic() in RECORD_TOPICS:
        try:
            sender, sequence = place(message)
        except ValueError as error:
            return f"headers: {error}"
        if sender != event["source"] or sequence != event["data"]["sequence"]:
            return "headers and payload name different places"
        if (message.key() or b"") != (event["data"].get("tenant") or "").encode():
            return "the key is not the tenant"
    return problem


def partitions_with_ends(consumer: Consumer) -> dict[tuple[str, int], int]:
    """Every partition that holds anything, with its end as of now."""
    ends = {}
    topics = consumer.list_topics(timeout=TIMEOUT_S).topics
    for topic in RECORD_TOPICS + [CONTROL_TOPIC] + OTHER_TOPICS:
        for partition in topics[topic].partitions if topic in topics else ():
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
            if high > low:
                ends[topic, partition] = high
    return ends


def read_all(consumer: Consumer):
    """Every message up to the ends of the partitions as they are now."""
    ends = partitions_with_ends(consumer)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in ends])
    while ends:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"nothing came for {TIMEOUT_S} s; not read to the end: {sorted(ends)}")
        if message.error():
            raise KafkaException(message.error())
        yield message
        where = (message.topic(), message.partition())
        if message.offset() + 1 >= ends.get(where, 0):
            ends.pop(where, None)


def summarise(consumer: Consumer, schemas: Schemas) -> dict:
    totals, invalid = Totals(), []
    topics = defaultdict(Counter)
    for message in read_all(consumer):
        topic = message.topic()
        topics[topic]["messages"] += 1
        if topic in OTHER_TOPICS:
            continue
        where = f"{topic}[{message.partition()}]@{message.offset()}"
        try:
            event = json.loads(message.value() or b"")
        except (ValueError, RecursionError) as error:
            invalid.append(f"{where}: {error}")
            continue
        problem = problem_of(message, event, schemas)
        if problem is not None:
            invalid.append(f"{where}: {problem}")
        elif not totals.add(topic, event):
            topics[topic]["repeats"] += 1
    return {
        "tenants": totals.tenants,
        "executions": totals.executions,
        "rejections": totals.rejections,
        "control": totals.control(),
        "topics": topics,
        "invalid": invalid,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--schemas", required=True, type=Path)
    parser.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE", help="of librdkafka, e.g. for TLS")
    arguments = parser.parse_args()
    settings = {
        "bootstrap.servers": arguments.brokers,
        # Required, but nothing is committed: positions are this process's own.
        "group.id": "weir-audit",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    settings.update(setting.split("=", 1) for setting in arguments.setting)
    consumer = Consumer(settings)
    try:
        summary = summarise(consumer, Schemas(arguments.schemas))
    finally:
        consumer.close()
    print(json.dumps(summary, sort_keys=True))
    return 1 if summary["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
