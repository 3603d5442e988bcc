"""The picture of the house is what the imports say."""

from support import architecture


def test_the_picture_in_the_guide_is_drawn_from_the_imports():
    assert architecture.page_with(architecture.picture()) == architecture.PAGE.read_text(), "run `make fix`"
    assert architecture.picture() in architecture.PAGE.read_text()
