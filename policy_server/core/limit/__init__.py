"""How much the model servers can take, learned: one small pure module per algorithm."""
