"""Programs around tiedreq: the cluster launcher and its companions."""
