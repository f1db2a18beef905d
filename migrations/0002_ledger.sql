-- The ledger: what was charged, what proves it, and how far each sender has been heard.
-- Facts are inserted and never changed; corrections are new rows. Only roll-ups, watermarks and the queue of
-- unpriced records change, and each is derived from the facts.

CREATE FUNCTION ledger_rows_never_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed; a correction is a new row', TG_TABLE_NAME;
END $$;

-- How far each sender has been heard: every sequence up to and including the watermark is in ledger_sequences.
CREATE TABLE ledger_senders (
    sender    text PRIMARY KEY,
    watermark bigint NOT NULL CHECK (watermark >= 0),
    heard_at  timestamptz NOT NULL
);

-- Every sequence number that was accepted, whatever its record was: a resend is recognised here.
CREATE TABLE ledger_sequences (
    sender   text NOT NULL,
    sequence bigint NOT NULL CHECK (sequence > 0),
    -- The source event's id; of a charge the request id. Null where the record could not be read or was a repeat.
    event_id text CONSTRAINT ledger_sequences_event UNIQUE,
    topic    text NOT NULL,
    PRIMARY KEY (sender, sequence)
);

-- One row a request (entry 0), and one for each later correction (entry 1, 2, …) whose tokens and amounts are
-- differences. Amounts are exact: tokens × price per million × 0.000001, never rounded.
CREATE TABLE ledger_charges (
    request_id            text NOT NULL,
    entry                 smallint NOT NULL DEFAULT 0,
    reason                text NOT NULL DEFAULT 'request' CHECK (reason IN ('request', 'idempotent_repeat', 'correction')),
    sender                text NOT NULL,
    sequence              bigint NOT NULL,
    tenant_id             text NOT NULL,
    key_id                text NOT NULL,
    project               text NOT NULL,
    client_request_id     text,
    idempotency_key_hash  text,
    requested_model       text NOT NULL,
    version_id            text NOT NULL,
    tier                  text NOT NULL,
    finish_reason         text NOT NULL,
    prompt_tokens         bigint NOT NULL,
    cached_prompt_tokens  bigint NOT NULL,
    generated_tokens      bigint NOT NULL,
    reasoning_tokens      bigint NOT NULL,
    received_at           timestamptz NOT NULL,
    finished_at           timestamptz NOT NULL,
    recovered             boolean NOT NULL,
    -- Whether its tokens are charged by how it ended; if not, the amounts are zero and no price was looked up.
    chargeable            boolean NOT NULL,
    -- The price in force at received_at for the version; null where nothing was to be priced.
    price_position        bigint,
    currency              text NOT NULL,
    prompt_per_million        numeric,
    cached_prompt_per_million numeric,
    generated_per_million     numeric,
    prompt_amount         numeric NOT NULL,
    cached_prompt_amount  numeric NOT NULL,
    generated_amount      numeric NOT NULL,
    amount                numeric NOT NULL,
    charged_at            timestamptz NOT NULL,
    -- The record as it was received.
    record                json NOT NULL,
    PRIMARY KEY (request_id, entry),
    CHECK (cached_prompt_tokens <= prompt_tokens OR entry > 0),
    CHECK (amount = prompt_amount + cached_prompt_amount + generated_amount),
    CHECK (chargeable OR amount = 0),
    CHECK (currency <> '' OR amount = 0)
);
CREATE INDEX ledger_charges_tenant ON ledger_charges (tenant_id, received_at);
CREATE INDEX ledger_charges_received ON ledger_charges (received_at);
CREATE INDEX ledger_charges_idempotency ON ledger_charges (tenant_id, idempotency_key_hash)
    WHERE idempotency_key_hash IS NOT NULL;

-- Records that no price covers yet: counted as usage, not charged; a row leaves when its charge is written.
CREATE TABLE ledger_unpriced (
    request_id  text PRIMARY KEY,
    sender      text NOT NULL,
    sequence    bigint NOT NULL,
    tenant_id   text NOT NULL,
    version_id  text NOT NULL,
    received_at timestamptz NOT NULL,
    stored_at   timestamptz NOT NULL,
    record      json NOT NULL
);
CREATE INDEX ledger_unpriced_version ON ledger_unpriced (version_id, received_at);

-- The workers' independent count, one row for each attempt that a worker's run made.
CREATE TABLE ledger_executions (
    request_id       text NOT NULL,
    attempt          bigint NOT NULL,
    sender           text NOT NULL,
    sequence         bigint NOT NULL,
    tenant_id        text NOT NULL,
    version_id       text NOT NULL,
    worker_id        text NOT NULL,
    instance_id      text NOT NULL,
    prompt_tokens    bigint NOT NULL,
    cached_tokens    bigint NOT NULL,
    computed_tokens  bigint NOT NULL,
    generated_tokens bigint NOT NULL,
    device_us        bigint NOT NULL,
    outcome          text NOT NULL,
    started_at       timestamptz NOT NULL,
    finished_at      timestamptz NOT NULL,
    recovered        boolean NOT NULL,
    stored_at        timestamptz NOT NULL,
    record           json NOT NULL,
    PRIMARY KEY (sender, sequence)
);
CREATE INDEX ledger_executions_request ON ledger_executions (request_id, attempt);
CREATE INDEX ledger_executions_started ON ledger_executions (started_at);

