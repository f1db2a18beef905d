-- Reconciliation: charges from executions alone, their corrections, and what operators decide on records kept aside.

-- A request whose gateway is gone is charged from its execution records ('execution'); a close that comes after that
-- is a 'correction': rows whose tokens and amounts are differences.
ALTER TABLE ledger_charges
    DROP CONSTRAINT ledger_charges_reason_check,
    ADD CONSTRAINT ledger_charges_reason_check
        CHECK (reason IN ('request', 'idempotent_repeat', 'execution', 'correction'));
-- What is charged has a price: a correction that none is set for yet is refused, kept aside, and replayed later.
ALTER TABLE ledger_charges ADD CONSTRAINT ledger_charges_priced
    CHECK (NOT chargeable OR prompt_tokens = 0 AND generated_tokens = 0 OR price_position IS NOT NULL);
-- How many requests the row counts under its labels: 1 with entry 0; with a correction the difference, which is 0, or
-- -1 and 1 where the request moves from one set of labels to another. Sums to 1 over the rows of a request.
ALTER TABLE ledger_charges ADD COLUMN requests smallint NOT NULL DEFAULT 1;

-- Executions are looked through once in the order in which they were stored.
CREATE INDEX ledger_executions_stored ON ledger_executions (stored_at);

-- Up to when executions have been looked through for requests without a charge.
CREATE TABLE ledger_reconciled (
    singleton     boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    reconciled_to timestamptz NOT NULL
);
INSERT INTO ledger_reconciled (reconciled_to) VALUES ('2000-01-01T00:00:00Z');

-- Requests that were found executed and not charged, or executed again after they were charged from executions. A row
-- leaves when its request has been charged, by whomever.
CREATE TABLE ledger_orphans (
    request_id text PRIMARY KEY,
    found_at   timestamptz NOT NULL
);

-- Since when, and until when, each way in has been heard without a pause: 'rpc', and each partition of a topic. The
-- grace of an orphan runs only while all of them are heard.
CREATE TABLE ledger_hearing (
    source      text PRIMARY KEY,
    heard_since timestamptz NOT NULL,
    heard_at    timestamptz NOT NULL CHECK (heard_at >= heard_since)
);

-- What was decided on a dead letter, once: the letter itself stays as it is. A replayed record's event is claimed in
-- ledger_sequences by the sender 'replay' under the dead letter's number.
CREATE TABLE ledger_dead_letter_decisions (
    dead_letter bigint PRIMARY KEY REFERENCES ledger_dead_letters,
    decision    text NOT NULL CHECK (decision IN ('replayed', 'written_off')),
    decided_by  text NOT NULL CHECK (decided_by <> ''),
    note        text NOT NULL,
    decided_at  timestamptz NOT NULL
);
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger_dead_letter_decisions FOR EACH ROW EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_dead_letter_decisions FOR EACH STATEMENT EXECUTE FUNCTION ledger_rows_never_change();
