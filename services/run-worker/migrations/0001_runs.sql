-- Threads, messages, requests, runs, attempts, executors, agents, the tool ledger and durable tasks.
-- Owner: run-worker. Other services read through the views at the end only.

CREATE FUNCTION utc_json(at timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
  RETURN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

CREATE FUNCTION latency_ms(earlier timestamptz, later timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN CASE WHEN earlier IS NULL OR later IS NULL THEN NULL
              ELSE greatest(0, round(extract(epoch FROM later - earlier) * 1000)::bigint) END;

CREATE TABLE executors (
  executor_id uuid PRIMARY KEY,
  control_id uuid NOT NULL,
  host text NOT NULL,
  pid integer NOT NULL,
  address text NOT NULL,
  version text NOT NULL,
  slots integer NOT NULL CHECK (slots > 0),
  started_at timestamptz NOT NULL DEFAULT now(),
  -- The lease of every run that this executor owns.
  lease_expires_at timestamptz NOT NULL,
  draining_at timestamptz,
  exited_at timestamptz,
  exit_reason text
);
CREATE INDEX executors_live ON executors (lease_expires_at) WHERE exited_at IS NULL;

CREATE TABLE agents (
  name text PRIMARY KEY,
  description text NOT NULL DEFAULT '',
  input_schema jsonb NOT NULL DEFAULT '{}',
  output_schema jsonb NOT NULL DEFAULT '{}',
  digest text NOT NULL,
  settings jsonb NOT NULL DEFAULT '{}',
  updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE threads (
  thread_id uuid PRIMARY KEY,
  uid text NOT NULL,
  agent text NOT NULL,
  title text NOT NULL DEFAULT '',
  metadata jsonb NOT NULL DEFAULT '{}',
  idempotency_key text,
  body_sha256 bytea,
  state text NOT NULL DEFAULT 'idle' CHECK (state IN ('idle', 'busy', 'paused', 'interrupted')),
  active_run_id uuid,
  latest_run_id uuid,
  runs_count bigint NOT NULL DEFAULT 0,
  sandbox_host text,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz,
  CHECK ((state = 'busy') = (active_run_id IS NOT NULL))
);
CREATE UNIQUE INDEX threads_idempotency ON threads (uid, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX threads_by_user ON threads (uid, updated_at DESC, thread_id DESC) WHERE deleted_at IS NULL;

CREATE TABLE requests (
  request_id uuid PRIMARY KEY,
  -- Order inside a thread: created_at, then this.
  seq bigint GENERATED ALWAYS AS IDENTITY,
  thread_id uuid NOT NULL REFERENCES threads ON DELETE CASCADE,
  uid text NOT NULL,
  agent text NOT NULL,
  run_id uuid NOT NULL UNIQUE,
  state text NOT NULL CHECK (state IN ('queued', 'dispatched', 'cancelled', 'rejected')),
  multitask_strategy text NOT NULL DEFAULT 'enqueue'
    CHECK (multitask_strategy IN ('enqueue', 'reject', 'interrupt', 'rollback')),
  idempotency_key text,
  body_sha256 bytea NOT NULL,
  input jsonb,
  command jsonb,
  config jsonb NOT NULL DEFAULT '{}',
  context jsonb,
  checkpoint jsonb,
  stream_modes text[] NOT NULL DEFAULT '{}',
  stream_subgraphs boolean NOT NULL DEFAULT false,
  durability text NOT NULL DEFAULT '' CHECK (durability IN ('', 'async', 'sync', 'exit')),
  on_disconnect text NOT NULL DEFAULT 'continue' CHECK (on_disconnect IN ('continue', 'cancel')),
  if_not_exists text NOT NULL DEFAULT 'reject' CHECK (if_not_exists IN ('reject', 'create')),
  metadata jsonb NOT NULL DEFAULT '{}',
  traceparent text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  dispatched_at timestamptz,
  finished_at timestamptz,
  CHECK ((state = 'dispatched') = (dispatched_at IS NOT NULL)),
  CHECK ((state IN ('cancelled', 'rejected')) = (finished_at IS NOT NULL))
);
CREATE UNIQUE INDEX requests_idempotency ON requests (uid, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX requests_queue ON requests (thread_id, created_at, seq) WHERE state = 'queued';
CREATE INDEX requests_queued_by_user ON requests (uid) WHERE state = 'queued';
CREATE INDEX requests_by_thread ON requests (thread_id, created_at DESC, seq DESC);

CREATE TABLE messages (
  thread_id uuid NOT NULL REFERENCES threads ON DELETE CASCADE,
  message_id text NOT NULL,
  seq bigint GENERATED ALWAYS AS IDENTITY,
  run_id uuid NOT NULL,
  request_id uuid NOT NULL REFERENCES requests ON DELETE CASCADE,
  role text NOT NULL CHECK (role IN ('user', 'assistant', 'tool', 'system')),
  content jsonb NOT NULL,
  reasoning text NOT NULL DEFAULT '',
  tool_calls jsonb NOT NULL DEFAULT '[]',
  tool_call_id text NOT NULL DEFAULT '',
  name text NOT NULL DEFAULT '',
  partial boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (thread_id, message_id),
  UNIQUE (run_id, message_id)
);
CREATE INDEX messages_in_order ON messages (thread_id, seq);

CREATE TABLE runs (
  run_id uuid PRIMARY KEY,
  request_id uuid NOT NULL UNIQUE REFERENCES requests ON DELETE CASCADE,
  thread_id uuid NOT NULL REFERENCES threads ON DELETE CASCADE,
  uid text NOT NULL,
  agent text NOT NULL,
  ordinal bigint NOT NULL,
  parent_run_id uuid REFERENCES runs ON DELETE CASCADE,
  root_run_id uuid NOT NULL,
  state text NOT NULL DEFAULT 'pending'
    CHECK (state IN ('pending', 'running', 'completed', 'failed', 'cancelled', 'interrupted')),
  -- The fencing number: only the newest attempt may write.
  attempt integer NOT NULL DEFAULT 0,
  lease_owner uuid REFERENCES executors,
  faults integer NOT NULL DEFAULT 0 CHECK (faults BETWEEN 0 AND 3),
  not_before timestamptz NOT NULL DEFAULT now(),
  cancel_requested_at timestamptz,
  runtime_touched_at timestamptz,
  runtime_cleanup_pending boolean NOT NULL DEFAULT false,
  runtime_cleanup_cleared_at timestamptz,
  cleanup_owner uuid,
  cleanup_expires_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz,
  prepared_at timestamptz,
  first_output_at timestamptz,
  finished_at timestamptz,
  error jsonb,
  output_message_id text,
  output_checkpoint_id text,
  interrupts jsonb NOT NULL DEFAULT '[]',
  usage jsonb NOT NULL DEFAULT '{}',
  result_event_id text,
  end_event_id text,
  manifest jsonb,
  manifest_sha256 text,
  manifest_recorded_at timestamptz,
  -- Never written. Executors and the saver may lock rows FOR SHARE, which needs UPDATE on one column.
  lock_token boolean,
  UNIQUE (thread_id, ordinal),
  FOREIGN KEY (run_id, output_message_id) REFERENCES messages (run_id, message_id) DEFERRABLE INITIALLY DEFERRED,
  CHECK ((state IN ('completed', 'failed', 'cancelled', 'interrupted')) = (finished_at IS NOT NULL)),
  CHECK ((finished_at IS NULL) = (end_event_id IS NULL) AND (end_event_id IS NULL) = (result_event_id IS NULL)),
  CHECK (state <> 'completed' OR output_message_id IS NOT NULL OR output_checkpoint_id IS NOT NULL),
  CHECK (state <> 'failed' OR error IS NOT NULL),
  CHECK ((state = 'running') = (lease_owner IS NOT NULL)),
  -- Durable cancel wins.
  CHECK (cancel_requested_at IS NULL OR state NOT IN ('completed', 'interrupted'))
);
CREATE UNIQUE INDEX runs_one_active_per_thread ON runs (thread_id)
  WHERE state IN ('pending', 'running') AND parent_run_id IS NULL;
CREATE INDEX runs_pending ON runs (created_at, run_id) WHERE state = 'pending';
CREATE INDEX runs_owned ON runs (lease_owner) WHERE state = 'running';
CREATE INDEX runs_fenced ON runs (thread_id) WHERE runtime_cleanup_pending;
CREATE INDEX runs_by_user ON runs (uid, created_at DESC, run_id DESC);
CREATE INDEX runs_by_root ON runs (root_run_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE attempts (
  run_id uuid NOT NULL REFERENCES runs ON DELETE CASCADE,
  attempt integer NOT NULL,
  executor_id uuid REFERENCES executors,
  fingerprint text,
  started_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  -- completed, failed, cancelled, interrupted, handed_back, crashed, lease_expired
  outcome text CHECK (outcome IN
    ('completed', 'failed', 'cancelled', 'interrupted', 'handed_back', 'crashed', 'lease_expired')),
  error jsonb,
  PRIMARY KEY (run_id, attempt),
  CHECK ((finished_at IS NULL) = (outcome IS NULL))
);

CREATE TABLE tool_calls (
  run_id uuid NOT NULL REFERENCES runs ON DELETE CASCADE,
  task_id text NOT NULL,
  tool_call_id text NOT NULL,
  name text NOT NULL,
  attempt integer NOT NULL,
  state text NOT NULL CHECK (state IN ('started', 'finished', 'unknown_outcome')),
  result jsonb,
  started_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  PRIMARY KEY (run_id, task_id, tool_call_id)
);

CREATE TABLE durable_tasks (
  task_id uuid PRIMARY KEY,
  kind text NOT NULL,
  payload jsonb NOT NULL,
  state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'claimed', 'done', 'failed')),
  tries integer NOT NULL DEFAULT 0,
  not_before timestamptz NOT NULL DEFAULT now(),
  claimed_by uuid,
  claim_expires_at timestamptz,
  error text,
  created_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz
);
CREATE INDEX durable_tasks_due ON durable_tasks (not_before) WHERE state = 'pending';

-- The one projection of a run's times: five facts and the five latencies derived from them.
CREATE FUNCTION run_timing_json(r runs) RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE
  RETURN jsonb_build_object(
    'created_at', utc_json(r.created_at),
    'started_at', utc_json(r.started_at),
    'prepared_at', utc_json(r.prepared_at),
    'first_output_at', utc_json(r.first_output_at),
    'finished_at', utc_json(r.finished_at),
    'dispatch_latency_ms', latency_ms(r.created_at, r.started_at),
    'preparation_latency_ms', latency_ms(r.started_at, r.prepared_at),
    'model_first_output_latency_ms', latency_ms(r.prepared_at, r.first_output_at),
    'first_output_latency_ms', latency_ms(r.created_at, r.first_output_at),
    'total_latency_ms', latency_ms(r.created_at, r.finished_at));

-- The data of a run's `result` event: whoever must tell the end tells all of it.
CREATE FUNCTION run_result_json(r runs) RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE
  RETURN jsonb_strip_nulls(jsonb_build_object('error', r.error)) || jsonb_build_object(
    'run_id', r.run_id, 'status', r.state, 'output_message_id', r.output_message_id,
    'interrupts', r.interrupts, 'usage', r.usage, 'timing', run_timing_json(r));

-- The shape of a message inside `snapshot` events.
CREATE FUNCTION message_json(m messages) RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE
  RETURN jsonb_build_object(
    'message_id', m.message_id, 'role', m.role, 'content', m.content, 'reasoning', m.reasoning,
    'tool_calls', m.tool_calls, 'tool_call_id', m.tool_call_id, 'name', m.name, 'partial', m.partial);

-- For event-relay: who may see a run, from intake on.
CREATE VIEW run_visibility AS
  SELECT q.run_id, q.request_id, q.thread_id, q.uid
  FROM requests q JOIN threads t USING (thread_id) WHERE t.deleted_at IS NULL;

-- For event-relay: the end of a run, or where it waits. A request that ended before it became a run ends under 1-1, 1-2.
CREATE VIEW run_outcome AS
  SELECT q.run_id, q.request_id, q.thread_id, q.uid,
    t.deleted_at IS NOT NULL AS deleted,
    CASE WHEN r.run_id IS NOT NULL THEN r.state WHEN q.state = 'queued' THEN 'queued' ELSE 'cancelled' END AS state,
    coalesce(r.attempt, 0) AS attempt,
    coalesce(r.finished_at, q.finished_at) IS NOT NULL AS terminal,
    coalesce(r.runtime_cleanup_pending, false) AS runtime_cleanup_pending,
    extract(epoch FROM now() - greatest(coalesce(r.finished_at, q.finished_at), r.runtime_cleanup_cleared_at))::float8
      AS settled_seconds,
    CASE WHEN r.run_id IS NOT NULL THEN r.result_event_id WHEN q.finished_at IS NOT NULL THEN '1-1' END AS result_event_id,
    CASE WHEN r.run_id IS NOT NULL THEN r.end_event_id WHEN q.finished_at IS NOT NULL THEN '1-2' END AS end_event_id,
    CASE WHEN r.finished_at IS NOT NULL THEN run_result_json(r)
         WHEN q.finished_at IS NOT NULL THEN jsonb_build_object(
           'run_id', q.run_id, 'status', 'cancelled', 'output_message_id', NULL, 'interrupts', '[]'::jsonb,
           'usage', '{}'::jsonb, 'timing', jsonb_build_object(
             'created_at', NULL, 'started_at', NULL, 'prepared_at', NULL, 'first_output_at', NULL, 'finished_at', NULL,
             'dispatch_latency_ms', NULL, 'preparation_latency_ms', NULL, 'model_first_output_latency_ms', NULL,
             'first_output_latency_ms', NULL, 'total_latency_ms', NULL)) END AS result,
    -- Waiting: a queued request has a position in its thread; a pending run waits for a fence, a back-off or a slot.
    -- One that is merely on its way to its claim (its first second; executors poll each second) waits for nothing.
    CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN
      (SELECT count(*) FROM requests o WHERE o.thread_id = q.thread_id AND o.state = 'queued'
        AND (o.created_at, o.seq) <= (q.created_at, q.seq)) ELSE 0 END AS position,
    CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN
           CASE t.state WHEN 'paused' THEN 'paused' WHEN 'interrupted' THEN 'interrupted' ELSE 'behind_run' END
         WHEN r.state = 'pending' THEN
           CASE WHEN EXISTS (SELECT FROM runs f WHERE f.thread_id = r.thread_id AND f.runtime_cleanup_pending) THEN 'fence'
                WHEN r.not_before > now() THEN 'back_off'
                WHEN greatest(r.created_at, r.not_before) <= now() - interval '1 second' THEN 'no_slot' END
    END AS wait_reason,
    CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN q.created_at
         WHEN r.state <> 'pending' THEN NULL
         WHEN EXISTS (SELECT FROM runs f WHERE f.thread_id = r.thread_id AND f.runtime_cleanup_pending) THEN r.created_at
         WHEN r.not_before > now() THEN coalesce(
           (SELECT max(a.finished_at) FROM attempts a WHERE a.run_id = r.run_id), r.created_at)
         WHEN greatest(r.created_at, r.not_before) <= now() - interval '1 second'
           THEN greatest(r.created_at, r.not_before) END AS wait_since,
    CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN t.active_run_id END AS wait_run_id
  FROM requests q JOIN threads t USING (thread_id) LEFT JOIN runs r ON r.run_id = q.run_id;

-- For event-relay: what a run has written to its transcript.
CREATE VIEW run_messages AS
  SELECT m.run_id, m.seq, message_json(m) AS message FROM messages m WHERE m.role <> 'user';

-- For sandbox-provisioner: may this attempt own a runtime?
CREATE VIEW run_lease_state AS
  SELECT r.run_id, r.thread_id, r.root_run_id, r.uid, r.state, r.attempt, r.lease_owner, e.lease_expires_at,
    r.cancel_requested_at, r.runtime_touched_at, r.runtime_cleanup_pending, r.cleanup_owner, r.cleanup_expires_at,
    (SELECT root.thread_id FROM runs root WHERE root.run_id = r.root_run_id) AS root_thread_id
  FROM runs r LEFT JOIN executors e ON e.executor_id = r.lease_owner;

GRANT SELECT, INSERT, UPDATE, DELETE ON executors, agents, threads, requests, messages, runs, attempts, tool_calls, durable_tasks
  TO {{role:control}};
GRANT SELECT, INSERT, UPDATE ON executors, agents, attempts, tool_calls, messages TO {{role:executor}};
GRANT SELECT, UPDATE ON threads, requests TO {{role:executor}};
GRANT SELECT, INSERT, UPDATE ON runs TO {{role:executor}};
GRANT SELECT, INSERT ON durable_tasks TO {{role:executor}};
GRANT SELECT, UPDATE (lock_token) ON runs TO {{role:graph}};
GRANT SELECT ON run_visibility, run_outcome, run_messages TO {{role:relay}};
GRANT SELECT ON run_lease_state TO {{role:provisioner}};
