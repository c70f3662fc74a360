"""`policy-server gateway`: Envoy and the policy server, supervised as one service.

`plan` checks everything that can be wrong before anything starts; `supervisor` keeps the two
alive, says `ready`, and drains; `policy` holds the active policy server and its warm standby;
`envoy` holds Envoy and talks to its admin port; `standby` is the child's side of the hand-over.
"""
