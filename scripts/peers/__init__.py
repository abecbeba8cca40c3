"""The comparison with other servers and runtimes on the same cores (`make bench-peers`).

`rows` lists the bars, `figures` does the arithmetic, `page` writes it down, and
`procfs` reads what the system says of a process: all pure. `environment`
installs the peers into `.venv-peers`, `material` makes the graphs and texts that
both sides are given, with the pictures of `drawn` and the requests of `mixed`,
`processes` starts one side at a time and ends it, `served` says how our server
is started. `bench` holds all that together for `sides`, `pictures` and
`machine`, which measure. `llama.py`, `genai.py`, `plain_onnx.py`,
`plain_pictures.py`, `open_onnx.py` and `fastapi_app.py` run inside `.venv-peers`
and know nothing of this package; what those of the generators and
`examples/gauge.rs` answer has one form.

`stock_minilm.py`, `step_profile.py` and `baseline.py` are programs of their own.
"""


class PeersError(Exception):
    """A failure whose text says what to do."""
