"""What both wires share: endpoints, kinds of errors, tokens and TLS, deadlines, limits on connections and messages."""
