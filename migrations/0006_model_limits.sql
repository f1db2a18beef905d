-- Limits of a tenant and of a key on single models, by the name that clients call them by: {"name": {limits}}.
ALTER TABLE tenants ADD COLUMN model_limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE keys ADD COLUMN model_limits jsonb NOT NULL DEFAULT '{}';
