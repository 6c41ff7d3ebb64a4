"""What a run is: configuration, training, workers, callbacks, checkpoints, folder, evaluation, export."""
