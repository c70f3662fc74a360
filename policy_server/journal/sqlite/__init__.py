"""The disk journal: one SQLite file (WAL), one writer thread, group commit.

`store` is the door; places and jobs ride on the same transactions. SQL stops in this folder and
its siblings under `journal`.
"""
