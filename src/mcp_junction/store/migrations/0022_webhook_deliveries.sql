-- Events that a webhook is told of, so that a restart loses none. Rows carry a MAC: what is posted is
-- signed with the operator's secret, and a row that somebody else wrote must not be.

CREATE TABLE webhook_deliveries (
    seq BIGINT PRIMARY KEY,
    type TEXT NOT NULL,
    subject TEXT,
    body TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    claimed_until DOUBLE PRECISION NOT NULL,
    why TEXT,
    mac BYTEA NOT NULL
);
CREATE INDEX webhook_deliveries_by_state ON webhook_deliveries (state, claimed_until);
