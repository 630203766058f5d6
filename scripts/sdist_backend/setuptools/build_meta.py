from stand_in import *  # noqa: F401,F403
