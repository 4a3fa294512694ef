"""Families of models that mlx-lm's own code does not serve by itself on a paged cache, a file each;
``table.FAMILIES`` lists all that are served."""
