"""The one exception type that ``hf_integration`` raises for input it refuses."""


class TrainingInputError(ValueError):
    """Something the user gave cannot be trained on; the message is one sentence with the mend."""
