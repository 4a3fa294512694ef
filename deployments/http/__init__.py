"""What the HTTP servers of gateways and replicas share: the server, limits on what clients send,
request ids, errors in OpenAI's shape.
"""
