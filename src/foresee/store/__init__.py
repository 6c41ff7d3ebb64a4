"""Where rows live when no worker caches them.

`contract` has the protocols (`Store`, `TwoPhaseStore`), `parts` the base classes that keep their two phases, `layout`
the tables that a store holds, `registry` the kinds by name. `memory`, `disk` and `remote` implement the contract;
`server` serves one shard of it over Arrow Flight (`rpc`). Writes assign and refuse lower versions, so a retry is
harmless; `commits` decides which step all parts open at.

Knows rows, not training: no torch, no batches, no models. Of `plan` it uses the record types.
"""
