"""An example of a service: replace it by your own, or bake yours into an image."""

from typing import Any

import tiedreq

service = tiedreq.Service("example")


@service.method(idempotent=True)
async def greet(ctx: tiedreq.Context, args: Any) -> dict[str, str]:
    """Greet ``{"name": "world"}`` and say which replica did."""
    if not isinstance(args, dict) or not isinstance(args.get("name"), str):
        raise tiedreq.Failure("bad_argument", 'args must be {"name": TEXT}')
    return {"greeting": f"Hello, {args['name']}!", "replica": ctx.replica}
