"""The classifier: what is evaluated is what is saved, and it is built again without the method that trained it."""

import json

import pytest
import torch

from etag.core.outputs import Need
from etag.models.classifier import Classifier


def images_of(laboratory):
    """Test images of the first two tasks, normalized."""
    return torch.cat([laboratory.preprocess.centered(task.test.pixels) for task in laboratory.scenario.tasks[:2]])


def rebuilt(classifier):
    """The classifier from its description and its tensors, as a model directory stores them."""
    description = json.loads(json.dumps(classifier.describe()))
    tensors = {name: value.clone() for name, value in classifier.state_dict().items()}
    again = Classifier.without_weights(description)
    again.load_state_dict(tensors, assign=True)
    return again


@pytest.fixture
def learned(lab):
    """A laboratory after two small tasks, and its classifier in evaluation mode."""

    def make(name, options=None):
        laboratory = lab(name, options, lr=0.01)
        with torch.enable_grad():
            laboratory.learn(0, 1)
        return laboratory, laboratory.method.classifier().eval()

    return make


@torch.no_grad()
def test_it_is_built_again_from_its_description_and_its_tensors(learned, every_method):
    laboratory, classifier = learned(every_method)
    inputs, before = images_of(laboratory), torch.random.get_rng_state()
    again = rebuilt(classifier)
    assert torch.equal(torch.random.get_rng_state(), before), "loading draws no random numbers"
    found = again(inputs)
    assert torch.equal(found, classifier(inputs))
    assert found.shape == (len(inputs), 5)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(len(inputs)))
    assert again.describe() == classifier.describe()
    assert not again.training
    assert not any(value.is_meta for value in [*again.parameters(), *again.buffers()])


OPTIONS = {
    "signed": ("fine", {"head": {"kind": "cosine", "scale": 4.0}}),
    "without bias": ("fine", {"head": {"bias": False}}),
    "fixed": ("fine", {"head": {"growth": "fixed"}}),
    "unseen classes compete": ("etag", {"head": {"growth": "fixed"}, "fidelity": {"argmax": "all"}}),
    "heads compared by logit": ("lwf", {"head": {"compare": "logit"}}),
    "heads of fine-tuning": ("fine", {"head": {"per_task": True}}),
    "sampled likelihoods": ("gc", {"samples": 4}),
    "not rectified": ("il2m", {"rectify": False}),
    "three proxies": ("podnet", {"head": {"proxies": 3}}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_the_answer_are_part_of_the_description(learned, case):
    laboratory, classifier = learned(*OPTIONS[case])
    inputs = images_of(laboratory)
    found = rebuilt(classifier)(inputs)
    assert torch.equal(found, classifier(inputs))
    assert found.shape[1] == (7 if case == "unseen classes compete" else 5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["ewc", "mas", "lwf", "lwm"])
def test_with_one_head_per_task_the_highest_probability_over_the_heads_wins(learned, disturb, name):
    laboratory, classifier = learned(name)
    solver, inputs = laboratory.method.solver, images_of(laboratory)
    disturb(solver.head, scale=1.0)
    (first, second) = torch.split(solver.eval()(inputs, Need.LOGITS).logits, [3, 2], dim=1)
    probabilities = torch.cat([first.softmax(1), second.softmax(1)], dim=1)
    assert torch.equal(classifier(inputs).argmax(1), probabilities.argmax(1))
    torch.testing.assert_close(classifier(inputs).exp(), probabilities / 2)


@torch.no_grad()
def test_one_softmax_over_the_scores_where_there_is_one_head(learned):
    laboratory, classifier = learned("etag")
    inputs = images_of(laboratory)
    logits = laboratory.method.solver.eval()(inputs, Need.LOGITS).logits
    torch.testing.assert_close(classifier(inputs), logits.log_softmax(1))


@torch.no_grad()
def test_a_temperature_divides_the_scores_once_and_is_saved(learned):
    laboratory, classifier = learned("fine")
    inputs, plain = images_of(laboratory), classifier(images_of(laboratory))
    classifier.temperature = 2.5
    again = rebuilt(classifier)
    torch.testing.assert_close(again(inputs), (plain / 2.5).log_softmax(1))
    assert torch.equal(again(inputs).argmax(1), plain.argmax(1))


@torch.no_grad()
def test_features_may_be_classified_without_their_images(learned):
    laboratory, classifier = learned("bir")
    inputs = images_of(laboratory)
    assert torch.equal(classifier.classify(classifier.backbone(inputs)), classifier(inputs))


def test_a_description_has_no_path_of_initial_weights_and_nothing_of_the_method(learned):
    _, classifier = learned("etag")
    description = classifier.describe()
    of_features = {"signed", "original", "branches", "short_branches"}
    assert set(description) == {"model", "channels", "size", *of_features, "rule", "familiarity", "temperature"}
    assert "weights" not in description["model"]
    names = {name.partition(".")[0] for name in classifier.state_dict()}
    assert names == {"backbone", "rule"}, "no auxiliaries, no generator"


def test_an_unknown_prediction_rule_is_refused(learned):
    _, classifier = learned("fine")
    description = classifier.describe()
    description["rule"]["module"] = "Oracle"
    with pytest.raises(ValueError, match="unknown module 'Oracle': load the plug-in"):
        Classifier.without_weights(description)


def test_it_shares_its_weights_with_the_method(lab):
    laboratory = lab("fine")
    laboratory.learn(0)
    classifier = laboratory.method.classifier()
    assert classifier.backbone is laboratory.method.solver.backbone
    assert classifier.rule.head is laboratory.method.solver.head
