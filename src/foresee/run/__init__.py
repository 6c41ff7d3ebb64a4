"""A configured run: from a config to a trained, evaluated and exported model.

`config` and `config_file` describe a run, `session` opens, restores, trains and closes it. `loop` is the only training
loop; `callbacks` act after its steps. `checkpoint` and `folder` keep what a run leaves, `backup` copies it away,
`metrics` and `evaluation` measure it, `serving` exports and scores. `steps` and `worker_group` serve users' own loops.

Does not know who started it (`launch`) or who looks at it (`tools`).
"""
