"""Which rank did not come to which collective, and where it is instead."""
