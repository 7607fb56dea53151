"""The sidecar: ties for any HTTP service, unchanged (docs/proxy.md).

``tiedreq proxy`` stands beside each replica of the service and runs its share of the requests (``sidecar``);
``tiedreq front``, or any sidecar, takes plain HTTP (``listener``) and ties it across the sidecars (``front``). What the
HTTP standard asks of headers is in ``headers``, the parsing is h11's, the ties are the library's own.
"""
