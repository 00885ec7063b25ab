"""Runs as tasks of a Ray cluster: one that is there already, or one on this machine."""

from pathlib import Path
from typing import Any

from etag.core.errors import EtagError
from etag.experiments.config import RunConfig, validate
from etag.experiments.grid import PlannedRun
from etag.experiments.run import run as make_run

RETRIES = 5  # of a run whose worker was lost


def _make(config: dict[str, Any], out: str) -> str:
    """What a worker does; why it failed, or nothing. A run that was begun elsewhere goes on from its checkpoint."""
    import torch

    torch.set_num_threads(1)
    try:
        make_run(validate(config), Path(out))
    except EtagError as error:
        return str(error)
    return ""


class RayJob:
    """A task of the cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def ended(self) -> str | None:
        """Whether it has, and why it failed."""
        ready, _ = self._ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        try:
            said: str = self._ray.get(self._reference)
        except self._ray.exceptions.RayError as error:
            return str(error).strip().splitlines()[-1]
        return said

    def stop(self) -> None:
        """As Ctrl-C would."""
        self._ray.cancel(self._reference)
        self._ray.wait([self._reference], timeout=60)


class RayWorkers:
    """As many runs as the cluster has processors are given to Ray, which places them by what they need.

    One whose worker is lost is begun elsewhere.
    """

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise EtagError("--engine ray needs the extra `ray`: pip install 'etag-cil[ray]'.") from None
        self._ray: Any = ray
        local: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        try:
            ray.init(address=address or "local", log_to_driver=False, **local)
        except ConnectionError as error:
            raise EtagError(f"there is no Ray cluster at '{address}'.") from error
        self._gpus = self._ray.cluster_resources().get("GPU", 0)

    @property
    def places(self) -> int:
        """Processors there are now: a cluster may grow."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def start(self, run: PlannedRun, out: Path) -> RayJob:
        """A task, with the processors and GPUs that its configuration asks for."""
        needs = self._needs(run.config)
        task = self._ray.remote(max_retries=RETRIES, **needs)(_make)
        return RayJob(self._ray, task.remote(run.config.plain(), str(out.absolute())))

    def _needs(self, config: RunConfig) -> dict[str, int]:
        devices, on_gpus = config.runtime.devices, self._gpus and config.runtime.accelerator in ("auto", "cuda")
        return {"num_cpus": devices, "num_gpus": devices} if on_gpus else {"num_cpus": devices}

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()
