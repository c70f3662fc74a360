"""The tables of the jobs.

    jobs           the record; small, so that looking through many is cheap
    job_contents   what is sent, while it has not ended, and what came back
    job_events     its history
    sealing_key    the fingerprint of the key that seals

`seq` is the order of acceptance. The indexes: a key names one job; a tenant's newest; what is
overdue; what ended long ago; which ends are to be told.
"""

OPEN = "state IN ('queued', 'dispatched')"
"""Has not ended."""
BARE_PATH = "CASE WHEN instr(path, '?') THEN substr(path, 1, instr(path, '?') - 1) ELSE path END"
"""A path without its query."""

JOBS = (
    "CREATE TABLE jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
    " tenant TEXT NOT NULL, idempotency_key TEXT, uid TEXT NOT NULL UNIQUE, digest BLOB NOT NULL,"
    " pool TEXT NOT NULL, priority INTEGER NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,"
    " created_at REAL NOT NULL, expires_at REAL NOT NULL, state TEXT NOT NULL,"
    " changed_at REAL NOT NULL, attempt INTEGER NOT NULL, failures INTEGER NOT NULL,"
    " not_before REAL NOT NULL, status INTEGER, detail TEXT NOT NULL, seats INTEGER NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, max_tokens INTEGER NOT NULL, model TEXT NOT NULL,"
    " streamed INTEGER NOT NULL, body_bytes INTEGER NOT NULL, webhook TEXT NOT NULL,"
    " webhook_at REAL, webhook_tries INTEGER NOT NULL DEFAULT 0)",
    "CREATE UNIQUE INDEX jobs_key ON jobs (tenant, idempotency_key)"
    " WHERE idempotency_key IS NOT NULL",
    "CREATE INDEX jobs_tenant ON jobs (tenant, seq)",
    f"CREATE INDEX jobs_open ON jobs (expires_at) WHERE {OPEN}",
    f"CREATE INDEX jobs_ended ON jobs (changed_at) WHERE NOT {OPEN}",
    "CREATE INDEX jobs_webhook ON jobs (webhook_at) WHERE webhook_at IS NOT NULL",
    "CREATE TABLE job_contents (seq INTEGER PRIMARY KEY REFERENCES jobs (seq) ON DELETE CASCADE,"
    " authority TEXT, headers TEXT, sealed BLOB, body BLOB,"
    " answer_headers TEXT, answer_body BLOB)",
    "CREATE TABLE job_events (job INTEGER NOT NULL REFERENCES jobs (seq) ON DELETE CASCADE,"
    " state TEXT NOT NULL, at REAL NOT NULL, detail TEXT NOT NULL)",
    "CREATE INDEX job_events_job ON job_events (job)",
)

OWNERS = (
    # what stood for many tenants is nobody's name: see `classify.owner_name`
    "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE jobs ADD COLUMN answer_bytes INTEGER NOT NULL DEFAULT 0",
    "UPDATE jobs SET owner = tenant, answer_bytes = coalesce((SELECT length(answer_body) +"
    " length(answer_headers) FROM job_contents WHERE job_contents.seq = jobs.seq), 0)",
    f"UPDATE jobs SET path = {BARE_PATH} WHERE NOT {OPEN}",
    f"UPDATE jobs SET webhook = '' WHERE NOT {OPEN} AND webhook_at IS NULL",
    "DROP INDEX jobs_key",
    "CREATE UNIQUE INDEX jobs_key ON jobs (owner, idempotency_key)"
    " WHERE idempotency_key IS NOT NULL",
    "DROP INDEX jobs_tenant",
    "CREATE INDEX jobs_owner ON jobs (owner, seq)",
    "CREATE TABLE sealing_key (fingerprint TEXT NOT NULL)",
)
"""Jobs have an owner, answers are counted, queries are no longer kept in the open, and which key
seals is known."""
