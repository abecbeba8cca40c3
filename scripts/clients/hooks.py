"""What schemathesis is told about this server: which model to ask, what counts
as a fault, and that every operation must have been asked with success.
"""

from __future__ import annotations

import schemathesis

# The only one that the server of the tests has loaded.
MODEL = "beta-3-haiku"
KNOWN = {
    None, "alpha-4o-mini", MODEL, "gamma-1.5-flash", "delta-3.1", "omni-moderation-latest",
    "omni-moderation-2024-09-26", "text-moderation-latest", "text-moderation-stable",
}  # fmt: skip


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, object]) -> None:
    """Puts the loaded model in the place of any other that exists: one that does not stays as it is."""
    body = case.body
    if isinstance(body, dict):
        model = body.get("model")
        if (model is None or isinstance(model, str)) and model in KNOWN:
            case.body = {**body, "model": MODEL}


@schemathesis.check
def no_fault(ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    if response.status_code >= 500:
        code = response.json()["error"]["code"]
        assert code == "generation_rejected", f"{response.status_code} {code}"


@schemathesis.check
class EveryOperationAnswers:
    """A server that refuses everything violates nothing."""

    def __init__(self) -> None:
        self.tried: set[str] = set()
        self.answered: set[str] = set()

    def after_response(
        self, ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
    ) -> None:
        self.tried.add(case.operation.label)
        if response.status_code == 200:
            self.answered.add(case.operation.label)

    def after_run(self, ctx: schemathesis.CheckContext) -> None:
        assert len(self.tried) >= 8, f"only {sorted(self.tried)} were tried"
        assert self.tried == self.answered, f"never answered: {sorted(self.tried - self.answered)}"
