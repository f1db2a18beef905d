-- The control plane: the event log, its read models, and who may read what.
-- Read models hold nothing that the log does not; the server rebuilds them from it.

-- The role that tenants' reads run under: neither owner nor superuser, so row-level security holds for it.
-- Roles belong to the whole server; another database's migration may have made it.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'weir_tenant') THEN
        CREATE ROLE weir_tenant NOLOGIN NOBYPASSRLS;
    END IF;
    -- Since Postgres 16 a role's maker is its member without the right to act as it, which has a name of its own.
    IF NOT pg_has_role(current_user, 'weir_tenant',
        CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN
        EXECUTE format('GRANT weir_tenant TO %I', current_user);
    END IF;
END $$;

GRANT USAGE ON SCHEMA public TO weir_tenant;

-- One installation: its epoch grows when the database was restored.
CREATE TABLE installation (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch      bigint NOT NULL,
    created_at timestamptz NOT NULL
);

-- The log. `position` is gapless and in commit order: every writer first takes the advisory lock.
CREATE TABLE events (
    position    bigint PRIMARY KEY CHECK (position > 0),
    stream      text NOT NULL,
    version     bigint NOT NULL CHECK (version > 0),
    event_type  text NOT NULL,
    data        jsonb NOT NULL,
    actor       text NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT events_stream_version UNIQUE (stream, version)
);
CREATE INDEX events_recorded_at ON events (recorded_at);

CREATE FUNCTION events_are_never_edited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'stored events are never edited';
END $$;
CREATE TRIGGER events_are_never_edited BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION events_are_never_edited();
CREATE TRIGGER events_are_never_truncated BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION events_are_never_edited();

-- Answers to writes that carried an Idempotency-Key; never a token. Kept for a day.
CREATE TABLE idempotency_keys (
    principal   text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    status      smallint NOT NULL,
    etag        text,
    location    text,
    body        jsonb,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);

-- Read models. Constraint names are part of the contract with the server, which turns them into messages.

CREATE TABLE tenants (
    tenant_id  text PRIMARY KEY,
    name       text NOT NULL CONSTRAINT tenants_name UNIQUE,
    state      text NOT NULL,
    weight     bigint NOT NULL,
    limits     jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    version    bigint NOT NULL
);

CREATE TABLE signing_keys (
    signing_key_id text PRIMARY KEY,
    public_key     text NOT NULL,
    state          text NOT NULL,
    created_at     timestamptz NOT NULL,
    version        bigint NOT NULL
);

CREATE TABLE keys (
    key_id      text PRIMARY KEY,
    tenant_id   text NOT NULL REFERENCES tenants,
    name        text NOT NULL,
    scopes      jsonb NOT NULL,
    limits      jsonb NOT NULL,
    signing_key text NOT NULL CONSTRAINT keys_signing_key REFERENCES signing_keys,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    revoked_at  timestamptz
);
CREATE INDEX keys_tenant ON keys (tenant_id, key_id);

CREATE TABLE platform_keys (
    key_id      text PRIMARY KEY,
    name        text NOT NULL,
    signing_key text NOT NULL CONSTRAINT platform_keys_signing_key REFERENCES signing_keys,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    revoked_at  timestamptz
);

CREATE TABLE models (
    model_id   text PRIMARY KEY,
    name       text NOT NULL CONSTRAINT models_name UNIQUE,
    created_at timestamptz NOT NULL,
    version    bigint NOT NULL
);

CREATE TABLE versions (
    version_id       text PRIMARY KEY,
    model_id         text NOT NULL CONSTRAINT versions_model REFERENCES models,
    weights_uri      text NOT NULL,
    digest           text NOT NULL,
    dtype            text NOT NULL,
    parameter_count  bigint NOT NULL,
    context_limit    bigint NOT NULL,
    tokenizer_digest text NOT NULL,
    created_at       timestamptz NOT NULL,
    version          bigint NOT NULL
);

CREATE TABLE aliases (
    alias_id   text PRIMARY KEY,
    name       text NOT NULL CONSTRAINT aliases_name UNIQUE,
    created_at timestamptz NOT NULL,
    version    bigint NOT NULL
);

CREATE TABLE alias_targets (
    alias_id   text NOT NULL REFERENCES aliases ON DELETE CASCADE,
    ordinal    bigint NOT NULL,
    version_id text NOT NULL CONSTRAINT alias_targets_version REFERENCES versions,
    weight     bigint NOT NULL,
    PRIMARY KEY (alias_id, ordinal)
);

CREATE TABLE deployments (
    deployment_id text PRIMARY KEY,
    version_id    text NOT NULL CONSTRAINT deployments_version REFERENCES versions,
    pool          text NOT NULL,
    replicas      bigint NOT NULL,
    ttft_ms       bigint NOT NULL,
    itl_ms        bigint NOT NULL,
    created_at    timestamptz NOT NULL,
    version       bigint NOT NULL,
    CONSTRAINT deployments_pool_version UNIQUE (pool, version_id)
);

CREATE TABLE price_books (
    price_book_id text PRIMARY KEY,
    name          text NOT NULL CONSTRAINT price_books_name UNIQUE,
    currency      text NOT NULL,
    created_at    timestamptz NOT NULL,
    version       bigint NOT NULL
);

-- A version is priced in one book only, so that a charge has one price in one currency.
CREATE TABLE priced_versions (
    version_id text PRIMARY KEY CONSTRAINT priced_versions_version REFERENCES versions,
    price_book text NOT NULL REFERENCES price_books,
    UNIQUE (version_id, price_book)
);

-- Append-only; the ledger reads it. In force at a moment: the greatest effective_from not after it, then the
-- greatest position.
CREATE TABLE price_versions (
    position                  bigint PRIMARY KEY,
    price_book                text NOT NULL,
    version_id                text NOT NULL,
    effective_from            timestamptz NOT NULL,
    currency                  text NOT NULL,
    prompt_per_million        numeric NOT NULL,
    cached_prompt_per_million numeric NOT NULL,
    generated_per_million     numeric NOT NULL,
    CONSTRAINT price_versions_one_book FOREIGN KEY (version_id, price_book)
        REFERENCES priced_versions (version_id, price_book)
);
CREATE INDEX price_versions_effective ON price_versions (version_id, effective_from DESC, position DESC);

CREATE TABLE nodes (
    node_id             text PRIMARY KEY,
    kind                text NOT NULL,
    instance            text NOT NULL,
    address             text NOT NULL,
    pool                text NOT NULL,
    registered_at       timestamptz NOT NULL,
    registered_position bigint NOT NULL,
    retired_at          timestamptz,
    version             bigint NOT NULL
);

-- What a tenant may read: itself, its keys, its own stream of events.
ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE events ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON tenants FOR SELECT TO weir_tenant
    USING (tenant_id = current_setting('weir.tenant_id', true));
CREATE POLICY own_rows ON keys FOR SELECT TO weir_tenant
    USING (tenant_id = current_setting('weir.tenant_id', true));
CREATE POLICY own_rows ON events FOR SELECT TO weir_tenant
    USING (stream = current_setting('weir.tenant_id', true));
GRANT SELECT ON tenants, keys, events TO weir_tenant;
