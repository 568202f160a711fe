"""A federation as its operator sees it, from the logs in its directory: needs neither Flower nor JAX.

``follow`` reads what is new, ``standing`` adds it up, ``alerts`` says what needs somebody; ``terminal``, ``page`` and
``prometheus`` show it. docs/deployment.md lists the codes of alerts.
"""
