"""How the Ray clusters of these tests are set up."""

from __future__ import annotations

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
SYSTEM = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1_500,
    "health_check_failure_threshold": 4,
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
}
"""Tuned health checks: a lost node is noticed after some seconds, and none is given up on a busy machine."""
