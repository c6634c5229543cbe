"""The model-facing tools `bash`, `bash_output` and `bash_kill`.

Schemas, texts, cards, ownership and escalation over the `Executor` protocol: no
process, no socket, no event loop of its own. `toolset.Toolset` is the way in.
"""
