"""Who is who between hosts: SPIFFE IDs, a small CA for trials, certificate files that rotate."""
