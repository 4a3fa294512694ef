"""An engine that is asked for more than it can do."""
