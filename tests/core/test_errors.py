from etag.core.errors import unknown_name


def test_unknown_name_suggests_the_most_similar_name():
    error = unknown_name("animal", "dgo", ["dog", "cat"])
    assert str(error) == "unknown animal 'dgo': did you mean 'dog'? Known are cat, dog."


def test_unknown_name_lists_all_names_if_none_is_similar():
    assert str(unknown_name("animal", "xyz", ["dog", "cat"])) == "unknown animal 'xyz': known are cat, dog."
    assert str(unknown_name("animal", "xyz", [])) == "unknown animal 'xyz': known are none."
