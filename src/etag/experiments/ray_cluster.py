"""A Ray cluster: an existing one, or one that is started on this machine. Ray is imported only if it is used."""

import logging
import socket
from typing import Any

from etag.core.errors import EtagError

RETRIES = 5  # how often a task is started again after its worker was lost
SECONDS = 10.0  # to wait for an answer; Ray itself would wait for a quarter of an hour


def find_ray(address: str | None = None) -> Any:
    """The package `ray`; raises an error if it is not installed, or if nothing answers at the address."""
    try:
        import ray
    except ImportError:
        raise EtagError("`--on ray` needs the extra `ray`: pip install 'etag-cil[ray]'.") from None
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host, int(port)), SECONDS).close()
        except (OSError, OverflowError) as error:
            raise EtagError(
                f"nothing answers at '{address}': a Ray cluster has the address HOST:PORT, or auto on this machine."
            ) from error
    return ray


def connect(address: str | None = None, processors: int | None = None) -> Any:
    """Connect this process to the cluster at the address, or start one with this number of processors of this machine,
    by default all. Returns the package `ray`, whose `shutdown()` disconnects; a cluster that was started here then
    ends."""
    ray = find_ray(address)
    local: dict[str, Any] = {} if address else {"num_cpus": processors, "include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, ValueError) as error:
        if address is None:
            raise
        hint = "set RAY_AUTH_TOKEN if the cluster needs a token"
        raise EtagError(f"Ray cannot connect to '{address}': {reason(error).rstrip('.')} ({hint}).") from error
    return ray


def processor_count(ray: Any) -> int:
    """The number of processors of the cluster at the moment: it may grow."""
    return int(ray.cluster_resources().get("CPU", 1))


def reason(error: Exception) -> str:
    """Why a task failed, from Ray's error: its last line, without the traceback of the worker."""
    return str(error).strip().splitlines()[-1]
