"""The papers' data sets, networks, training, tables, figures and theorems, on top of focalcal."""

__version__ = "0.1.0"
