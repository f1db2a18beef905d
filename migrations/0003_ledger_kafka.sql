-- The ledger as a consumer of Kafka: how far each partition has been taken, and of which life of its topic.
-- Postgres is the truth about positions; the offsets in Kafka are a mark that says whose positions they are.

-- Grows whenever the broker may have lost records that it had acknowledged: a topic made anew, a partition cut
-- short, records deleted before they were read. Senders that see it grow send again what is above their watermark.
CREATE TABLE ledger_generation (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    generation bigint NOT NULL CHECK (generation > 0)
);
INSERT INTO ledger_generation (generation) VALUES (1);

-- Every record of the partition below `next_offset` has been taken. `incarnation`, a UUID, names the life of the topic that
-- the offset belongs to; the consumer group's committed offset in Kafka carries the same id as its metadata, and is
-- gone with the topic.
CREATE TABLE ledger_offsets (
    topic       text NOT NULL,
    partition   integer NOT NULL,
    incarnation text NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    moved_at    timestamptz NOT NULL,
    PRIMARY KEY (topic, partition)
);

-- Dead letters whose copy has yet to be sent to the topic of dead letters; a row leaves when the broker has it.
CREATE TABLE ledger_dead_letter_outbox (
    dead_letter bigint PRIMARY KEY REFERENCES ledger_dead_letters
);
INSERT INTO ledger_dead_letter_outbox SELECT dead_letter FROM ledger_dead_letters;
CREATE FUNCTION ledger_dead_letter_posted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger_dead_letter_outbox (dead_letter) VALUES (NEW.dead_letter);
    RETURN NULL;
END $$;
CREATE TRIGGER posted AFTER INSERT ON ledger_dead_letters
    FOR EACH ROW EXECUTE FUNCTION ledger_dead_letter_posted();

-- How far the event log has been relayed to its topic: one row, and only where there is a broker.
CREATE TABLE event_relay (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    -- Every event up to and including this position has been acknowledged by the broker.
    position   bigint NOT NULL CHECK (position >= 0),
    -- Where it lies in the topic, -1 for nowhere: a topic that ends before it has been made anew, and is filled anew.
    topic_offset bigint NOT NULL CHECK (topic_offset >= -1),
    relayed_at timestamptz NOT NULL
);
