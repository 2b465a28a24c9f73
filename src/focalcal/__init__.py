"""focalcal: classifier confidences you can trust."""

__version__ = "0.1.0"
