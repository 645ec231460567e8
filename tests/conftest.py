pytest_plugins = ["fluence.sandbox.testing"]
