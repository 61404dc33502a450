"""The Trainer's checkpoints: written whole or not at all, verified when a run goes on from them.

- `trainer.CheckpointingTrainer`: the Trainer with such checkpoints, on which `NpuTrainer` stands;
- `resuming`: which checkpoint a run goes on from, and whether it fits; `saving`: how one is written;
- `rank_state`: what each rank has alone, such as its random generators; `interruption`: SIGTERM saves and
  ends training.
"""
