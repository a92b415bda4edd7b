-- API keys. Owner: api-gateway. A key is shown once and stored as its sha256 only.

CREATE TABLE api_keys (
  key_id text PRIMARY KEY,
  uid text NOT NULL,
  key_sha256 bytea NOT NULL UNIQUE,
  scopes text[] NOT NULL,
  label text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  revoked_at timestamptz
);
CREATE INDEX api_keys_by_user ON api_keys (uid, created_at DESC);

GRANT SELECT, INSERT, UPDATE ON api_keys TO {{role:gateway}};