-- Refused requests, counted by the gateways.
CREATE TABLE ledger_rejections (
    sender          text NOT NULL,
    sequence        bigint NOT NULL,
    minute          timestamptz NOT NULL,
    tenant_id       text NOT NULL,
    requested_model text NOT NULL,
    reason          text NOT NULL,
    count           bigint NOT NULL,
    stored_at       timestamptz NOT NULL,
    PRIMARY KEY (sender, sequence)
);

-- What passed the watermark without becoming a row above: kept with its bytes until an operator decides.
CREATE TABLE ledger_dead_letters (
    dead_letter bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sender      text NOT NULL,
    sequence    bigint NOT NULL,
    topic       text NOT NULL,
    key         bytea NOT NULL,
    payload     bytea NOT NULL,
    reason      text NOT NULL,
    detail      text NOT NULL,
    stored_at   timestamptz NOT NULL
);
CREATE INDEX ledger_dead_letters_sender ON ledger_dead_letters (sender, sequence);

CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger_sequences FOR EACH ROW EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_sequences FOR EACH STATEMENT EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger_charges FOR EACH ROW EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_charges FOR EACH STATEMENT EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger_executions FOR EACH ROW EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_executions FOR EACH STATEMENT EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger_rejections FOR EACH ROW EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_rejections FOR EACH STATEMENT EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON ledger_dead_letters FOR EACH ROW EXECUTE FUNCTION ledger_rows_never_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON ledger_dead_letters FOR EACH STATEMENT EXECUTE FUNCTION ledger_rows_never_change();

-- Usage and cost per minute of received_at, which is also the moment that decides the price. `currency` is '' for
-- what carries no amount: not chargeable, nothing to price, or not priced yet; when a price comes, the amount is
-- added to the row of its currency with no requests or tokens, so that sums over all rows are right at any time:
-- usage sums every row, costs sum by currency.
CREATE TABLE ledger_usage_minutes (
    tenant_id           text NOT NULL,
    bucket_start        timestamptz NOT NULL,
    key_id              text NOT NULL,
    project             text NOT NULL,
    requested_model     text NOT NULL,
    version_id          text NOT NULL,
    tier                text NOT NULL,
    currency            text NOT NULL,
    requests            bigint NOT NULL,
    input_tokens        bigint NOT NULL,
    input_cached_tokens bigint NOT NULL,
    output_tokens       bigint NOT NULL,
    amount              numeric NOT NULL,
    PRIMARY KEY (tenant_id, bucket_start, key_id, project, requested_model, version_id, tier, currency)
);
CREATE INDEX ledger_usage_minutes_bucket ON ledger_usage_minutes (bucket_start);

-- Goodput per minute: of all that were asked for, what met both targets.
CREATE TABLE ledger_goodput_minutes (
    tenant_id       text NOT NULL,
    bucket_start    timestamptz NOT NULL,
    requested_model text NOT NULL,
    -- '' for rejections, which are counted before a class is known.
    tier            text NOT NULL,
    finished        bigint NOT NULL,
    rejected        bigint NOT NULL,
    ttft_met        bigint NOT NULL,
    itl_met         bigint NOT NULL,
    both_met        bigint NOT NULL,
    output_tokens   bigint NOT NULL,
    output_tokens_both_met bigint NOT NULL,
    PRIMARY KEY (tenant_id, bucket_start, requested_model, tier)
);

-- What a tenant may read: its own charges and roll-ups.
ALTER TABLE ledger_charges ENABLE ROW LEVEL SECURITY;
ALTER TABLE ledger_usage_minutes ENABLE ROW LEVEL SECURITY;
ALTER TABLE ledger_goodput_minutes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON ledger_charges FOR SELECT TO weir_tenant
    USING (tenant_id = current_setting('weir.tenant_id', true));
CREATE POLICY own_rows ON ledger_usage_minutes FOR SELECT TO weir_tenant
    USING (tenant_id = current_setting('weir.tenant_id', true));
CREATE POLICY own_rows ON ledger_goodput_minutes FOR SELECT TO weir_tenant
    USING (tenant_id = current_setting('weir.tenant_id', true));
GRANT SELECT ON ledger_charges, ledger_usage_minutes, ledger_goodput_minutes TO weir_tenant;
