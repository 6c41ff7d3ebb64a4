"""Graphs as another kind of run: edges prepared on disk, trained through the same plans and engine.

`prepare` and `formats` turn raw edges into a `GraphFolder`; `orders` arrange partitions so that few bytes are read;
`negatives`, `sampling` and `neighbors` draw what a step needs ahead of it, from seeds. `encoders` and `decoders` are
the models, `task` trains them, `evaluation` and `queries` use the result.

Out of core equals in memory byte for byte; an order trades only randomness against bytes read. Must not import `launch`
or `tools`.
"""
