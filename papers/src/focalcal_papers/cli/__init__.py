"""Commands that this package adds to `focalcal`; each module has `register(app)`."""

COMMANDS = ("train", "predict", "curvature", "reproduce", "theory")
