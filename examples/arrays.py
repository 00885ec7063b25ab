"""Arrays: `fit`, `partial_fit` with new classes, `predict`, `save`, `load`, as in scikit-learn."""

from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from etag import IncrementalClassifier

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8) / 16  # floats from 0 to 1
X, X_test, y, y_test = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)

settings = {
    "data.flip": False,  # a mirrored digit is not a digit
    "method.generator.train.steps": 300,
    "method.refit.steps": 300,
}
model = IncrementalClassifier(steps=100, width=8, settings=settings)
for classes in ([0, 1, 2, 3], [4, 5], [6, 7]):
    now, tested = np.isin(y, classes), y_test <= classes[-1]
    model.partial_fit(X[now], y[now])
    print(f"knows {model.classes_.tolist()}: {model.score(X_test[tested], y_test[tested]):.1%} right")

with TemporaryDirectory() as home:
    model.save(f"{home}/digits")  # a model directory: `etag predict` and `etag learn` accept it too
    again = IncrementalClassifier.load(f"{home}/digits")
    print(again.predict(X_test[:5]).tolist(), "are", y_test[:5].tolist())
