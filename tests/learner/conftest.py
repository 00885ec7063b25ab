"""Small runs on real digits, and learners that tests drive task by task."""

import pytest
from tests.runs import small_config

from etag.data.scenario import build_scenario
from etag.learner.config import LearnerConfig, create_method
from etag.learner.learner import Learner, LearnOptions
from etag.learner.model_directory import ModelDirectory
from etag.learner.versions import ModelInfo


@pytest.fixture(scope="session")
def small():
    """small(method, **options): the configuration of a run of seconds: 2 + 1 + 1 classes."""
    return small_config


class Course:
    """A small scenario, and a model directory in which learners learn its tasks."""

    def __init__(self, runtime, path, method, **options):
        self.runtime, self.config = runtime, small_config(method, **options)
        self.scenario, self.preprocess = build_scenario(self.config.data, self.config.split, self.config.seed)
        self.directory = ModelDirectory(path)
        (path / "versions").mkdir(parents=True, exist_ok=True)

    def new_method(self):
        """An untrained method."""
        channels, classes = self.scenario.channels, len(self.scenario.classes)
        placement = self.runtime.placement
        return create_method(self.config, placement, self.preprocess, channels=channels, classes=classes)

    def learner(self, callbacks=(), **named):
        """A learner that continues from the saved version, or starts the first task."""
        if self.directory.exists():
            method, about = self.directory.load_method(self.runtime.placement)
        else:
            config = LearnerConfig.from_json(self.config.to_json()).to_json()
            about = ModelInfo(
                config, self.preprocess, self.scenario.channels, expected_classes=len(self.scenario.classes)
            )
            method = self.new_method()
        return Learner(method, self.runtime, self.directory, about, callbacks, **named)

    def plan(self, index, **named):
        """How a task of the scenario is learned."""
        task = self.scenario.tasks[index]
        named = {"evaluated": self.scenario.tasks[: index + 1], "runtime": self.config.runtime} | named
        return LearnOptions(names=self.scenario.classes[task.num_old : task.num_seen], **named)

    def learn(self, *indices, learner=None, **named):
        """Learn tasks, and save a version after each; returns the learner."""
        learner = learner or self.learner()
        for index in indices:
            learner.learn(self.scenario.tasks[index], self.plan(index, **named))
        return learner


@pytest.fixture
def course(runtime, tmp_path):
    """course(method, folder, **options): a scenario and a directory to learn it in."""
    return lambda method, folder="model", **options: Course(runtime, tmp_path / folder, method, **options)
