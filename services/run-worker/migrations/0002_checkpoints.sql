-- LangGraph checkpoints: the official table layout (langgraph-checkpoint-postgres 3.x) plus seq, run_id and attempt.
-- Owner: run-worker. `seq` is what "latest" means: the database's order, not a host's clock.

CREATE TABLE checkpoints (
  thread_id text NOT NULL,
  checkpoint_ns text NOT NULL DEFAULT '',
  checkpoint_id text NOT NULL,
  parent_checkpoint_id text,
  type text,
  checkpoint jsonb NOT NULL,
  metadata jsonb NOT NULL DEFAULT '{}',
  seq bigint GENERATED ALWAYS AS IDENTITY,
  run_id uuid,
  attempt integer,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);
CREATE INDEX checkpoints_latest ON checkpoints (thread_id, checkpoint_ns, seq DESC);
CREATE INDEX checkpoints_by_run ON checkpoints (run_id);

CREATE TABLE checkpoint_blobs (
  thread_id text NOT NULL,
  checkpoint_ns text NOT NULL DEFAULT '',
  channel text NOT NULL,
  version text NOT NULL,
  type text NOT NULL,
  blob bytea,
  PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
);

CREATE TABLE checkpoint_writes (
  thread_id text NOT NULL,
  checkpoint_ns text NOT NULL DEFAULT '',
  checkpoint_id text NOT NULL,
  task_id text NOT NULL,
  idx integer NOT NULL,
  channel text NOT NULL,
  type text,
  blob bytea NOT NULL,
  task_path text NOT NULL DEFAULT '',
  PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON checkpoints, checkpoint_blobs, checkpoint_writes TO {{role:graph}};
GRANT SELECT ON checkpoints, checkpoint_blobs, checkpoint_writes TO {{role:graph_read}};
GRANT SELECT, DELETE ON checkpoints, checkpoint_blobs, checkpoint_writes TO {{role:control}};
