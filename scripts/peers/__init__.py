"""The comparison with other servers and runtimes on the same cores (`make bench-peers`).

`rows` lists the bars, `figures` does the arithmetic, `page` writes it down: all
three pure. `environment` installs the peers into `.venv-peers`, `material` makes
the graphs and texts that both sides are given, `processes` starts one side at a
time and ends it, `sides` measures each. `llama.py`, `genai.py`, `plain_onnx.py`
and `fastapi_app.py` run inside `.venv-peers` and know nothing of this package;
what they and `examples/gauge.rs` answer has one form.

`stock_minilm.py` and `step_profile.py` are programs of their own.
"""


class PeersError(Exception):
    """A failure whose text says what to do."""
