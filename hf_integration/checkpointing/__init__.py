"""The Trainer's checkpoints: written whole or not at all, verified when a run goes on from them.

- `trainer.CheckpointingTrainer`: the Trainer with such checkpoints, on which `NpuTrainer` stands;
- `resuming`: which checkpoint a run goes on from, and whether it fits; `saving`: how one is written;
- `rng`: the random generators of a rank; `interruption`: SIGTERM saves and ends training.
"""
