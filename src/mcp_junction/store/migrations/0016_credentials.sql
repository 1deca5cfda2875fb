-- Credentials for servers: one a server, or one an agent and server. `sealed` holds the tokens;
-- it opens only with the row's own id, server, subject, url, issuer and version.
-- One process at a time renews it: `lease_owner`, until `lease_until` by the database's clock.
CREATE TABLE credentials (
    id TEXT PRIMARY KEY,
    server_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    server_url TEXT NOT NULL,
    issuer TEXT NOT NULL,
    client_id TEXT NOT NULL,
    resource TEXT NOT NULL,
    scopes TEXT NOT NULL,
    state TEXT NOT NULL,
    expires_at DOUBLE PRECISION,
    version BIGINT NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    sealed BYTEA,
    lease_owner TEXT,
    lease_until DOUBLE PRECISION
);
CREATE UNIQUE INDEX credentials_subject ON credentials (server_id, subject);

-- Clients that we registered at issuers, with their sealed secret.
CREATE TABLE oauth_clients (
    issuer TEXT NOT NULL,
    redirect_uri TEXT NOT NULL,
    client_id TEXT NOT NULL,
    method TEXT NOT NULL,
    secret_expires_at DOUBLE PRECISION NOT NULL,
    sealed BYTEA NOT NULL,
    PRIMARY KEY (issuer, redirect_uri)
);

-- Sign-ins under way, and how they ended. `state_hash` is of what the browser carries.
CREATE TABLE logins (
    id TEXT PRIMARY KEY,
    state_hash TEXT NOT NULL,
    server_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    sealed BYTEA
);
CREATE UNIQUE INDEX logins_state_hash ON logins (state_hash);
