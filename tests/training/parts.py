"""Parts of one's own, as a user would write them."""


def lowest(returns):
    """A fitness for those who must not fail."""
    return returns.min()
