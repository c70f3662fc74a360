"""The model-server emulator: a continuous-batching engine behind the OpenAI and Anthropic APIs.

`engine` is pure (time is an argument) and can be stepped without a server; `driver` runs it in
real time; `server` puts HTTP around it. It depends on nothing else of the package.
"""
