-- What was counted of calls, by minutes (`span` 60) and hours (3600), from `at` on, by each process.
-- `errors` counts by type, `latencies` by bin. The empty server has what is not counted one by one.
-- The counter `call_metrics` is the number of the first hour that is not made of its minutes yet.

CREATE TABLE call_metrics (
    server_id TEXT NOT NULL,
    tool_name TEXT NOT NULL,
    span BIGINT NOT NULL,
    at BIGINT NOT NULL,
    writer TEXT NOT NULL,
    retries BIGINT NOT NULL,
    fallbacks BIGINT NOT NULL,
    total_ms DOUBLE PRECISION NOT NULL,
    errors TEXT NOT NULL,
    latencies TEXT NOT NULL,
    mac BYTEA NOT NULL,
    PRIMARY KEY (server_id, tool_name, span, at, writer)
)
WITHOUT ROWID -- only sqlite
;
CREATE INDEX call_metrics_by_time ON call_metrics (span, at);
