"""The one exception type that ``ds_configs`` raises for input it refuses."""


class DsConfigError(ValueError):
    """A configuration or a request for one is refused; the message says why and what to do."""
