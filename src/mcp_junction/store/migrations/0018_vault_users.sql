-- Which keys of the vault each running service has (ids, the one that seals first).

CREATE TABLE vault_users (
    writer TEXT PRIMARY KEY,
    keys TEXT NOT NULL
);
