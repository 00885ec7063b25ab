"""Runs as tasks of a Ray cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etag.core.errors import EtagError
from etag.experiments import plugins
from etag.experiments.config import validate
from etag.experiments.grid import PlannedRun
from etag.experiments.ray_cluster import RETRIES, connect, processor_count, reason
from etag.experiments.run import run as execute

STOP_SECONDS = 60.0  # for a run to reach its next checkpoint and stop


def _execute_run(config: dict[str, Any], out: str) -> str:
    """Executed by a worker; returns why the run failed, or an empty text. An unfinished run is resumed."""
    import torch

    torch.set_num_threads(1)
    try:
        plugins.load(config["plugins"])  # the process that plans the runs was allowed to load them
        execute(validate(config), Path(out))
    except EtagError as error:
        return str(error)
    return ""


class RayJob:
    """A run as a task of the cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def ended(self) -> str | None:
        """None while it runs; then an empty text, or the reason why it failed."""
        ready, _ = self._ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        try:
            failure: str = self._ray.get(self._reference)
        except self._ray.exceptions.RayError as error:
            return reason(error)
        return failure

    def stop(self) -> None:
        """Interrupt it as Ctrl-C does."""
        self._ray.cancel(self._reference)
        self._ray.wait([self._reference], timeout=STOP_SECONDS)


class RayWorkers:
    """Gives Ray as many runs as the cluster has processors; a run whose worker is lost is resumed by another."""

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        self._ray = connect(address, jobs)
        self._gpus = self._ray.cluster_resources().get("GPU", 0)

    @property
    def slots(self) -> int:
        """The number of processors at the moment: a cluster may grow."""
        return processor_count(self._ray)

    def check(self, runs: Sequence[PlannedRun]) -> None:
        """Do nothing: data may be on the machines of the workers alone."""

    def start(self, run: PlannedRun, out: Path) -> RayJob:
        """Submit a task with the processors and GPUs that the run's configuration asks for."""
        devices, on_gpus = run.config.runtime.devices, run.config.runtime.accelerator in ("auto", "cuda")
        resources = {"num_cpus": devices} | ({"num_gpus": devices} if self._gpus and on_gpus else {})
        task = self._ray.remote(max_retries=RETRIES, **resources)(_execute_run)
        return RayJob(self._ray, task.remote(run.config.to_json(), str(out.absolute())))

    def close(self) -> None:
        """Disconnect from the cluster; one that was started here ends."""
        self._ray.shutdown()
