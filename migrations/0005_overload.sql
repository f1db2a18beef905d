-- What a deployment does with requests that would miss its target for the first token. Empty: the default policies.
ALTER TABLE deployments ADD COLUMN overload jsonb NOT NULL DEFAULT '{}';
