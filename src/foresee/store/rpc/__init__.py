"""Common parts of both services (rows, plans): endpoints, errors, tokens and TLS, deadlines, limits."""
