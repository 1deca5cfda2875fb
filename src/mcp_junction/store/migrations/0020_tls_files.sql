-- Files for TLS to a server: who may vouch for it, and the certificate that we show it.

ALTER TABLE servers ADD COLUMN tls_ca TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN tls_cert TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN tls_key TEXT NOT NULL DEFAULT '';
