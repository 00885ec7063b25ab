import torch

from etag.data.images import MemoryImages

LABELS = [1, 0, 1, 2, 1, 0]
IMAGES = MemoryImages(torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1), torch.tensor(LABELS))


def shown(images):
    return images.pixels.flatten().tolist(), images.labels.tolist()


def test_read_and_select_take_rows_in_the_order_asked():
    rows = torch.tensor([4, 0])
    assert IMAGES.read(rows).flatten().tolist() == [4, 0]
    assert shown(IMAGES.select(rows)) == ([4, 0], [1, 1])
    assert len(IMAGES.select(rows)) == 2


def test_join_keeps_the_order():
    assert shown(IMAGES.join([IMAGES])) == (2 * list(range(6)), 2 * LABELS)
    assert shown(IMAGES.join([])) == shown(IMAGES)


def test_the_first_of_each_class_in_their_order():
    assert shown(IMAGES.first_per_class(1)) == ([0, 1, 3], [1, 0, 2])
    assert shown(IMAGES.first_per_class(2)) == ([0, 1, 2, 3, 5], [1, 0, 1, 2, 0])
    assert IMAGES.first_per_class(None) is IMAGES
