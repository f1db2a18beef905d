-- What a deployment does with requests that would miss its target for the first token; empty: the default policies. And
-- whether a tenant agreed to be served by a smaller model then.
ALTER TABLE deployments ADD COLUMN overload jsonb NOT NULL DEFAULT '{}';
ALTER TABLE tenants ADD COLUMN may_overflow boolean NOT NULL DEFAULT false;
