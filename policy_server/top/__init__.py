"""`policy-server top`: the live page's numbers in a terminal.

`source` reads them over HTTP, `view` lays them out, `live` keeps them fresh.
"""
