"""Adapters, one a file, for families that unmodified mlx-lm code can't run on a paged cache;
``table.FAMILIES`` lists all supported families."""
