"""Models: loading them, and the seam that runs mlx-lm's own classes on a paged KV cache.

``load.loader.load`` finds a checkpoint and returns a ``LoadedModel``. Its ``PagedModel`` takes the
packed tokens of a step and hands mlx-lm's forward a ``LayerCache`` for each layer, through which
attention reaches the ``KVCachePool``. ``families`` lists the model types that this is proved for.
Start reading at ``paged_model``.
"""
