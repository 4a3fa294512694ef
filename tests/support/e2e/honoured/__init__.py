"""How each field that the document of fields calls honoured is shown to be: ``rows.py`` has the
kinds of rows, ``requests.py`` the tables of requests, ``objects.py`` those of what stands in them.
"""
