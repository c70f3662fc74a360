"""The same core in virtual time: what a policy would do, before it is deployed.

A run is a `World` (engine, clients, changes over time) given to one policy and a seed. The
admission core, its timers, pacing and bookings are the production code; only the clock, Envoy,
the clients and the model servers are models. Start reading at `world.py`.
"""
