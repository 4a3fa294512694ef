"""A checkpoint on its way to a model: found or downloaded, its config accounted for key by key, its
tensors read, its weights in the form that suits the device. ``loader.load`` is the way in."""
