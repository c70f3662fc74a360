"""The open-loop load generator: `runner.run_load(params)` sends, `report` tells what came back.

Open loop: requests start when the schedule says so, however slow the answers are, and every
latency counts from the scheduled moment. A server that stalls cannot slow its own load down.
"""
