"""What is raised about a model of somebody else; without PyTorch, which a process that only reports does not import."""


class NotAModel(ValueError):
    """A factory's result that cannot be examined; the message says what it has to return."""
