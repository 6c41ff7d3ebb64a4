"""What both wires share: endpoints, tokens and TLS, deadlines, limits on connections and messages."""
