"""What stands for SIGKILL where a test goes on in the process that it ends."""


class Killed(BaseException):
    """The process ends here: nothing of ours handles it, and no cleanup runs after it."""
