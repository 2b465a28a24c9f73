"""`focalcal evaluate`."""


def register(app):
    @app.command()
    def evaluate(file: str) -> None:
        """Measure."""
