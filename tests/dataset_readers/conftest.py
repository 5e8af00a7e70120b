from beem_plugin import components  # noqa: F401  registers the readers
